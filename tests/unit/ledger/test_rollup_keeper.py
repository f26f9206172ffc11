"""The job that refreshes roll-ups and expires holds: it survives the database and reports its
work.
"""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.rollups import RollupKeeper
from tests.fakes import FakeClock

log = structlog.get_logger()


def away() -> int:
    raise DatabaseUnavailable("Postgres is away.")


async def test_it_sums_up_before_it_lets_holds_go() -> None:
    """The expected cost is read from the sums: of yesterday's, it would be yesterday's."""
    done: list[str] = []

    def refresh() -> int:
        done.append("refresh")
        return 3

    def expire() -> int:
        done.append("expire")
        return 2

    with capture_logs() as logs:
        assert await RollupKeeper(refresh, expire, lambda: 1, FakeClock()).run_once() is True
    assert done == ["refresh", "expire"]
    assert [
        (line["event"], line.get("attempts")) for line in logs if line["log_level"] == "warning"
    ] == [("holds_expired", 2)]
    assert [(line["event"], line["journals"]) for line in logs if line["log_level"] == "error"] == [
        ("journals_given_up", 1)
    ]


async def test_a_database_that_is_away_does_not_end_it() -> None:
    """Reports are right without it; it must be there again when Postgres is."""
    assert await RollupKeeper(away, lambda: 0, lambda: 0, FakeClock()).run_once() is False
    assert await RollupKeeper(lambda: 0, away, lambda: 0, FakeClock()).run_once() is False


async def test_every_step_that_fails_is_in_the_log() -> None:
    """The first error ends the turn and hid those of the later steps, and a problem named no step:
    expired holds kept money away from a team while the log spoke of roll-ups.
    """

    def breaks() -> int:
        raise ZeroDivisionError

    with capture_logs() as logs:
        assert await RollupKeeper(lambda: 0, away, away, FakeClock()).run_once() is False
        with pytest.raises(ZeroDivisionError):
            await RollupKeeper(breaks, lambda: {}["gone"], away, FakeClock()).run_once()
    failures = [line for line in logs if line["event"] == "rollups_not_refreshed"]
    assert [(line["log_level"], line["step"]) for line in failures] == [
        ("warning", "expired holds"),
        ("warning", "lost journals"),
        ("error", "roll-ups"),
        ("error", "expired holds"),
        ("warning", "lost journals"),
    ]
    assert failures[0]["problem"] == "Postgres is away."
