"""Everything that asks a clock, at the moments at which calendars surprise programs.

One Postgres goes through them in order with its wall clock moved, as a ledger that lives for years
does. `make test-days` runs the other tests at these moments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime
from functools import partial

from sqlalchemy import text

from gateway.cli.checks.ledger import ledger_checks
from gateway.domain.budgets.budgets import BudgetPeriod, period_at
from gateway.domain.calendar_months import last_month
from gateway.domain.checks import Status
from gateway.reports.question import Question, ask
from gateway.services.ledger.partitions import PartitionKeeper
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_months
from tests.days.conftest import Calendar
from tests.storage.factories import event

ZONES = ("UTC", "Europe/Berlin", "America/Havana", "Pacific/Kiritimati", "Australia/Lord_Howe")


def _compared(moment: datetime) -> list[Question]:
    this, last = f"{moment:%Y-%m}", f"{last_month(moment.date()):%Y-%m}"
    return [ask(month=this, compare="previous"), ask(month=last, compare="year")]


def _monthly(moment: datetime) -> list[Question]:
    return [ask(month=f"{last_month(moment.date()):%Y-%m}"), ask(month=f"{moment:%Y-%m}")]


# The reports that read a clock, and what they are asked.
ASKED: dict[str, Callable[[datetime], list[Question]]] = {
    "spend": _compared,
    "overview": _compared,
    "forecast": _monthly,
    "gpu-bill": _monthly,
    "outlook": lambda _: [ask()],
    "spikes": lambda _: [ask()],
    "budgets": lambda _: [ask()],
    "months": lambda _: [ask()],
}


def _ensure_months(database: Database, first: date, last: date) -> Sequence[str]:
    return ensure_months(database, first=first, last=last)


async def test_a_ledger_lives_through_the_moment(calendar: Calendar, moment: datetime) -> None:
    """An attempt is booked in its own month, the coming months have partitions, and no check of
    the ledger warns falsely.
    """
    keeper = PartitionKeeper(
        partial(_ensure_months, calendar.writer), calendar, on_made=lambda: None
    )
    assert await keeper.run_once()
    Ledger(calendar.writer).write([event(at=moment)])
    with calendar.writer.begin() as connection:
        posted = connection.execute(
            text(
                "SELECT posted_period, tableoid::regclass::text FROM tollgate.usage_events "
                "WHERE occurred_at = :moment"
            ),
            {"moment": moment},
        ).one()
    month = moment.date().replace(day=1)
    assert tuple(posted) == (month, f"tollgate.usage_events_{month:%Y_%m}")
    with calendar.toolbox.open_admin() as database:
        found = {check.name: check.status for check in ledger_checks(calendar.toolbox, database)}
    assert found.items() >= {"partitions": Status.OK, "dead letters": Status.OK}.items()

    today = moment.date().isoformat()
    assert calendar.reports.run("spend", ask(first=today, last=today)).total["attempts"] >= 1


def test_reports_answer_at_the_moment(calendar: Calendar, moment: datetime) -> None:
    """The reports and pages that read a clock, for the month that runs, the one before and
    comparisons, fail on no day.
    """
    reports = calendar.reports
    for name, questions in ASKED.items():
        for question in questions(moment):
            assert reports.run(name, question).columns
    assert reports.month_status(last_month(moment.date())).month == last_month(moment.date())
    assert reports.team_page("payments", moment)


def test_a_budget_has_a_period_at_the_moment(calendar: Calendar, moment: datetime) -> None:
    """A moment belongs to exactly one period, and the next one begins when it ends, in zones that
    change their clocks at any hour.
    """
    for zone in ZONES:
        for period in BudgetPeriod:
            span = period_at(period, zone, moment)
            assert span.starts_at <= moment
            if span.ends_at is not None:
                assert moment < span.ends_at
                assert period_at(period, zone, span.ends_at).starts_at == span.ends_at
    for standing in calendar.reports.budgets(moment):
        assert standing.ends_at is None or standing.ends_at > moment
