"""A plain 200 whose object has no dialect's shape was an empty success for callers whose request
was translated: only a chat server's was refused.

The rule for every dialect of upstreams: an answer that has to be translated has the shape of its
dialect, or its caller gets an error, it is bought once, and it stands at its hold.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from tests.attacks.every_target import ASKED, target
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import Stage, stage

TARGETS = [
    ("groq", Operation.MESSAGES),
    *(("anthropic", operation) for operation in (Operation.CHAT, Operation.RESPONSES)),
    *(
        (provider, operation)
        for provider in ("bedrock", "gemini", "ollama")
        for operation in (Operation.CHAT, Operation.MESSAGES, Operation.RESPONSES)
    ),
    ("triton", Operation.COMPLETIONS),
]
BODIES = {
    "no members": b"{}",
    "another object": b'{"hello": 1}',
    "a wrapper": b'{"code": 0, "data": {"x": 1}}',
    "a ticket": b'{"status": "queued", "id": "job-1"}',
    "a message of AWS": b'{"message": "Too many requests"}',
    "members of other types": json.dumps(
        dict.fromkeys(("choices", "content", "output", "candidates", "message", "usage"), "x")
    ).encode(),
    "an empty list": b"[]",
    "a page": b"<html><body>Welcome</body></html>",
    "nothing": b"",
}


async def refused(
    provider: str, operation: Operation, body: bytes, folder: Path, *, is_stream: bool
) -> Stage:
    """Ask for an answer that cannot be one, and return the stage."""
    on = stage(*(FakeUpstreamAnswer([body] if body else []) for _ in range(3)))
    both = [target(provider, folder, name=name) for name in ("one", "two")]
    asked = {"model": "assistant", "stream": is_stream, **ASKED[operation]}
    with pytest.raises(UpstreamError):
        await on.answer(json.dumps(asked).encode(), *both, operation=operation)
    return on


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "for a stream"])
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("provider", "operation"), TARGETS)
async def test_it_is_an_error_at_its_hold(
    provider: str, operation: Operation, name: str, is_stream: bool, tmp_path: Path
) -> None:
    """A stream without a byte may not have been generated, so it is tried elsewhere."""
    on = await refused(provider, operation, BODIES[name], tmp_path, is_stream=is_stream)
    is_bought = BODIES[name] or not is_stream
    assert len(on.transport.sent) == 1 or not is_bought
    for event in on.journal.events:
        assert event.usage_source is UsageSource.UNKNOWN
        expected = (
            {Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_CUT} if is_stream else {"upstream_error"}
        )
        assert event.outcome in expected


@pytest.mark.parametrize(("provider", "operation"), TARGETS)
async def test_an_empty_answer_of_its_own_shape_is_served(
    provider: str, operation: Operation, tmp_path: Path
) -> None:
    """Models may answer with nothing; Google leaves out an empty list."""
    empty: dict[str, dict[str, Any]] = {
        "groq": {"choices": [{"index": 0, "message": {"role": "assistant"}}]},
        "anthropic": {"content": [], "stop_reason": "end_turn"},
        "bedrock": {"output": {"message": {"role": "assistant", "content": []}}},
        "gemini": {"usageMetadata": {"promptTokenCount": 5}},
        "ollama": {"message": {"role": "assistant", "content": ""}, "done": True},
        "triton": {"text_output": ""},
    }
    on = stage(FakeUpstreamAnswer([json.dumps(empty[provider]).encode()]))
    asked = {"model": "assistant", **ASKED[operation]}
    answer = await on.answer(
        json.dumps(asked).encode(), target(provider, tmp_path), operation=operation
    )
    assert json.loads(answer.body)
    assert on.event.outcome is Outcome.OK


@pytest.mark.parametrize(("provider", "operation"), TARGETS)
async def test_an_error_alone_is_tried_elsewhere_at_zero(
    provider: str, operation: Operation, tmp_path: Path
) -> None:
    """As at the servers of the caller's own dialect; Bedrock's was bought at its hold."""
    error = json.dumps({"error": {"message": "no", "type": "server_error"}}).encode()
    on = stage(*(FakeUpstreamAnswer([error]) for _ in range(3)))
    both = [target(provider, tmp_path, name=name) for name in ("one", "two")]
    asked = {"model": "assistant", **ASKED[operation]}
    with pytest.raises(UpstreamError):
        await on.answer(json.dumps(asked).encode(), *both, operation=operation)
    assert [(event.outcome, event.usage_source) for event in on.journal.events] == [
        (Outcome.UPSTREAM_ERROR, UsageSource.NONE)
    ] * 3
