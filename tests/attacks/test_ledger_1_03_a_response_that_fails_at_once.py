"""Ledger 1.3: `response.created` and `response.failed` in one read were a 502 without failover,
booked `ok`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import UpstreamError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import once, piece, rest_of, stage

USAGE = {"input_tokens": 10, "output_tokens": 0}
RESPONSES = frozenset({Operation.RESPONSES})


def event(kind: str, **response: Any) -> bytes:
    data = {
        "type": kind,
        "response": {"id": "r-1", "model": "m-1", "status": kind.partition(".")[2], **response},
    }
    return f"event: {kind}\ndata: ".encode() + json.dumps(data).encode() + b"\n\n"


FAILED = {"error": {"code": "server_error", "message": "no"}}
ASKED = json.dumps({"model": "assistant", "input": "x", "stream": True}).encode()


def deployment(name: str) -> Any:
    return factories.deployment(name, operations=RESPONSES)


@pytest.mark.parametrize("is_one_read", [True, False])
async def test_the_next_deployment_answers(is_one_read: bool) -> None:
    """A fast refusal comes in one segment, a slow one in two; only the first case was a defect."""
    pieces = [event("response.created"), event("response.failed", **FAILED)]
    good = [
        event("response.created"),
        event("response.completed", usage=USAGE, output=[{"type": "message"}]),
    ]
    on = stage(
        FakeUpstreamAnswer([b"".join(pieces)] if is_one_read else pieces), FakeUpstreamAnswer(good)
    )
    if not is_one_read:  # the first event has reached the caller, so its stream ends with the error
        sent = await rest_of(
            await on.answer(ASKED, deployment("failed"), operation=Operation.RESPONSES)
        )
        assert b"response.failed" in sent
        assert [one.outcome for one in on.journal.events] == [Outcome.UPSTREAM_ERROR]
        return
    answer = await on.answer(
        ASKED, deployment("failed"), deployment("good"), operation=Operation.RESPONSES
    )
    assert b"response.completed" in await rest_of(answer)
    assert [(one.deployment, one.outcome) for one in on.journal.events] == [
        ("failed", Outcome.UPSTREAM_ERROR),
        ("good", Outcome.OK),
    ]


async def test_its_own_usage_is_booked() -> None:
    """An upstream's reported usage is believed, even if it failed."""
    on = once(
        FakeUpstreamAnswer(
            [event("response.created") + event("response.failed", usage=USAGE, **FAILED)]
        )
    )
    with pytest.raises(UpstreamError):
        await on.answer(ASKED, deployment("failed"), operation=Operation.RESPONSES)
    assert (on.event.usage_source, on.event.usage.input_tokens) == (UsageSource.PROVIDER, 10)


async def test_a_chat_that_fails_at_once_is_tried_elsewhere_too() -> None:
    """When its engine is gone, vLLM answers 200, then sends the error, then `[DONE]`."""
    died = b'data: {"error":{"message":"gone","code":500}}\n\ndata: [DONE]\n\n'
    on = stage(FakeUpstreamAnswer([died]), FakeUpstreamAnswer([piece("a"), b"data: [DONE]\n\n"]))
    asked = json.dumps({"model": "assistant", "messages": [], "stream": True}).encode()
    await rest_of(await on.answer(asked, factories.deployment("one"), factories.deployment("two")))
    assert [one.outcome for one in on.journal.events] == [Outcome.UPSTREAM_ERROR, Outcome.OK]
