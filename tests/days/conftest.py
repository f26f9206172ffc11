"""A ledger whose Postgres and command line have a wall clock that the tests move."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.composition import toolbox_of
from gateway.reports.reports import Reports
from gateway.settings import Settings
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.days.moments import MOMENTS
from tests.days.shifted_clock import ShiftedClock
from tests.policy.documents import ALLOWED
from tests.postgres import home_of_server


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
        shifted.write_postgres(home / "packages")
        patch.syspath_prepend(home / "packages")
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
