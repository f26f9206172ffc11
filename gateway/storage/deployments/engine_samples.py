"""Stores samples of self-hosted engines, and adds the time between them to the GPU hours and their
bill; takes no samples.

An hour is billed at the rate in force at that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, select, text
from sqlalchemy.dialects.postgresql import distinct_on, insert

from gateway.domain.deployments.engine_sample import (
    LONGEST_GAP,
    EngineSample,
    UpSpan,
    up,
    up_while_silent,
    watched,
)
from gateway.domain.policy.policy import Deployment, PolicyVersion
from gateway.domain.pricing.selfhost import BilledHours, GpuRate, gpu_bill_nusd
from gateway.storage.policy.timeline import first_apply, in_force
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock
from gateway.storage.postgres.schema.column_types import table

KEPT = timedelta(days=35)

engine_samples = table(
    "engine_samples",
    "deployment text, at timestamptz, is_watched boolean, is_up boolean, started_at timestamptz, "
    "prompt_tokens bigint, generation_tokens bigint, running bigint, waiting bigint, "
    "kv_use double precision, prefix_hit_rate double precision, ttft_p50_s double precision, "
    "ttft_p95_s double precision, tpot_p50_s double precision, tpot_p95_s double precision, "
    "pressure double precision",
)
_SAMPLE = engine_samples.c
_FORGET = (
    "DELETE FROM tollgate.engine_samples WHERE at < :before",
    "DELETE FROM tollgate.engine_probes WHERE sent_at < :before",
)
_HOUR = (
    "SELECT watched_ms, up_ms, billed_ms FROM tollgate.gpu_hours WHERE deployment = :deployment "
    "AND hour = :hour AND policy_version = :policy_version"
)
_KEEP_HOUR = """
INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count,
  usd_per_gpu_hour, basis,
                                watched_ms, up_ms, billed_ms, bill_nusd)
VALUES (:deployment, :hour, :policy_version, :gpu_type, :gpu_count, :usd_per_gpu_hour, :basis,
        :watched_ms, :up_ms, :billed_ms, :bill_nusd)
ON CONFLICT (deployment, hour, policy_version) DO UPDATE
SET watched_ms = excluded.watched_ms, up_ms = excluded.up_ms, billed_ms = excluded.billed_ms,
    bill_nusd = excluded.bill_nusd
"""


class EngineSamples:
    """A store of the samples taken from engines.

    Safe with several writers: each interval is counted once.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(
        self, samples: Sequence[EngineSample], policy: PolicyVersion, *, at: datetime
    ) -> None:
        """Store the round of engine samples that began at `at`, and add the time since the previous
        round to the GPU hours.

        A deployment that left the round gets a last sample, so that its later return does not count
        as one long uptime. Raises `DatabaseUnavailable`.
        """
        with self._database.begin() as connection:
            # One round after the other: a sample's interval begins at the end of the previous one.
            connection.execute(text(TableLock.ENGINE_SAMPLES.taken))
            before = _latest_samples(connection, since=at - LONGEST_GAP)
            for sample in (*samples, *_departed(before, samples, at=at)):
                previous = before.get(sample.deployment) or _latest_of(
                    connection, sample.deployment
                )
                if previous is not None and sample.at <= previous.at:
                    continue  # another leader whose clock is ahead of ours wrote it
                connection.execute(
                    insert(engine_samples).values(asdict(sample)).on_conflict_do_nothing()
                )
                _add_span(connection, previous, sample, policy)

    def forget(self, *, now: datetime) -> int:
        """Delete samples and probes that are older than `KEPT`; return their number.

        Hours are never deleted.
        """
        before = {"before": now - KEPT}
        with self._database.begin() as connection:
            return sum(
                connection.execute(text(statement), before).rowcount for statement in _FORGET
            )


def _departed(
    before: Mapping[str, EngineSample], samples: Sequence[EngineSample], *, at: datetime
) -> list[EngineSample]:
    """Return closing samples for deployments that are not sampled any more."""
    present = {sample.deployment for sample in samples}
    gone = sorted(
        name for name, latest in before.items() if name not in present and latest.is_watched
    )
    return [EngineSample(deployment=name, at=at, is_watched=False) for name in gone]


def _latest_samples(connection: Connection, *, since: datetime) -> dict[str, EngineSample]:
    """Return each deployment's newest sample since a moment."""
    newest = (
        select(*_SAMPLE)
        .ext(distinct_on(_SAMPLE.deployment))
        .where(_SAMPLE.at >= since)
        .order_by(_SAMPLE.deployment, _SAMPLE.at.desc())
    )
    rows = connection.execute(newest).mappings()
    return {row["deployment"]: EngineSample(**row) for row in rows}


def _latest_of(connection: Connection, deployment: str) -> EngineSample | None:
    """Return a deployment's newest sample, None without any."""
    of_one = select(*_SAMPLE).where(_SAMPLE.deployment == deployment)
    newest = of_one.order_by(_SAMPLE.at.desc()).limit(1)
    row = connection.execute(newest).mappings().one_or_none()
    return EngineSample(**row) if row is not None else None


def _last_answered(
    connection: Connection, previous: EngineSample, *, since: datetime
) -> EngineSample | None:
    """Return the newest sample before a silent one that was answered, or that ended the watch; None
    without any.
    """
    before = select(*_SAMPLE).where(
        _SAMPLE.deployment == previous.deployment,
        _SAMPLE.at >= since,
        _SAMPLE.at < previous.at,
        _SAMPLE.is_up | ~_SAMPLE.is_watched,
    )
    newest = before.order_by(_SAMPLE.at.desc()).limit(1)
    row = connection.execute(newest).mappings().one_or_none()
    return EngineSample(**row) if row is not None else None


def _add_span(
    connection: Connection,
    previous: EngineSample | None,
    sample: EngineSample,
    policy: PolicyVersion,
) -> None:
    """Add the watched, up and billed time between two samples to the deployment's GPU hours, and
    the time of silent looks before them that proves to have been up.
    """
    name = sample.deployment
    if (span := _span_since(connection, previous, sample)) is not None:
        watched_span, up_span = watched(previous, sample), up(previous, sample)
        for version, part in in_force(connection, span, otherwise=policy):
            gpu = _gpu_of(version, name)
            billed = part if _is_always_billed(gpu) else _inside(up_span, part)
            _add_times(
                connection,
                version,
                name,
                watched=_inside(watched_span, part),
                up=_inside(up_span, part),
                billed=billed,
            )
    if previous is None or previous.is_up or not sample.is_up:
        return
    last_up = _last_answered(connection, previous, since=sample.at - LONGEST_GAP)
    if (silent := up_while_silent(last_up, previous, sample)) is not None:
        for version, part in in_force(connection, silent, otherwise=policy):
            is_billed = _is_always_billed(_gpu_of(version, name))  # since the silent looks
            _add_times(
                connection, version, name, watched=None, up=part, billed=None if is_billed else part
            )


def _gpu_of(version: PolicyVersion, name: str) -> GpuRate | None:
    """Return a deployment's GPU rate in a policy version, None without one."""
    deployment = version.policy.deployments.get(name)
    return None if deployment is None else deployment.gpu


def _inside(span: UpSpan | None, part: UpSpan) -> UpSpan | None:
    """Return the part of a span inside another one; None if there is none."""
    return None if span is None else span.within(part)


def _add_times(
    connection: Connection,
    version: PolicyVersion,
    name: str,
    *,
    watched: UpSpan | None,
    up: UpSpan | None,
    billed: UpSpan | None,
) -> None:
    """Add times to the hours of a deployment, if the policy version has it."""
    deployment = version.policy.deployments.get(name)
    if deployment is None:
        return
    by_hour = [dict(span.by_hour()) if span is not None else {} for span in (watched, up, billed)]
    for hour in sorted({hour for times in by_hour for hour in times}):
        watched_ms, up_ms, billed_ms = (times.get(hour, 0) for times in by_hour)
        _add_to_hour(
            connection,
            deployment,
            version.version,
            hour=hour,
            watched_ms=watched_ms,
            up_ms=up_ms,
            billed_ms=billed_ms,
        )


def _span_since(
    connection: Connection, previous: EngineSample | None, sample: EngineSample
) -> UpSpan | None:
    """Return the time from the previous sample, or else the first apply, to this sample, however
    long; None if this one is not watched.

    A reserved machine is invoiced even if no gateway watches it. A deployment without any sample is
    billed from the first apply, if a policy version declares it `hours: always`.
    """
    begin = previous.at if previous is not None else first_apply(connection)
    if begin is None or begin >= sample.at or not sample.is_watched:
        return None
    return UpSpan(begin=begin, end=sample.at)


def _add_to_hour(
    connection: Connection,
    deployment: Deployment,
    policy_version: int,
    *,
    hour: datetime,
    watched_ms: int,
    up_ms: int,
    billed_ms: int,
) -> None:
    """Add times to one deployment's hour, and bill it at the version's GPU rate."""
    key = {"deployment": deployment.name, "hour": hour, "policy_version": policy_version}
    nothing = {"watched_ms": 0, "up_ms": 0, "billed_ms": 0}
    so_far = connection.execute(text(_HOUR), key).mappings().one_or_none() or nothing
    gpu = deployment.gpu
    billed_ms += so_far["billed_ms"]
    totals = {
        "watched_ms": so_far["watched_ms"] + watched_ms,
        "up_ms": so_far["up_ms"] + up_ms,
        "billed_ms": billed_ms,
        "bill_nusd": None if gpu is None else gpu_bill_nusd(gpu, billed_ms),
    }
    connection.execute(text(_KEEP_HOUR), {**key, **totals, **_rate_to_row(gpu)})


def _is_always_billed(gpu: GpuRate | None) -> bool:
    """Return True if a deployment's GPUs are billed even while no gateway sees the engine up."""
    return gpu is not None and gpu.hours is BilledHours.ALWAYS


def _rate_to_row(gpu: GpuRate | None) -> dict[str, Any]:
    """Return the SQL parameters of a deployment's GPU rate, NULL without one."""
    return {
        "gpu_type": gpu.type if gpu else None,
        "gpu_count": gpu.count if gpu else None,
        "usd_per_gpu_hour": gpu.usd_per_gpu_hour if gpu else None,
        "basis": (gpu.hours if gpu else BilledHours.SEEN).value,
    }
