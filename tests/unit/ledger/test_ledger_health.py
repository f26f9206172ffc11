"""The checks on the ledger's figures: quiet while all is well, and a runbook for each problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.domain.checks import Check, Status
from gateway.domain.ledger.health import LedgerHealth, LedgerState, health_checks, state_checks
from gateway.errors import DatabaseUnavailable
from gateway.services.ledger.watch import LedgerWatch
from gateway.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]


def health(**changes: Any) -> LedgerHealth:
    return LedgerHealth(**{"journal_used_bytes": 10, "journal_max_bytes": 100} | changes)


def state(**changes: Any) -> LedgerState:
    well: dict[str, Any] = {
        "missing_partitions": (),
        "default_partition_rows": 0,
        "dead_letters": 0,
        "conflicting_events": 0,
        "attempts_last_hour": 1000,
        "unknown_last_hour": 5,
    }
    return LedgerState(**well | changes)


@pytest.mark.parametrize(
    ("found", "name", "status"),
    [
        (health_checks(health(journal_used_bytes=49)), "journal", Status.OK),
        (health_checks(health(journal_used_bytes=50)), "journal", Status.WARN),
        (health_checks(health(is_full=True)), "journal", Status.FAIL),
        (health_checks(health(is_gone=True, is_full=True)), "journal", Status.FAIL),
        (health_checks(health(journal_max_bytes=0)), "journal", Status.WARN),
        (
            health_checks(health(journal_room_bytes=72)),
            "journal",
            Status.OK,
        ),  # the ends of segments are never filled
        (health_checks(health(journal_room_bytes=51)), "journal", Status.OK),
        (health_checks(health(journal_room_bytes=50)), "journal", Status.WARN),
        (health_checks(health(journal_room_bytes=0)), "journal", Status.WARN),
        (health_checks(health(oldest_unsettled_s=899.0)), "unsettled attempts", Status.OK),
        (health_checks(health(oldest_unsettled_s=900.0)), "unsettled attempts", Status.WARN),
        (health_checks(health(writer_lag_s=59.0)), "writer", Status.OK),
        (health_checks(health(writer_lag_s=60.0)), "writer", Status.WARN),
        (health_checks(health(failing_since_s=1.0)), "writer", Status.WARN),
        (state_checks(state()), "unknown usage", Status.OK),
        (state_checks(state(unknown_last_hour=6)), "unknown usage", Status.WARN),
        (
            state_checks(state(attempts_last_hour=0, unknown_last_hour=0)),
            "unknown usage",
            Status.OK,
        ),
        (
            state_checks(state(missing_partitions=("usage_events_2027_01",))),
            "partitions",
            Status.WARN,
        ),
        (state_checks(state(default_partition_rows=1)), "partitions", Status.WARN),
        (state_checks(state(dead_letters=1)), "dead letters", Status.WARN),
        (state_checks(state(conflicting_events=1)), "conflicting events", Status.WARN),
        (state_checks(state(has_wrong_rollup=True)), "roll-up", Status.FAIL),
        (state_checks(state(has_wrong_rollup=False)), "roll-up", Status.OK),
    ],
)
def test_a_check_speaks_up_at_its_limit(
    found: tuple[Check, ...], name: str, status: Status
) -> None:
    """Each limit is met exactly, and no other check is disturbed by it."""
    assert {
        check.name: check.status
        for check in found
        if check.name == name or check.status is not Status.OK
    } == {name: status}
    for check in found:
        assert bool(check.remedy) == (check.status is not Status.OK), check.name


def test_every_runbook_that_a_check_names_is_there() -> None:
    """Someone is woken at night and follows it."""
    all_wrong = (
        *health_checks(health(is_full=True, oldest_unsettled_s=1e4, writer_lag_s=1e4)),
        *state_checks(
            state(
                unknown_last_hour=9, default_partition_rows=1, dead_letters=1, conflicting_events=1
            )
        ),
    )
    named = [check.remedy.rpartition("see ")[2] for check in all_wrong if "see " in check.remedy]
    assert len(named) == 7
    for path in named:
        assert (ROOT / path).is_file(), path


async def test_the_watch_reports_its_last_check_or_its_failure() -> None:
    """A figure from before the outage would pass as a current one."""
    answers: list[LedgerState | DatabaseUnavailable] = [
        state(dead_letters=1),
        DatabaseUnavailable("It is away."),
    ]
    metrics = Metrics()

    def read() -> LedgerState:
        answer = answers.pop(0)
        if isinstance(answer, DatabaseUnavailable):
            raise answer
        return answer

    watch = LedgerWatch(read, on_state=metrics.note_state)
    assert [check.status for check in watch.checks()] == [Status.UNKNOWN]
    await watch.run_once()
    assert Status.WARN in [check.status for check in watch.checks()]
    await watch.run_once()
    assert [(check.status, check.finding) for check in watch.checks()] == [
        (Status.UNKNOWN, "It is away.")
    ]


def test_metrics_ask_for_health_when_they_are_read() -> None:
    """A gauge that is only set when something happens would say nothing while nothing happens."""
    metrics = Metrics()
    current = [health(journal_used_bytes=7, writer_lag_s=2.5)]
    metrics.watch_health(lambda: current[0])
    assert metrics.registry.get_sample_value("tollgate_journal_used_bytes") == 7
    current[0] = health(journal_used_bytes=8, oldest_unsettled_s=3.0)
    values = {
        name: metrics.registry.get_sample_value(f"tollgate_{name}")
        for name in ("journal_used_bytes", "journal_oldest_unsettled_seconds", "writer_lag_seconds")
    }
    assert values == {
        "journal_used_bytes": 8,
        "journal_oldest_unsettled_seconds": 3.0,
        "writer_lag_seconds": 0.0,
    }


def test_state_reaches_the_metrics() -> None:
    """The alerts on partitions and on unknown usage read these gauges; no process counts attempts
    that a killed gateway left.
    """
    metrics = Metrics()
    metrics.note_state(
        state(
            default_partition_rows=4,
            missing_partitions=("a", "b"),
            attempts_last_hour=74,
            unknown_last_hour=3,
        )
    )
    assert metrics.registry.get_sample_value("tollgate_last_hour_attempts") == 74
    assert metrics.registry.get_sample_value("tollgate_last_hour_unknown_attempts") == 3
    assert metrics.registry.get_sample_value("tollgate_default_partition_rows") == 4
    assert metrics.registry.get_sample_value("tollgate_missing_partitions") == 2
