"""Stored GPU hours: observed once, at the rate then in force, by any worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.selfhost import BilledHours, GpuRate
from gateway.storage.deployments.engine_samples import KEPT, EngineSamples
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from gateway.wire.policy import to_yaml
from tests import factories

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR_MS = 3_600_000
GPU = GpuRate(
    type="H200",
    count=2,
    usd_per_gpu_hour=Decimal("3.10"),
    input_tok_per_s=Decimal(1000),
    output_tok_per_s=Decimal(100),
    target_utilisation=Decimal("0.5"),
)


@pytest.fixture
def samples(database_url: str) -> Iterator[EngineSamples]:
    """Yield the samples in the gateway's role."""
    database = Database(database_url, role="tollgate_gateway")
    yield EngineSamples(database)
    database.close()


def policy(
    number: int = 1, *, names: tuple[str, ...] = ("qwen",), gpu: GpuRate | None = GPU
) -> PolicyVersion:
    own = [factories.deployment(name, is_self_hosted=True, gpu=gpu) for name in names]
    return factories.version(factories.policy(*own), number=number)


def seen(
    minute: float, *, name: str = "qwen", is_up: bool = True, started: float | None = -5
) -> EngineSample:
    return EngineSample(
        deployment=name,
        at=NOON + timedelta(minutes=minute),
        is_up=is_up,
        started_at=None if started is None or not is_up else NOON + timedelta(minutes=started),
    )


def record(
    samples: EngineSamples, *looks: EngineSample, under: PolicyVersion | None = None
) -> None:
    for look in looks:
        samples.record([look], under or policy(), at=look.at)


def hours(database_url: str) -> list[dict[str, Any]]:
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        return connection.execute(
            "SELECT deployment, hour, policy_version, watched_ms, up_ms, billed_ms, bill_nusd "
            "FROM tollgate.gpu_hours ORDER BY deployment, hour, policy_version"
        ).fetchall()


def test_uptime_is_billed_at_the_rate_of_the_policy_then_in_force(
    samples: EngineSamples, database_url: str
) -> None:
    """A new rate must never apply backwards: last month's bill would change."""
    dearer = policy(2, gpu=replace(GPU, usd_per_gpu_hour=Decimal("6.20")))
    record(samples, seen(0), seen(30))
    record(samples, seen(45), under=dearer)
    record(samples, seen(90), under=dearer)
    half, rest = HOUR_MS // 2, HOUR_MS // 2
    assert [tuple(row.values())[1:] for row in hours(database_url)] == [
        (NOON, 1, half, half, half, 3_100_000_000),
        (NOON, 2, rest, rest, rest, 6_200_000_000),
        (NOON + timedelta(hours=1), 2, half, half, half, 6_200_000_000),
    ]


def test_a_round_that_is_kept_twice_counts_once(samples: EngineSamples, database_url: str) -> None:
    """Each minute is paid once despite a lost acknowledgement, two leaders for a moment or a
    clock that went back.
    """
    record(samples, seen(0), seen(30), seen(30), seen(10), seen(20), seen(60))
    assert [(row["watched_ms"], row["up_ms"]) for row in hours(database_url)] == [
        (HOUR_MS, HOUR_MS)
    ]
    with psycopg.connect(database_url) as connection:
        kept = connection.execute("SELECT at FROM tollgate.engine_samples ORDER BY at").fetchall()
    # A later sample must not precede an earlier one: the counters would run backwards.
    assert [at for (at,) in kept] == [seen(minute).at for minute in (0, 30, 60)]


def test_down_time_is_watched_and_not_billed(samples: EngineSamples, database_url: str) -> None:
    """An engine that is off costs nothing, unless the machine is reserved."""
    record(samples, seen(0), seen(15), seen(30, is_up=False), seen(60, is_up=False))
    (row,) = hours(database_url)
    assert (row["watched_ms"], row["up_ms"], row["billed_ms"]) == (
        HOUR_MS,
        HOUR_MS // 4,
        HOUR_MS // 4,
    )


def test_a_silent_look_at_a_process_that_goes_on_is_up(
    samples: EngineSamples, database_url: str
) -> None:
    """An overloaded engine answers its page late. Its requests of that minute are charged, so its
    bill must have the minute too. Another process proves nothing about the time before it.
    """
    gone = (seen(20, is_up=False), seen(21, is_up=False))
    record(samples, seen(0), seen(19), *gone, seen(22), seen(60))
    (row,) = hours(database_url)
    assert (row["watched_ms"], row["up_ms"], row["billed_ms"]) == (HOUR_MS, HOUR_MS, HOUR_MS)
    record(samples, seen(61, is_up=False), seen(62, started=61.5), seen(120, started=61.5))
    assert hours(database_url)[1]["billed_ms"] == HOUR_MS - 90_000


def test_a_silent_look_at_a_reserved_machine_is_billed_once(
    samples: EngineSamples, database_url: str
) -> None:
    """All its hours are billed already."""
    reserved = policy(gpu=replace(GPU, hours=BilledHours.ALWAYS))
    record(samples, seen(0), seen(20, is_up=False), seen(40), seen(60), under=reserved)
    (row,) = hours(database_url)
    assert (row["watched_ms"], row["up_ms"], row["billed_ms"]) == (HOUR_MS, HOUR_MS, HOUR_MS)


def test_a_reserved_machine_is_billed_while_it_is_down(
    samples: EngineSamples, database_url: str
) -> None:
    """With `hours: always` the invoice does not depend on whether the engine ran."""
    reserved = policy(gpu=replace(GPU, hours=BilledHours.ALWAYS))
    record(samples, seen(0, is_up=False), seen(60, is_up=False), under=reserved)
    (row,) = hours(database_url)
    assert (row["up_ms"], row["billed_ms"], row["bill_nusd"]) == (0, HOUR_MS, 6_200_000_000)


def store_policy(database_url: str, gpu: GpuRate | None, *, applied_at: datetime) -> None:
    """Store a policy version as of a day; it lacks the deployment if `gpu` is None."""
    hosted = factories.deployment("hosted", is_self_hosted=False)
    own = [factories.deployment("qwen", is_self_hosted=True, gpu=gpu)] if gpu is not None else []
    document = to_yaml(factories.policy(hosted, *own))
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.policies (sha256, document, author, message, is_demo, "
            "applied_at) VALUES (encode(sha256(%s::bytea), 'hex'), %s, 'a test', '', false, %s)",
            [document.encode(), document, applied_at],
        )


RESERVED = replace(GPU, hours=BilledHours.ALWAYS)
SEPTEMBER, NOVEMBER = (
    datetime(2026, 9, 30, 23, 59, tzinfo=UTC),
    datetime(2026, 11, 1, 0, 1, tzinfo=UTC),
)


def look(at: datetime) -> EngineSample:
    return EngineSample(deployment="qwen", at=at, is_up=True, started_at=None)


def test_a_reserved_machine_is_billed_for_a_month_without_a_gateway(
    samples: EngineSamples, database_url: str
) -> None:
    """October's invoice is due even if no gateway ran: 744 hours of two GPUs."""
    store_policy(database_url, RESERVED, applied_at=SEPTEMBER - timedelta(days=9))
    record(samples, look(SEPTEMBER), look(NOVEMBER), under=policy(gpu=RESERVED))
    october = [row for row in hours(database_url) if row["hour"].month == 10]
    assert len(october) == 744
    assert {(row["watched_ms"], row["up_ms"], row["billed_ms"]) for row in october} == {
        (0, 0, HOUR_MS)
    }
    assert sum(row["bill_nusd"] for row in october) == 744 * 6_200_000_000


def test_a_gap_is_billed_at_the_rates_that_were_in_force_in_it(
    samples: EngineSamples, database_url: str
) -> None:
    """A policy may be applied while no gateway runs. Its date still separates the old rate, the
    new rate and the removal.
    """
    dearer = replace(RESERVED, usd_per_gpu_hour=Decimal("6.20"))
    store_policy(database_url, RESERVED, applied_at=NOON - timedelta(days=1))
    store_policy(database_url, dearer, applied_at=NOON + timedelta(days=10))
    store_policy(database_url, None, applied_at=NOON + timedelta(days=12))
    store_policy(database_url, dearer, applied_at=NOON + timedelta(days=20))
    record(samples, look(NOON), look(NOON + timedelta(days=21)), under=policy(4, gpu=dearer))
    billed = dict.fromkeys((1, 2, 3, 4), 0)
    for row in hours(database_url):
        billed[row["policy_version"]] += row["bill_nusd"]
    assert billed == {1: 264 * 6_200_000_000, 2: 48 * 12_400_000_000, 3: 0, 4: 24 * 12_400_000_000}


def test_a_new_rate_does_not_reach_back_to_the_last_look(
    samples: EngineSamples, database_url: str
) -> None:
    """An apply a quarter of a minute after midnight: the last look was in the old month, whose last
    hour keeps its rate. A gateway that does not know the new version yet changes nothing.
    """
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    dearer = replace(GPU, usd_per_gpu_hour=Decimal("6.20"))
    store_policy(database_url, GPU, applied_at=midnight - timedelta(days=9))
    store_policy(database_url, dearer, applied_at=midnight + timedelta(seconds=15))
    record(samples, look(midnight - timedelta(seconds=20)))
    record(samples, look(midnight + timedelta(seconds=40)), under=policy(2, gpu=dearer))
    record(samples, look(midnight + timedelta(seconds=100)), under=policy(1))
    found = [
        (row["hour"].hour, row["policy_version"], row["billed_ms"]) for row in hours(database_url)
    ]
    assert found == [(23, 1, 20_000), (0, 1, 15_000), (0, 2, 85_000)]


def test_a_reserved_machine_is_billed_from_its_apply(
    samples: EngineSamples, database_url: str
) -> None:
    """The first gateway may start days after the apply; the machine was paid for in between."""
    store_policy(database_url, None, applied_at=NOON - timedelta(days=30))
    store_policy(database_url, RESERVED, applied_at=NOON)
    record(samples, look(NOON + timedelta(days=2)), under=policy(2, gpu=RESERVED))
    assert sum(row["billed_ms"] for row in hours(database_url)) == 48 * HOUR_MS


def test_an_engine_billed_by_uptime_is_not_billed_for_a_long_gap(
    samples: EngineSamples, database_url: str
) -> None:
    """Without samples, only a reserved machine is billed."""
    store_policy(database_url, GPU, applied_at=NOON - timedelta(days=1))
    record(samples, look(NOON), look(NOON + timedelta(hours=25)))
    assert hours(database_url) == []


def test_a_deployment_that_left_the_policy_is_not_billed_until_it_is_back(
    samples: EngineSamples, database_url: str
) -> None:
    """Its engine may run on for other users; an undeclared engine is not on our bill."""
    both = policy(names=("qwen", "other"))
    samples.record([seen(0), seen(0, name="other")], both, at=NOON)
    samples.record(
        [seen(20, name="other")], policy(2, names=("other",)), at=NOON + timedelta(minutes=20)
    )
    samples.record([], policy(3, names=("hosted",), gpu=None), at=NOON + timedelta(minutes=25))
    samples.record([seen(50), seen(50, name="other")], both, at=NOON + timedelta(minutes=50))
    samples.record([seen(60), seen(60, name="other")], both, at=NOON + timedelta(minutes=60))
    found = {
        (row["deployment"], row["policy_version"]): row["up_ms"] // 60_000
        for row in hours(database_url)
    }
    assert found == {("qwen", 1): 10, ("other", 1): 10, ("other", 2): 20}


def test_a_deployment_without_a_rate_has_hours_and_no_bill(
    samples: EngineSamples, database_url: str
) -> None:
    """An unknown bill is NULL, never zero."""
    record(samples, seen(0), seen(60), under=policy(gpu=None))
    (row,) = hours(database_url)
    assert (row["up_ms"], row["bill_nusd"]) == (HOUR_MS, None)


def test_old_samples_go_and_hours_stay(samples: EngineSamples, database_url: str) -> None:
    """A sample is evidence for weeks; an hour is a permanent record."""
    record(samples, seen(0), seen(60))
    with psycopg.connect(database_url) as connection:
        probe = (
            "INSERT INTO tollgate.engine_probes (probe_id, deployment, sent_at) VALUES "
            "(gen_random_uuid(), 'qwen', %s)"
        )
        connection.execute(probe, [NOON])
    assert samples.forget(now=NOON + KEPT) == 0
    assert samples.forget(now=NOON + KEPT + timedelta(minutes=1)) == 2
    assert len(hours(database_url)) == 1


def test_one_worker_leads_until_its_connection_dies(database_url: str) -> None:
    """Two leaders would probe twice; without a leader, hours would be missing."""
    database = Database(database_url, role="tollgate_gateway")
    first, second = (Leadership(database, TableLock.LEADER_ENGINES) for _ in range(2))
    assert first.is_mine()
    assert first.is_mine()
    assert not second.is_mine()
    assert Leadership(database, TableLock.LEADER_STATEMENTS).is_mine()
    end_leaders(database_url)
    assert second.is_mine()
    assert not first.is_mine()
    end_leaders(database_url)
    assert first.is_mine()
    assert not second.is_mine()
    database.close()


def end_leaders(database_url: str) -> None:
    """End the sessions that hold a job, as if their processes had ended."""
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE mode = 'ExclusiveLock' "
            "AND relation IS NOT NULL AND granted AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
