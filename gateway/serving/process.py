"""How a serving process starts, what goes on in it, and in which order it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from socket import socket

from gateway.api.edge import Drain
from gateway.api.server import serve_until_stopped
from gateway.cli.toolbox import Stores
from gateway.domain.api_keys import Pepper
from gateway.reports import Reports
from gateway.services.ports import Clock
from gateway.services.snapshot import SnapshotHolder
from gateway.serving.edge import build_edge, show_in_metrics
from gateway.serving.ground import Ground, Job, request_ids
from gateway.serving.parts import Parts, build_parts
from gateway.serving.shared_jobs import build_shared_jobs
from gateway.settings import Settings
from gateway.telemetry import logs
from gateway.telemetry.metrics import Metrics, start_listener

# What is left to do after the drain. Postgres is not waited for longer: the journal has what it did not take.
STOP_S = 7.0


async def serve(
    settings: Settings, listener: socket, *, stores: Stores, reports: Reports, peppers: tuple[Pepper, ...],
    clock: Clock, allows_demo_keys: bool,
) -> None:  # fmt: skip
    """Serve on a bound socket until the process is told to stop, then write what is left. Raises `BadUsage`."""
    metrics, holder = Metrics(), SnapshotHolder(clock=clock, outage_s=settings.outage_s)
    metrics.snapshot_age.set_function(holder.age_s)
    start_listener(metrics, host=settings.metrics_host, port=settings.metrics_port)
    ground = Ground(
        settings=settings, stores=stores, reports=reports, peppers=peppers, clock=clock,
        allows_demo_keys=allows_demo_keys, metrics=metrics, holder=holder, drain=Drain(), new_id=request_ids(clock),
    )  # fmt: skip
    parts = build_parts(ground)
    show_in_metrics(parts)
    edge = build_edge(parts)
    await parts.refresher.start()
    await parts.allowances.limiter.exchange()  # until then a worker believes itself alone
    logs.say_serving(listener.getsockname(), metrics_at=edge.metrics_address, problem=holder.problem)
    background = [asyncio.create_task(job.run()) for job in _jobs(parts)]
    writing = asyncio.create_task(parts.ledger.writer.run())
    try:
        await serve_until_stopped(edge, listener, drain_s=settings.drain_s)
    finally:
        end_s = (ground.drain.asked_s or time.monotonic()) + settings.drain_s + STOP_S
        stores.database.end_by(end_s)
        reports.end_by(end_s)
        await _stop(parts, background, writing)


def _jobs(parts: Parts) -> Sequence[Job]:
    """All that goes on until the stop; the writer is not among them, it has the last word."""
    deployments, ledger = parts.deployments, parts.ledger
    return (
        parts.refresher,
        ledger.meter,
        *parts.allowances.jobs,
        deployments.ejections,
        ledger.watch,
        deployments.loads,
        parts.dispatch.probes,
        parts.shedding,
        *build_shared_jobs(parts.ground),
    )


async def _stop(parts: Parts, background: Sequence[asyncio.Task[None]], writing: asyncio.Task[None]) -> None:
    """Settle what is open, end the jobs, give back what is at hand, and write: each leaves work to those after it."""
    ledger, dispatch = parts.ledger, parts.dispatch
    await dispatch.endings.close()
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    for job in parts.allowances.jobs:
        await job.close()
    await ledger.own.flush()  # the writer reads what is durable
    ledger.writer.stop()
    await writing
    dispatch.counter.close()
    await dispatch.transport.close()
    ledger.own.finish()
