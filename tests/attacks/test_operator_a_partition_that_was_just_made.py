"""`/readyz` warned of a missing partition for minutes after the gateway had made it, and `db
upgrade` of a policy that was there.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.domain.calendar_months import last_partitioned_month
from gateway.domain.checks import Status
from gateway.main import SystemClock, build_toolbox
from gateway.services.ledger.partitions import PartitionKeeper
from gateway.services.ledger.watch import LedgerWatch
from gateway.settings import Settings
from gateway.storage.ledger.state import read_state
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.partitions import ensure_months
from tests.cli.conftest import Cli
from tests.policy.documents import EXAMPLE
from tests.waiting import soon


def test_the_ledger_is_looked_at_again_after_a_partition_was_made(database: Database) -> None:
    """A warning about a mended fault sends an operator to a runbook for nothing."""
    today = datetime.now(UTC).date()
    until = last_partitioned_month(today)
    with database.begin() as connection:
        names = connection.execute(
            text("SELECT tablename FROM pg_tables WHERE tablename LIKE 'usage_events_2%'")
        )
        connection.execute(text(f"DROP TABLE tollgate.{max(names.scalars())}"))

    def ensure(first: date, last: date) -> list[str]:
        return ensure_months(database, first=first, last=last)

    async def story() -> list[Status]:
        watch = LedgerWatch(
            lambda: read_state(database, partitions_until=until), on_state=lambda _: None
        )
        keeper = PartitionKeeper(ensure, SystemClock(), on_made=watch.look_again)

        def partitions() -> Status:
            (found,) = [check for check in watch.checks() if check.name in ("partitions", "ledger")]
            return found.status

        running = asyncio.create_task(watch.run())
        await soon(lambda: partitions() is Status.WARN, "the warning")
        assert await keeper.run_once()
        await soon(lambda: partitions() is Status.OK, "its end")
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return [partitions()]

    assert asyncio.run(story()) == [Status.OK]


@pytest.mark.parametrize("has_policy", [False, True])
def test_the_next_step_is_a_policy_only_where_there_is_none(
    database_url: str, tmp_path: Path, has_policy: bool
) -> None:
    """A person who follows the hint would apply an old file over the policy in force."""
    cli = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=database_url)))
    assert "Next: tollgate policy apply FILE" in cli("db", "upgrade").err
    if has_policy:
        file = tmp_path / "policy.yaml"
        file.write_text(EXAMPLE)
        cli.ok("policy", "apply", str(file), "--yes")
        assert "policy apply" not in cli("db", "upgrade").err


def test_doctor_names_every_purpose_of_a_shared_login(database_url: str, tmp_path: Path) -> None:
    """With one address for all, the finding named the last purpose alone."""
    cli = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=database_url)))
    cli.ok("db", "upgrade")
    (tmp_path / "home" / "logins").unlink()
    out = cli("doctor").out
    assert "gateway, reports, admin, finance" in " ".join(out.split()), out
