"""Ledger 1.16: a stream whose last event lacks its blank line was reported as cut, after the
whole answer.
"""

from __future__ import annotations

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.wire.sse import EventSplitter
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import TAIL, body, piece, rest_of, stage


@pytest.mark.parametrize(
    "last", [b"data: [DONE]\n", b"data: [DONE]", b"data: [DONE]\r\n", b"data: [DONE]\r\r"]
)
async def test_the_answer_is_whole(last: bytes) -> None:
    """The usage was final and was charged; an error event after it makes the caller ask, and
    pay, again.
    """
    on = stage(FakeUpstreamAnswer([piece("a"), piece("b"), TAIL + last]))
    sent = await rest_of(await on.answer(body(stream=True), factories.deployment()))
    assert b"error" not in sent
    assert sent.rstrip().endswith(b"data: [DONE]")
    assert (on.event.outcome, on.event.usage.output_tokens) == (Outcome.OK, 2)


async def test_a_usage_without_its_blank_line_is_metered() -> None:
    """The incomplete line may contain the usage."""
    on = stage(FakeUpstreamAnswer([piece("a"), piece("b"), TAIL.rstrip()]))
    await rest_of(await on.answer(body(stream=True), factories.deployment()))
    assert on.event.usage.output_tokens == 2


async def test_half_an_event_is_still_a_cut() -> None:
    """Only a complete JSON text counts as an event."""
    on = stage(FakeUpstreamAnswer([piece("a"), piece("b")[:-20]]))
    sent = await rest_of(await on.answer(body(stream=True), factories.deployment()))
    assert on.event.outcome is Outcome.UPSTREAM_CUT
    assert b'"error"' in sent


def test_an_unterminated_event_is_returned_once() -> None:
    """A second call must not charge the rest twice."""
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\ndata: 2") == [b"data: 1\n\n"]
    assert (splitter.end(), splitter.end()) == (b"data: 2\n\n", b"")
