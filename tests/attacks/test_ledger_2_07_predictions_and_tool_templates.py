"""Ledger, section 2: rejected predicted tokens, and the text that templates make of tools.

Both were billed beyond the hold: predicted tokens on top of the maximum, tools beyond the body's
bytes.
"""

from __future__ import annotations

from gateway.domain.operation import Operation
from gateway.wire.openai.request.read import read_request
from tests.attacks.bounded import Bounded

MESSAGES = [{"role": "user", "content": "hi"}]


def test_rejected_predicted_tokens_are_held_for_as_output(poor: Bounded) -> None:
    """OpenAI charges them like written tokens; the hold used the price of input."""
    prediction = {"type": "content", "content": "word " * 200}
    body = {
        "model": "openai",
        "messages": MESSAGES,
        "max_completion_tokens": 10,
        "prediction": prediction,
    }
    bill = poor.try_one("chat/completions", body)
    assert bill is not None
    assert bill.output_tokens == 1010


def test_tools_are_held_for_as_templates_write_them(poor: Bounded) -> None:
    """Indented JSON has up to four tokens per byte of dense lists, and a preface precedes it."""
    dense = {"type": "object", "enum": [[[[1, 2], [3, 4]], [[5]]]] * 30}
    tools = [{"type": "function", "function": {"name": "f", "parameters": dense}}] * 3
    poor.provide(2)
    for calls in ([], [{"role": "assistant", "tool_calls": tools}]):
        poor.renew()
        body = {"model": "older", "messages": MESSAGES + calls, "max_tokens": 10, "tools": tools}
        assert poor.try_one("chat/completions", body) is not None


def test_a_template_of_the_callers_own_has_no_bound() -> None:
    """Such a template may repeat anything, so only the window bounds its output."""
    read = read_request(Operation.CHAT, b'{"model":"m","messages":[],"chat_template":"{{ x }}"}')
    assert read.facts.expansion_tokens is None
