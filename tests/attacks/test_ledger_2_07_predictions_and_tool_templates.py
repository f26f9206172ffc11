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


def test_tools_of_messages_are_held_for_in_both_dialects(poor: Bounded) -> None:
    """An engine of messages renders them itself; for one of chats they are translated first."""
    dense = {"type": "object", "enum": [[[[1, 2], [3, 4]], [[5]]]] * 30}
    tools = [{"name": "f", "input_schema": dense}] * 3
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": dense["enum"]}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    poor.provide(4)
    for model in ("older", "capped"):
        for later in ([], turns):
            poor.renew()
            body = {"model": model, "messages": MESSAGES + later, "max_tokens": 10, "tools": tools}
            bill = poor.try_one("messages", body)
            assert bill is not None, (model, later)
            assert bill.path == ("messages" if model == "capped" else "chat/completions")


def test_a_template_of_the_callers_own_has_no_bound() -> None:
    """Such a template may repeat anything, so only the window bounds its output."""
    read = read_request(Operation.CHAT, b'{"model":"m","messages":[],"chat_template":"{{ x }}"}')
    assert read.facts.expansion_tokens is None
