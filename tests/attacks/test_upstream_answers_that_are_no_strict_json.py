"""A whole 200 in Latin-1, with `NaN`, or with a page, a NUL or a prefix around it lost the usage
that stands in it, and embeddings were estimated at half of it.

The rule: the figure counts if it is the only one; an answer that may state another is held.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.domain.providers.facts import provider_facts_of
from gateway.errors import UpstreamError
from gateway.wire.foreign_json import repaired
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import Stage, stage
from tests.waiting import soon

CHAT = {
    "id": "c",
    "model": "m",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "caf\xe9"},
            "logprobs": {"content": [{"token": "a", "logprob": -1.5}]},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
}
MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "caf\xe9", "x": -1.5}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 10, "output_tokens": 5},
}
GEMINI = {
    "candidates": [
        {"content": {"parts": [{"text": "caf\xe9"}]}, "finishReason": "STOP", "avgLogprobs": -1.5}
    ],
    "usageMetadata": {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15},
}
CONVERSE = {
    "output": {"message": {"role": "assistant", "content": [{"text": "caf\xe9"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
    "metrics": {"latencyMs": -1.5},
}
OLLAMA = {
    "model": "m",
    "message": {"role": "assistant", "content": "caf\xe9"},
    "done": True,
    "done_reason": "stop",
    "prompt_eval_count": 10,
    "eval_count": 5,
    "total_duration": -1.5,
}
EMBEDDINGS = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [-1.5, 0.25]}],
    "model": "m",
    "note": "caf\xe9",
    "usage": {"prompt_tokens": 6001, "total_tokens": 6001},
}
ANSWERS: dict[str, tuple[dict[str, Any], Operation]] = {
    "openai_compatible": (CHAT, Operation.CHAT),
    "anthropic": (MESSAGE, Operation.CHAT),
    "gemini": (GEMINI, Operation.CHAT),
    "bedrock": (CONVERSE, Operation.CHAT),
    "ollama": (OLLAMA, Operation.CHAT),
    "embeddings": (EMBEDDINGS, Operation.EMBEDDINGS),
}


def spoiled(answer: dict[str, Any], how: str) -> bytes:
    """Return an answer that a strict reader refuses."""
    text = json.dumps(answer, ensure_ascii=False)
    return {
        "latin-1": text.encode("latin-1"),
        "NaN": text.replace("-1.5", "NaN").encode(),
        "infinite": text.replace("-1.5", "-Infinity").encode(),
        "a page": text.encode() + b"<script>if (a) { b() }</script>",
        "NULs": text.encode() + b"\0\0",
        "a prefix": b")]}'\n" + text.encode(),
        "a call": b"answer(" + text.encode() + b");",
        "a tab": text.replace("caf", "c\taf").encode(),
    }[how]


HOW = ("latin-1", "NaN", "infinite", "a page", "NULs", "a prefix", "a call", "a tab")


async def asked(provider: str, sent: bytes, operation: Operation, tmp_path: Path) -> Stage:
    """Ask a deployment of a provider, whose answer is booked."""
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    named = "openai_compatible" if provider == "embeddings" else provider
    address = "http://127.0.0.1:9" + ("" if named == "ollama" else "/v1")
    one = factories.deployment(
        provider=named,
        native=provider_facts_of(named, address).native,
        base_url=address,
        api_key=f"file:{key}",
        capabilities=frozenset(),
        operations=frozenset(Operation),
    )
    turns = [{"role": "user", "content": "x"}]
    asks: dict[str, Any] = {"messages": turns, "max_tokens": 50}
    if operation is Operation.EMBEDDINGS:
        asks = {"input": ["a b c " * 2000]}
    on = stage(*(FakeUpstreamAnswer([sent]) for _ in range(3)))
    with pytest.raises(UpstreamError, match="not asked again"):
        await on.answer(
            json.dumps({"model": "assistant", **asks}).encode(), one, operation=operation
        )
    await soon(lambda: on.journal.events, "the event")
    return on


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("provider", ANSWERS)
async def test_the_usage_in_it_is_booked(provider: str, how: str, tmp_path: Path) -> None:
    answer, operation = ANSWERS[provider]
    on = await asked(provider, spoiled(answer, how), operation, tmp_path)
    usage, source = on.event.usage, on.event.usage_source
    expected = (6001, None) if operation is Operation.EMBEDDINGS else (10, 5)
    assert (usage.input_tokens, usage.output_tokens or None) == expected
    assert source is UsageSource.PROVIDER


@pytest.mark.parametrize("provider", ANSWERS)
async def test_one_of_two_usages_is_none(provider: str, tmp_path: Path) -> None:
    """Two answers in a body, one that is broken within, or a name twice: no figure is certain."""
    answer, operation = ANSWERS[provider]
    whole = spoiled(answer, "NaN")
    name = next(one for one in ("usage", "usageMetadata", "eval_count") if one in answer)
    twice = b'{"%b":1,' % name.encode() + whole[1:]
    broken = whole.replace(b"caf", b'c", BROKEN "af')
    for sent in (whole + whole, broken, twice):
        on = await asked(provider, sent, operation, tmp_path)
        assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("is_cut", [False, True])
async def test_so_is_that_of_an_error_and_of_a_cut_answer(
    how: str, is_cut: bool, tmp_path: Path
) -> None:
    sent = spoiled({"error": {"message": "x"}} | CHAT, how)
    cut = UpstreamError("cut") if is_cut else None
    on = stage(FakeUpstreamAnswer([sent], status=200 if is_cut else 500, then=cut))
    with pytest.raises(UpstreamError):
        await on.answer(b'{"model":"assistant","messages":[]}', factories.deployment())
    assert (on.event.usage_source, on.event.usage.output_tokens) == (UsageSource.PROVIDER, 5)


async def test_a_tier_in_it_counts(tmp_path: Path) -> None:
    """The whole answer is read, and not its tokens alone."""
    sent = spoiled(CHAT | {"service_tier": "priority"}, "NaN")
    on = await asked("openai_compatible", sent, Operation.CHAT, tmp_path)
    assert on.event.service_tier == "priority"


@given(st.binary() | st.text().map(str.encode) | st.binary().map(lambda part: b'{"a":' + part))
def test_any_bytes_are_an_object_or_none(text: bytes) -> None:
    """An upstream chooses them."""
    found = repaired(text)
    assert found is None or isinstance(json.loads(found), dict)


@pytest.mark.parametrize(
    "text", [b'{"a":' * 100_000, b'{"a":1e999}{', b'{"a":' + b"9" * 5000 + b"}", b"{" * 2**21]
)
def test_texts_that_take_long_end(text: bytes) -> None:
    """A nested text, a number without end, and more objects than are read."""
    found = repaired(text)
    assert found is None or found == b'{"a": Infinity}'
