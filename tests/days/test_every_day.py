"""Everything that asks a clock, at the moments at which calendars surprise programs.

One Postgres goes through them in order with its wall clock moved, as a ledger that lives for years
does. `make test-days` runs the other tests at these moments.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.cli.checks.ledger import ledger_checks
from gateway.composition import toolbox_of
from gateway.domain.budgets.budgets import BudgetPeriod, period_at
from gateway.domain.calendar_months import last_month
from gateway.domain.checks import Status
from gateway.reports import Question, Reports, ask
from gateway.services.ledger.partitions import PartitionKeeper
from gateway.settings import Settings
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from gateway.storage.postgres.partitions import ensure_months
from tests.days.moments import MOMENTS
from tests.days.shifted_clock import ShiftedClock
from tests.policy.documents import ALLOWED
from tests.postgres import home_of_server
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


class Calendar:
    """A command line and a Postgres that share a wall clock; the command line's stands still."""

    reports: Reports

    def __init__(self, home: Path, url: str, shifted: ShiftedClock) -> None:
        self.moment, self._shifted = datetime.now(UTC), shifted
        settings = Settings(home=home, database_url=url)
        self.toolbox = toolbox_of(settings, clock=self, serve=lambda *_: None)
        self.writer = Database(url, role="tollgate_gateway")

    def now(self) -> datetime:
        """Return the moment."""
        return self.moment

    monotonic = staticmethod(time.perf_counter)

    def move_to(self, moment: datetime) -> None:
        """Set both clocks. The command line's is a little behind, as any second clock is."""
        self._shifted.move_to(moment + timedelta(milliseconds=1))
        self.moment = moment

    def ok(self, *arguments: str) -> str:
        """Run a command that must succeed; return its output."""
        ran = CliRunner().invoke(build_app(self.toolbox), list(arguments))
        assert ran.exit_code == 0, (arguments, ran.output, ran.exception)
        return ran.stdout


@pytest.fixture(scope="module")
def calendar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calendar]:
    """A ledger with a policy that has every kind of budget; it begins at the first moment."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to build the shifted clock with")
    with pytest.MonkeyPatch.context() as patch, home_of_server() as home:
        shifted = ShiftedClock(home)
        shifted.move_to(next(iter(MOMENTS.values())))
        patch.syspath_prepend(shifted.packages)
        with EmbeddedPostgres(home) as server:
            folder = tmp_path_factory.mktemp("calendar")
            made = Calendar(folder / "home", server.start(), shifted)
            made.move_to(next(iter(MOMENTS.values())))
            (folder / "policy.yaml").write_text(ALLOWED)
            made.ok("db", "upgrade")
            made.ok("policy", "apply", str(folder / "policy.yaml"), "--yes")
            with made.toolbox.open_reports() as made.reports:
                yield made
            made.writer.close()


@pytest.fixture(params=MOMENTS, ids=lambda name: name.replace(" ", "-"))
def moment(request: pytest.FixtureRequest, calendar: Calendar) -> datetime:
    """One of the moments, on every clock."""
    calendar.move_to(MOMENTS[request.param])
    return calendar.moment


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
    with calendar.toolbox.open_stores() as stores:
        found = {check.name: check.status for check in ledger_checks(calendar.toolbox, stores)}
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
