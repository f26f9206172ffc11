"""Ledger 1.14: a 504 from a proxy in front of the upstream was booked as certainly free."""

from __future__ import annotations

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import RequestError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, body, once, stage


@pytest.mark.parametrize("status", [408, 499, 504, 520, 524])
async def test_it_is_unknown_at_its_hold(status: int) -> None:
    """The upstream behind the proxy may go on and bill, so zero would be a guess."""
    on = once(FakeUpstreamAnswer([b"<html>gateway time-out"], status=status))
    with pytest.raises(RequestError):
        await on.answer(body(max_tokens=50))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert on.event.held_nusd == on.journal.intents[0].event.held_nusd
    assert on.event.outcome is (
        Outcome.UPSTREAM_ERROR if status in (499, 520) else Outcome.UPSTREAM_TIMEOUT
    )


async def test_usage_in_its_body_is_believed() -> None:
    """An upstream's reported usage is no guess here either."""
    on = once(
        FakeUpstreamAnswer([b'{"usage":{"prompt_tokens":10,"completion_tokens":5}}'], status=504)
    )
    with pytest.raises(RequestError):
        await on.answer(body())
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 30_000)


@pytest.mark.parametrize("status", [408, 504, 520, 524])
async def test_another_deployment_is_tried(status: int) -> None:
    """The caller sees one answer; the ledger has both attempts, the first at its hold."""
    on = stage(FakeUpstreamAnswer([b"{}"], status=status), FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert answer.attempt.number == 2
    assert [event.cost_nusd for event in on.journal.events] == [None, 30_000]
