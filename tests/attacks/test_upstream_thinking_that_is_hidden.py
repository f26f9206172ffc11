"""An answer of a model that thinks hidden, without a usage (cut, stalled, or its usage lost), was
booked as the few tokens of its text: its thinking came before them, and is billed.

The rule: a text is the size of an answer only if its model shows all that it writes. Else the
answer is unknown, at its hold.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.pricing.settlement import Counted
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.providers.unasked import unasked_of
from gateway.wire.translation.asked_thinking import asks_thinking
from tests import factories
from tests.attacks.streamed import DIALECTS, HELD_NUSD, last, read, settlement, settlement_of, text
from tests.fakes import FakeCounter, FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, Stage, body, piece, rest_of

MOST = 1000
COUNTED = Counted(usage=TokenUsage(input_tokens=12, output_tokens=1), is_exact=False)
REASONING: dict[str, Any] = {"type": "reasoning", "id": "rs", "summary": []}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_cut_answer_behind_hidden_thinking_is_unknown(dialect: str) -> None:
    """The thinking came before the first word."""
    known: dict[str, Any] = {"counted": COUNTED, "held_nusd": HELD_NUSD, "thinks_hidden": True}
    for most in (MOST, None):
        held = settlement(dialect, [text(dialect)], sent_output_tokens=most, **known)
        assert (held.source, held.held_nusd) == (UsageSource.UNKNOWN, HELD_NUSD)
    ended = settlement(dialect, [text(dialect)], sent_output_tokens=MOST, is_cut=True, **known)
    assert (ended.source, ended.usage.output_tokens) == (UsageSource.ESTIMATED, MOST)
    known["thinks_hidden"] = False
    shown = settlement(dialect, [text(dialect)], sent_output_tokens=MOST, **known)
    assert (shown.source, shown.usage) == (UsageSource.ESTIMATED, COUNTED.usage)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_usage_counts_its_thinking(dialect: str) -> None:
    """It is charged as it is."""
    seen = read(dialect, [text(dialect), *last(dialect, 12, 7)])
    found = settlement_of(seen, thinks_hidden=True, counted=COUNTED, sent_output_tokens=MOST)
    assert (found.source, found.usage) == (UsageSource.PROVIDER, seen.final)


@pytest.mark.parametrize(
    ("known", "output"),
    [
        ({"final": TokenUsage(input_tokens=None, output_tokens=7)}, 7),
        ({"running": TokenUsage(input_tokens=0, output_tokens=7)}, 7),
        ({"running": TokenUsage(input_tokens=12, output_tokens=7), "is_behind": True}, None),
        ({"final": TokenUsage(input_tokens=12, output_tokens=None)}, None),
        ({"final": TokenUsage(input_tokens=12, output_tokens=-1)}, None),
    ],
)
def test_a_usage_of_one_side_counts_for_that_side(
    known: dict[str, Any], output: int | None
) -> None:
    """The upstream's output is thinking included, unless the answer went on after it."""
    found = factories.settled(
        thinks_hidden=True,
        counted=COUNTED,
        sent_output_tokens=MOST,
        held_nusd=HELD_NUSD,
        **known,
    )
    source = UsageSource.UNKNOWN if output is None else UsageSource.ESTIMATED
    assert (found.source, found.usage.output_tokens) == (source, output)


def test_embeddings_have_no_thinking() -> None:
    """Nothing is written."""
    counted = Counted(usage=TokenUsage(input_tokens=12, output_tokens=None), is_exact=False)
    found = factories.settled(thinks_hidden=True, counted=counted, writes_output=False)
    assert (found.source, found.usage) == (UsageSource.ESTIMATED, counted.usage)


@pytest.mark.parametrize(
    ("provider", "model", "expected"),
    [
        ("azure_openai", "o3", True),
        ("openai", "o4-mini-2025-04-16", True),
        ("openai", "gpt-5-mini", True),
        ("openai", "gpt-5.1-codex", True),
        ("openai", "gpt-5.6-sol", True),
        ("openrouter", "openai/o1", True),
        ("openrouter", "openrouter/auto", True),
        ("openrouter", "anthropic/claude-3.7-sonnet:thinking", True),
        ("azure_openai", "model-router", True),
        ("gemini", "gemini-2.5-flash", True),
        ("vertex", "gemini-3-pro-preview", True),
        ("gemini", "gemini-flash-latest", True),
        ("xai", "grok-4-0709", True),
        ("bedrock", "eu.anthropic.claude-opus-5-v1:0", True),
        ("anthropic", "claude-sonnet-5-5", True),
        ("openai", "gpt-4o", False),
        ("openai", "gpt-5-chat-latest", False),
        ("openai", "gpt-5.3-chat-latest", False),
        ("openai", "gpt-5.1", False),
        ("groq", "openai/gpt-oss-120b", False),
        ("gemini", "gemini-2.5-flash-lite", False),
        ("gemini", "gemini-2.5-flash-image", False),
        ("gemini", "gemini-2.5-pro-preview-tts", False),
        ("gemini", "gemini-2.0-flash", False),
        ("xai", "grok-3-mini", False),
        ("xai", "grok-4-fast-non-reasoning", False),
        ("anthropic", "claude-sonnet-4-5", False),
        ("anthropic", "claude-opus-4-20250514", False),
        ("deepseek", "deepseek-reasoner", False),
        ("mistral", "mistral-large-latest", False),
        ("openai_compatible", "m-1", False),
    ],
)
def test_a_model_that_thinks_unasked_is_known_by_its_name(
    provider: str, model: str, expected: bool
) -> None:
    """Others think if they are asked, or show all of it."""
    assert unasked_of(provider, model).thinks_hidden is expected


@pytest.mark.parametrize(
    ("operation", "members", "expected"),
    [
        (Operation.CHAT, {}, None),
        (Operation.CHAT, {"reasoning_effort": "high"}, True),
        (Operation.CHAT, {"reasoning_effort": "none"}, False),
        (Operation.CHAT, {"reasoning_effort": None}, None),
        (Operation.CHAT, {"reasoning": {"max_tokens": 500}}, True),
        (Operation.CHAT, {"reasoning": {"max_tokens": 0}}, False),
        (Operation.CHAT, {"reasoning": {"enabled": False}}, False),
        (Operation.CHAT, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        (Operation.CHAT, {"thinking": {"type": "disabled", "budget_tokens": 1024}}, False),
        (Operation.CHAT, {"enable_thinking": True}, True),
        (Operation.CHAT, {"reasoning_effort": "none", "think": "high"}, True),
        (Operation.RESPONSES, {"reasoning": {"effort": "low"}}, True),
        (Operation.RESPONSES, {"reasoning": {"summary": "auto"}}, None),
        (Operation.RESPONSES, {"reasoning": [1.5]}, None),
    ],
)
def test_a_request_asks_for_thinking(
    operation: Operation, members: dict[str, Any], expected: bool | None
) -> None:
    """In the words of each dialect of callers."""
    prompt = {"input": "x"} if operation is Operation.RESPONSES else {"messages": []}
    asked = factories.read(
        json.dumps({"model": "assistant", **prompt, **members}).encode(), operation
    )
    assert asks_thinking(asked) is expected
    assert asks_thinking(asked, left_out=[*members, "reasoning.effort"]) is None


@pytest.mark.parametrize(
    ("item", "kind", "expected"),
    [
        (REASONING, "added", True),
        ({**REASONING, "summary": [{"type": "summary_text", "text": "a"}]}, "done", True),
        ({**REASONING, "content": [{"type": "reasoning_text", "text": "a"}]}, "done", False),
        ({"type": "message", "content": []}, "added", False),
        ("x", "added", False),
    ],
)
def test_an_item_of_thinking_shows_that_the_model_thinks(
    item: Any, kind: str, expected: bool
) -> None:
    """A summary is no size of it; all of its text is."""
    event = {"type": f"response.output_item.{kind}", "output_index": 0, "item": item}
    assert read("responses", [event, text("responses")]).has_thought is expected


@pytest.mark.parametrize(
    ("facts", "members", "output"),
    [
        ({"model": "o3"}, {}, None),
        ({"model": "gpt-4.1"}, {}, 1),
        ({"model": "gpt-4.1"}, {"reasoning_effort": "high"}, None),
        ({"model": "gpt-5.5"}, {"reasoning_effort": "none"}, 1),
        ({"model": "o3", "is_self_hosted": True}, {"reasoning_effort": "high"}, 1),
    ],
)
async def test_a_stream_without_usage_through_the_service(
    facts: dict[str, Any], members: dict[str, Any], output: int | None
) -> None:
    """An engine of one's own shows its thinking, and an ordinary model has none."""
    end = b'data: {"model":"m-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    on = Stage(
        FakeTransport([FakeUpstreamAnswer([piece("a"), end, DONE])]), counter=FakeCounter(COUNTED)
    )
    answer = await on.answer(
        body(stream=True, max_tokens=MOST, **members), factories.deployment(**facts)
    )
    await rest_of(answer)
    source = UsageSource.UNKNOWN if output is None else UsageSource.ESTIMATED
    assert (on.event.usage_source, on.event.usage.output_tokens) == (source, output)
