"""A 200 whose events are broken, too large or of no dialect was asked for three times before its
first byte, and each attempt stood at its hold: a stream is bought once, as a plain answer is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import UpstreamError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, Stage, piece, rest_of, stage

LONG = b"x" * (2**20 + 1)
PART = {"candidates": [{"content": {"parts": [{"text": "word"}]}, "finishReason": "STOP"}]}
LIST = b"data: " + json.dumps([PART]).encode() + b"\n\n"
BROKEN_MESSAGE = bytes(16)  # a prelude whose sum is wrong
UNREADABLE = {
    "gemini, a list in data": ("gemini", [LIST]),
    "gemini, a long event": ("gemini", [b"data: " + LONG]),
    "anthropic, a long event": ("anthropic", [b"data: " + LONG]),
    "anthropic, no objects": ("anthropic", [b"data: [1]\n\ndata: [2]\n\n"]),
    "bedrock, a wrong sum": ("bedrock", [BROKEN_MESSAGE]),
    "openai, no blank lines": ("openai_compatible", [2 * piece("a").replace(b"\n\n", b"\n")]),
    "openai, a part of an event": ("openai_compatible", [b'data: {"id":"c","ch']),
    "gemini, a part of an event": ("gemini", [b'data: {"candidates":[{"con']),
    "anthropic, a part of an event": ("anthropic", [b"event: message_start\ndata: {"]),
    "openai, a long event": ("openai_compatible", [b"data: " + LONG]),
}


async def asked(on: Stage, provider: str, tmp_path: Path, *, is_stream: bool = True) -> Any:
    """Ask two deployments of a provider for a chat."""
    key = tmp_path / "key"
    key.write_text("sk-0123456789")
    both = [
        factories.deployment(
            name,
            provider=provider,
            native=PROVIDERS[provider].native,
            api_key=f"file:{key}",
            capabilities=frozenset(),
        )
        for name in ("one", "two")
    ]
    turns = [{"role": "user", "content": "x"}]
    asks = {"model": "assistant", "messages": turns, "max_tokens": 5, "stream": is_stream}
    return await on.answer(json.dumps(asks).encode(), *both, operation=Operation.CHAT)


@pytest.mark.parametrize(("provider", "sent"), UNREADABLE.values(), ids=UNREADABLE)
async def test_it_is_bought_once(provider: str, sent: list[bytes], tmp_path: Path) -> None:
    on = stage(*(FakeUpstreamAnswer(sent) for _ in range(3)))
    with pytest.raises(UpstreamError):
        await asked(on, provider, tmp_path)
    assert len(on.transport.sent) == 1


async def test_a_stream_that_is_cut_before_its_first_event_is_tried_elsewhere(
    tmp_path: Path,
) -> None:
    """It may not have been generated, and nothing of it was unreadable."""
    on = stage(FakeUpstreamAnswer([b"data: {"], then=UpstreamError("cut")))
    on.transport.answers.append(FakeUpstreamAnswer([piece("a"), DONE]))
    answer = await asked(on, "openai_compatible", tmp_path)
    assert b'"a"' in await rest_of(answer)
    assert len(on.transport.sent) == 2


async def test_a_stream_for_a_plain_answer_is_bought_once(tmp_path: Path) -> None:
    """The gateway asks an engine for a stream, and assembles it."""
    on = stage(*(FakeUpstreamAnswer([b"data: [1]\n\n", DONE]) for _ in range(3)))
    with pytest.raises(UpstreamError, match="not asked again"):
        await asked(on, "vllm", tmp_path, is_stream=False)
    assert on.transport.sent[0][1].is_assembled
    assert len(on.transport.sent) == 1
