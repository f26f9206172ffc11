"""Security F14: one team filled the slots for draining abandoned answers, and other teams' were
booked at one token.
"""

from __future__ import annotations

from gateway.domain.pricing.tokens import UsageSource
from gateway.services.request.abandoned import DrainLimits
from tests.fakes import FakeTransport, FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, TAIL, Stage, body, leaves, piece
from tests.waiting import soon


async def test_a_team_leaves_a_drain_slot_and_undrained_answers_are_unknown() -> None:
    """A team's fourth answer of four slots is not drained. The provider bills it, so it stays
    unknown at its hold.
    """
    answers = [FakeUpstreamAnswer([piece("a"), TAIL, DONE]) for _ in range(4)]
    on = Stage(FakeTransport(list(answers)), limits=DrainLimits(answers=4, seconds=60, events=100))
    for _ in range(4):
        await leaves(on, body(stream=True), at=1, stalls=True)
    await soon(lambda: on.journal.events, "the one that found no place")
    (event,) = on.journal.events
    assert (event.usage_source, event.cost_nusd) == (UsageSource.UNKNOWN, None)
    assert event.held_nusd
    assert len(on.abandoned._tasks) == 3
    await on.abandoned.close()
