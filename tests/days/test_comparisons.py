"""A running month against the one before, through every door at several moments: the same figures,
which are those of a sum over the events in Python.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from dashboard.shell.changes import compared_question
from dashboard.shell.choices import Choices
from dashboard.shell.period import Period
from gateway.domain.calendar_months import last_month, next_month
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.reports.question import ask
from gateway.reports.report import Dataset, Report
from gateway.reports.statements.statement import ask_statement
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.months import MonthStore
from tests.days.conftest import Calendar
from tests.storage.factories import event

JANUARY, FEBRUARY = date(2027, 1, 1), date(2027, 2, 1)
MOMENTS = {
    "27 complete days": datetime(2027, 2, 28, 23, 30, tzinfo=UTC),
    "more days than February has": datetime(2027, 3, 31, 12, tzinfo=UTC),
    "five complete hours": datetime(2027, 11, 1, 5, 40, tzinfo=UTC),
    "27 complete days in November": datetime(2027, 11, 28, 12, tzinfo=UTC),
    "a leap day": datetime(2028, 2, 29, 12, tzinfo=UTC),
    "no complete hour": datetime(2028, 3, 1, 0, 1, tzinfo=UTC),
}
TEAMS = {"payments": "CC-1207", "search": "CC-0042", "ghosts": "CC-9"}
COLUMNS = ("total_usd", "previous_usd", "change_usd")
_ACCEPTED = dict.fromkeys(("unpartitioned-events", "unreconciled-providers"), "a test")
Figures = dict[str, tuple[Decimal, Decimal, Decimal]]


@dataclass
class Written:
    """The events of a ledger, each with the month that it was posted to."""

    events: list[tuple[UsageEvent, datetime, date]] = field(default_factory=list)

    def sum_of(
        self,
        team: str | None,
        month: date,
        first: datetime | None = None,
        days: timedelta = timedelta(),
    ) -> Decimal:
        """Return the cost that is posted to a month: all of it, or of the moments of some time."""
        nusd = sum(
            one.cost_nusd or 0
            for one, at, posted in self.events
            if team in (None, one.team)
            and posted == month
            and (first is None or first <= at < first + days)
        )
        return usd_from_nusd(nusd)

    def expected(self, moment: datetime) -> Figures:
        """Return the total, the earlier amount and the change of each team and of all."""
        found = {}
        first = moment.replace(day=1, hour=0, minute=0)
        midnight = moment.replace(hour=0, minute=0)
        length = midnight - first or moment.replace(minute=0) - first
        month, before = first.date(), last_month(first.date())
        begin = datetime(before.year, before.month, 1, tzinfo=UTC)
        is_short = before + length > next_month(before)
        for team in (None, *TEAMS):
            now = self.sum_of(team, month, first, length)
            earlier = (
                self.sum_of(team, before) if is_short else self.sum_of(team, before, begin, length)
            )
            found[team or "total"] = (self.sum_of(team, month), earlier, now - earlier)
        return found


@pytest.fixture(scope="module")
def written() -> Written:
    """The events that this module wrote so far."""
    return Written()


def write(calendar: Calendar, written: Written, moments: Sequence[datetime], rng: Any) -> None:
    """Write an event at each moment; one of a closed month is posted to the oldest open one."""
    oldest_open = FEBRUARY if written.events else JANUARY
    begin = len(written.events)
    made = []
    for number, at in enumerate(moments, begin):
        team = rng.choice([*TEAMS])
        one = event(
            number,
            at=at,
            team=team,
            cost_centre=TEAMS[team],
            model=rng.choice(["m-1", "m-2"]),
            cost_nusd=rng.randrange(10**10),
            lines=(),
        )
        made.append(one)
        written.events.append((one, at, max(at.date().replace(day=1), oldest_open)))
    assert Ledger(calendar.writer).write(made) == len(made)


@pytest.mark.parametrize("name", MOMENTS)
def test_every_door_has_the_same_change(
    calendar: Calendar, written: Written, name: str, rng: Any
) -> None:
    """Finance asks the command line, a lead the page, an owner the statement: one answer."""
    moment = MOMENTS[name]
    calendar.move_to(moment)
    if not written.events:  # January, which is closed; late facts of it are of February
        days = [datetime(2027, 1, 1, 3, tzinfo=UTC) + timedelta(days=n) for n in range(31)]
        write(calendar, written, days, rng)
        with calendar.toolbox.open_admin() as database:
            MonthStore(database).close(JANUARY, billed=(), accepted=_ACCEPTED)
    moments = [
        moment.replace(second=0) - timedelta(minutes=rng.randrange(75 * 24 * 60)) for _ in range(90)
    ]
    # Around midnight and the full hour, on both sides.
    edges = [moment.replace(hour=0, minute=0), moment.replace(minute=0)]
    moments += [one + timedelta(minutes=n) for one in edges for n in (-1, 0)]
    write(calendar, written, moments, rng)
    expected = written.expected(moment)
    found = dict(answers(calendar, f"{moment:%Y-%m}"))
    for door, figures in found.items():
        assert figures.items() <= expected.items(), door
        assert len(figures) in (1, len(expected)), door
    centres = statements(calendar, f"{moment:%Y-%m}")
    assert {TEAMS[team]: of for team, of in expected.items() if team in TEAMS} == centres


def answers(calendar: Calendar, month: str) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of a month by each door: by team and in total, or in total alone."""
    reports = calendar.reports
    by_team = ask(month=month, by=["team"], compare="previous")
    yield "report spend", figures_of(reports.run("spend", by_team))
    yield (
        "the same dates",
        figures_of(reports.run("spend", ask(month=month, by=["team"], compare="month"))),
    )
    yield "report overview", figures_of(reports.run("overview", by_team))
    yield "movers", figures_of(reports.run("movers", ask(month=month, by=["team"])))
    yield "why", figures_of(reports.run("spend", ask(month=month, by=["team"], why=True)))
    of_models = reports.run("spend", ask(month=month, by=["team", "model"], why=True))
    yield "why by team and model", figures_of(of_models)
    yield "why by default", figures_of(reports.run("spend", ask(month=month, why=True)))
    options = ("--month", month, "--by", "team", "--compare", "previous", "--format", "json")
    shown = json.loads(calendar.ok("report", "spend", *options), parse_float=Decimal)
    yield "command line", figures_of_rows(shown["rows"], shown["total"])
    choices = Choices(dataset=Dataset.REAL, period=Period(month=month), where={})
    asked = compared_question(choices, by=("team",))
    assert asked is not None
    yield "a page", figures_of(reports.run("spend", asked))
    for team in TEAMS:
        page = reports.team_page(team, calendar.now())
        yield f"page of {team}", {team: amounts(page.spent.total)}


def statements(calendar: Calendar, month: str) -> Figures:
    """Return the figures of the statements by cost centre."""
    found = {}
    with calendar.reports.statements(ask_statement(month=month)) as opened:
        for name in TEAMS.values():
            one = opened.of(name)
            assert one.total is not None
            assert one.compared_total is not None
            assert one.previous_total is not None
            changes = [line.compared - line.previous for line in one.by_team]  # type: ignore[operator]
            assert sum(changes) == one.compared_total - one.previous_total
            found[name] = (one.total, one.previous_total, sum(changes, Decimal(0)))
    return found


def figures_of(report: Report) -> Figures:
    """Return the figures of a report by team, and its total."""
    return figures_of_rows(report.records(), report.total)


def figures_of_rows(rows: Sequence[Any], total: Any) -> Figures:
    """Return the sums of rows by team, and the total."""
    found: dict[str, tuple[Decimal, Decimal, Decimal]] = {}
    for row in rows:
        so_far = found.get(row["team"], (Decimal(0),) * 3)
        added = [one + other for one, other in zip(so_far, amounts(row), strict=True)]
        found[row["team"]] = (added[0], added[1], added[2])
    missing = dict.fromkeys({*TEAMS} - {*found}, (Decimal(0),) * 3)
    return {**missing, **found, "total": amounts(total)}


def amounts(row: Any) -> tuple[Decimal, Decimal, Decimal]:
    """Return the cells of a row."""
    total, previous, change = (Decimal(str(row[name])) for name in COLUMNS)
    return total, previous, change
