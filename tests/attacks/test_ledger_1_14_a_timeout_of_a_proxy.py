"""Ledger 1.14: a 504 from a proxy in front of the upstream was booked as certainly free."""

from __future__ import annotations

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import RequestError
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, body, once, stage


@pytest.mark.parametrize("status", [408, 499, 502, 504, 520, 522, 524])
async def test_it_is_unknown_at_its_hold(status: int) -> None:
    """The upstream behind the proxy may go on and bill, so zero would be a guess."""
    on = once(FakeUpstreamAnswer([b"<html>gateway time-out"], status=status))
    with pytest.raises(RequestError):
        await on.answer(body(max_tokens=50))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert on.event.held_nusd == on.journal.intents[0].event.held_nusd
    assert on.event.outcome is (
        Outcome.UPSTREAM_ERROR if status in (499, 502, 520, 522) else Outcome.UPSTREAM_TIMEOUT
    )


async def test_usage_in_its_body_is_believed() -> None:
    """An upstream's reported usage is no guess here either."""
    on = once(
        FakeUpstreamAnswer([b'{"usage":{"prompt_tokens":10,"completion_tokens":5}}'], status=504)
    )
    with pytest.raises(RequestError):
        await on.answer(body())
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.PROVIDER, 30_000)


@pytest.mark.parametrize("status", [408, 502, 504, 520, 522, 524])
async def test_another_deployment_is_tried(status: int) -> None:
    """The caller sees one answer; the ledger has both attempts, the first at its hold."""
    on = stage(FakeUpstreamAnswer([b"{}"], status=status), FakeUpstreamAnswer([WHOLE]))
    answer = await on.answer(body(), factories.deployment("one"), factories.deployment("two"))
    assert answer.attempt.number == 2
    assert [event.cost_nusd for event in on.journal.events] == [None, 30_000]


NGINX = (
    b"<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1>"
    b"</center><hr><center>nginx/1.25</center></body></html>"
)


@pytest.mark.parametrize(
    "page",
    [
        NGINX,
        b"",
        b"Bad Gateway",
        b"null",
        b'{"error":null}',
        b'{"message":"An invalid response was received from the upstream server"}',
    ],
)
async def test_a_502_of_a_proxy_is_unknown_at_its_hold(page: bytes) -> None:
    """The server behind it may have had the request: three attempts were booked at zero."""
    on = once(FakeUpstreamAnswer([page], status=502))
    with pytest.raises(RequestError):
        await on.answer(body(max_tokens=50))
    assert (on.event.usage_source, on.event.cost_nusd) == (UsageSource.UNKNOWN, None)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (502, b'{"error":{"message":"Provider returned error","code":502}}'),
        (502, b'{"error":"no backend"}'),
        (502, b'[{"error":{"code":502,"status":"UNAVAILABLE"}}]'),
        (502, b'{"object":"error","message":"down","code":502}'),
        (500, NGINX),
        (503, NGINX),
        (521, NGINX),
        (523, NGINX),
    ],
)
async def test_an_error_of_the_provider_itself_stays_free(status: int, text: bytes) -> None:
    """It was made instead of an answer; and without a connection nothing was sent."""
    on = once(FakeUpstreamAnswer([text], status=status))
    with pytest.raises(RequestError):
        await on.answer(body(max_tokens=50))
    assert (on.event.usage_source, on.event.held_nusd) == (UsageSource.NONE, None)
