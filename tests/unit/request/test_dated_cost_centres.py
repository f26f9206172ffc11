"""A team that moves to another cost centre: its events follow the day without a new policy."""

from __future__ import annotations

from datetime import date, timedelta

from gateway.domain.policy.cost_centres import CostCentreShare
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import WHOLE, body, stage


async def test_an_event_has_the_cost_centre_of_its_day() -> None:
    """The move happens at midnight UTC, while the same snapshot serves."""
    tomorrow = factories.NOW.date() + timedelta(days=1)
    moving = factories.team(
        cost_centre=(CostCentreShare(name="CC-1"), CostCentreShare(name="CC-2", start=tomorrow))
    )
    snapshot = factories.snapshot(document=factories.policy(teams={"payments": moving}))
    last_ms = factories.NOW.replace(hour=23, minute=59, second=59, microsecond=999_000)
    moments = (factories.NOW, last_ms, last_ms + timedelta(milliseconds=1), factories.NOW)
    on = stage(*(FakeUpstreamAnswer([WHOLE]) for _ in moments))
    service = on.service()
    for number, at in enumerate(moments):
        request = factories.request(
            factories.read(body()), request_id=factories.request_id(at, random=number)
        )
        await service.answer(
            request,
            snapshot,
            terms=factories.terms(snapshot, request),
            received_s=on.clock.monotonic(),
        )
    assert [(event.cost_centre, event.occurred_at) for event in on.journal.events] == [
        ("CC-1", moments[0]),
        ("CC-1", moments[1]),
        ("CC-2", moments[2]),
        ("CC-1", moments[3]),
    ]
    assert len(snapshot.decisions) == 2  # one a day, not one a request


async def test_a_fixed_cost_centre_needs_no_day() -> None:
    """Nearly every team: its requests share one decision and its terms over midnight."""
    snapshot = factories.snapshot()
    team = snapshot.policy.policy.teams["payments"]
    terms = [
        snapshot.terms_of(team, project=None, key_id="k", day=day)
        for day in (None, date(2026, 11, 20), date(2026, 11, 21))
    ]
    assert (len(snapshot.terms), terms[0]) == (1, terms[2])
