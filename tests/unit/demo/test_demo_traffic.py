"""The demo organisation's events: exact in number, repeatable, settled like real attempts, and with
the stories that they are to show.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from itertools import pairwise

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.pricing import cost_nusd
from gateway.domain.pricing.settlement import Evidence, settle
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import BadUsage
from gateway.services.demo.catalogue import DESTINATIONS, WORKS
from gateway.services.demo.hours import SLICE_EVENTS, slices_of
from gateway.services.demo.organisation import (
    MOST_TEAMS,
    OrganisationSize,
    calendar_of,
    projects_of,
)
from tests.unit.demo.demo_traffic import LAST, SIZE, all_events, traffic


@pytest.mark.parametrize(
    "size",
    [
        SIZE,
        OrganisationSize(1, 1, 1),
        OrganisationSize(1, 777, 2),
        OrganisationSize(2, 5_000, 300),
        OrganisationSize(14, 3_000, 7),
    ],
)
def test_the_number_of_events_is_exact(size: OrganisationSize) -> None:
    """A benchmark divides by `--events`."""
    made = traffic(size)
    hours = made.hours()
    assert sum(hour.events for hour in hours) == size.events
    assert [hour for one in slices_of(hours) for hour in one] == hours
    keys = {event.key for one in slices_of(hours) for event in made.events(one)}
    assert len(keys) == size.events


@pytest.mark.parametrize("events", [500, 60_000, 700_000])
def test_a_slice_has_whole_days_or_a_part_of_one(events: int) -> None:
    """The sums of a day wait for its last slice; a slice of many parts of days would delay them."""
    slices = list(slices_of(traffic(OrganisationSize(1, events, 5)).hours()))
    for one in slices:
        assert len(one) == 1 or sum(hour.events for hour in one) <= SLICE_EVENTS
    for one, following in pairwise(slices):
        if one[-1].begins.date() == following[0].begins.date():
            assert one[0].begins.date() == one[-1].begins.date()


def test_a_slice_is_the_same_whoever_makes_it_and_whenever() -> None:
    """Two processes make the slices, and a run that was stopped makes the rest."""
    hours = traffic().hours()[100:130]
    alone = traffic().events(hours)
    assert alone == [event for hour in hours for event in traffic().events([hour])]
    keys = {event.key for event in alone}
    assert alone == [event for event in all_events() if event.key in keys]
    other = traffic(SIZE._replace(seed=8)).events(hours)
    assert {event.request_id for event in alone}.isdisjoint(event.request_id for event in other)


def test_every_event_is_settled_as_a_real_attempt_would_be() -> None:
    """Answers are settled once and drawn often; no figure may differ from its own settlement."""
    made = traffic()
    seen: set[tuple[Outcome, str]] = set()
    for event in all_events():
        price = next(
            dated.price
            for dated in reversed(made.prices[event.deployment])
            if dated.since <= event.occurred_at
        )
        assert event.price_id == price.price_id
        evidence = {
            UsageSource.PROVIDER: Evidence(final=event.usage, was_served=True),
            UsageSource.DERIVED: Evidence(running=event.usage, was_served=True),
            UsageSource.NONE: Evidence(was_served=False),
            UsageSource.UNKNOWN: Evidence(was_served=True),
        }[event.usage_source]
        # The hold is above every cost; without a cost it is the event's own.
        held = 10**15 if event.cost_nusd is not None else event.held_nusd
        assert held
        due = settle(evidence, price=price, held_nusd=held)
        found = (event.usage, event.usage_source, event.lines, event.cost_nusd, event.held_nusd)
        assert found == (due.usage, due.source, due.lines, due.cost_nusd, due.held_nusd)
        assert event.cost_nusd == (cost_nusd(event.lines) if due.cost_nusd is not None else None)
        assert not event.is_suspect
        seen.add((event.outcome, event.deployment))
    assert {outcome for outcome, _ in seen} == {
        Outcome.OK,
        Outcome.CLIENT_GONE,
        Outcome.UPSTREAM_ERROR,
        Outcome.UPSTREAM_CUT,
        Outcome.UPSTREAM_TIMEOUT,
    }
    assert {deployment for _, deployment in seen} == DESTINATIONS.keys()


def test_events_lie_in_their_hours_and_attempts_in_order() -> None:
    """The id holds the time; a second attempt begins after the first, elsewhere."""
    events = all_events()
    moments = [event.occurred_at for event in events]
    assert moments == sorted(moments)
    assert moments[0].date() >= date(2026, 9, 1)
    assert moments[-1].date() <= LAST
    first = {event.request_id: event for event in events if event.attempt == 1}
    second = [event for event in events if event.attempt == 2]
    assert second
    for event in second:
        before = first[event.request_id]
        assert before.outcome in (Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_TIMEOUT)
        assert event.started_at > before.started_at
        assert event.deployment != before.deployment
    assert all(event.is_demo and not event.holds for event in events)
    assert {event.request_id.version for event in events} == {7}


def test_the_spike_has_one_key_that_explains_it() -> None:
    """The spike question is answered by a day, a team, a key and a model."""
    calendar = traffic().calendar
    days = Counter(event.occurred_at.date() for event in all_events())
    usual = days[date.fromordinal(calendar.spike.toordinal() - 7)]
    assert days[calendar.spike] > 1.3 * usual
    on_the_day = [event for event in all_events() if event.occurred_at.date() == calendar.spike]
    ((_, key_id, _), most), *_ = Counter(
        (event.team, event.key_id, event.model) for event in on_the_day
    ).most_common(1)
    assert most > 0.3 * len(on_the_day)
    assert {
        event.key_id for event in all_events() if event.tags.get("feature") == "runaway-evals"
    } == {key_id}


def test_weekends_are_quiet_and_the_incident_fails_over() -> None:
    """A history without them would teach the wrong forecast."""
    calendar = traffic().calendar
    weekdays = Counter(event.occurred_at.weekday() for event in all_events())
    assert weekdays[6] < 0.6 * weekdays[2]
    failed = Counter(
        event.occurred_at.date()
        for event in all_events()
        if event.deployment == "mini-us" and event.outcome is not Outcome.OK
    )
    assert failed.most_common(1)[0][0] == calendar.incident


def test_teams_differ_in_size_and_none_leaves_its_regions() -> None:
    """The largest of sixty teams has many times the traffic of the smallest."""
    projects = projects_of(OrganisationSize(6, 1, 60))
    traffic_of: Counter[str] = Counter()
    for project in projects:
        traffic_of[project.team] += round(project.weight * 10**6)
    amounts = sorted(traffic_of.values())
    assert len(amounts) == 60
    assert amounts[-1] > 15 * amounts[0]
    assert len({project.key_id for project in projects}) == len(projects)
    assert {work.name for work in WORKS} == {project.name for project in projects}
    for project in projects:
        if project.data_class == "confidential":
            regions = {DESTINATIONS[name].region for name in project.work.route.order}
            assert regions <= {"eu", "eu-de", "eu-fr", "eu-central-1"}


@pytest.mark.parametrize(
    "size",
    [
        OrganisationSize(0, 1, 1),
        OrganisationSize(1, 0, 1),
        OrganisationSize(1, 1, MOST_TEAMS + 1),
        OrganisationSize(99, 1, 1),
    ],
)
def test_a_size_beyond_the_limits_is_named(size: OrganisationSize) -> None:
    """The message names the option and its limits."""
    with pytest.raises(BadUsage, match=r"--(months|events|teams) is a number from 1 to"):
        size.check()


@pytest.mark.parametrize("last", [date(2026, 1, 1), date(2026, 2, 28), date(2026, 11, 30)])
def test_a_history_ends_with_its_last_day(last: date) -> None:
    """Its first day begins a month, also over the end of a year."""
    calendar = calendar_of(OrganisationSize(13, 1, 1), last=last)
    assert calendar.first.day == 1
    months = (last.year - calendar.first.year) * 12 + last.month - calendar.first.month + 1
    assert months == 13
    assert calendar.first <= calendar.incident < calendar.spike <= calendar.last
    assert SLICE_EVENTS > 0
