"""Runs a serving process: builds its parts, starts the background loops, serves callers until asked
to stop, and stops the parts in order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from socket import socket

from gateway.api.edge import Drain
from gateway.api.metrics_page import serving_metrics
from gateway.api.server import serve_until_stopped
from gateway.composition import ServingStores
from gateway.domain.policy.api_keys import Pepper
from gateway.reports.reports import Reports
from gateway.services.ports import Clock
from gateway.services.snapshot.snapshot import SnapshotHolder
from gateway.services.supervisor import Loop
from gateway.serving.context import ProcessContext, request_ids
from gateway.serving.edge import (
    build_connections,
    build_edge,
    build_metrics_page,
    show_in_metrics,
)
from gateway.serving.worker import Worker, build_parts
from gateway.settings import Settings
from gateway.telemetry import logs
from gateway.telemetry.log_writer import LogWriter
from gateway.telemetry.metrics import Metrics

WRITER = "writer"  # not cancelled with the others: it ends last
# All background loops, by their names in logs, metrics and readiness.
LOOPS: Mapping[str, Callable[[Worker], Loop]] = {
    "drain": lambda parts: partial(parts.context.drain.run, parts.context.settings.drain_s),
    "policy_and_keys": lambda parts: parts.refresher.loops()["policy_and_keys"],
    "changes": lambda parts: parts.refresher.loops()["changes"],
    "last_snapshot": lambda parts: parts.refresher.loops()["last_snapshot"],
    "served_version": lambda parts: parts.refresher.loops()["served_version"],
    "progress_notes": lambda parts: parts.ledger.meter.run,
    "budgets": lambda parts: parts.admission_parts.budget_leases.run,
    "limits": lambda parts: parts.admission_parts.limiter.run,
    "claims": lambda parts: parts.admission_parts.claims.run,
    "refusals": lambda parts: parts.admission_parts.refusals.run,
    "ejections": lambda parts: parts.deployments.ejections.run,
    "ledger_watch": lambda parts: parts.ledger.watch.run,
    "engine_loads": lambda parts: parts.deployments.loads.run,
    "engine_probes": lambda parts: parts.dispatch.probes.run,
    "shedding": lambda parts: parts.shedding.run,
    "months": lambda parts: parts.shared.months.run,
    "rollups": lambda parts: parts.shared.rollups.run,
    "engine_samples": lambda parts: parts.shared.engines.run,
    "budget_alerts": lambda parts: parts.shared.alerts.run,
    "statements": lambda parts: parts.shared.statements.run,
    WRITER: lambda parts: parts.ledger.writer.run,
}
# The time for everything after the drain. Postgres gets no longer: the journal keeps unwritten
# events.
STOP_S = 7.0


async def serve(
    settings: Settings,
    listener: socket,
    metrics_listener: socket,
    *,
    stores: ServingStores,
    reports: Reports,
    peppers: tuple[Pepper, ...],
    clock: Clock,
    allows_demo_keys: bool,
    log_writer: LogWriter,
) -> None:
    """Serve callers and scrapers until the process is asked to stop, then write the remaining
    events.

    Raises `BadUsage`.
    """
    metrics, holder = Metrics(), SnapshotHolder(clock=clock, outage_s=settings.outage_s)
    metrics.snapshot_age.set_function(holder.age_s)
    log_writer.on_dropped = metrics.dropped_log_lines.inc
    context = ProcessContext(
        settings=settings,
        stores=stores,
        reports=reports,
        peppers=peppers,
        clock=clock,
        allows_demo_keys=allows_demo_keys,
        metrics=metrics,
        holder=holder,
        log_writer=log_writer,
        drain=Drain(),
        new_id=request_ids(clock),
    )
    table = build_connections(context)
    parts = build_parts(context)
    show_in_metrics(parts)
    edge = build_edge(parts)
    await parts.refresher.start()
    await parts.admission_parts.limiter.exchange()  # until then a worker assumes that it is alone
    logs.say_serving(
        listener.getsockname(), metrics_at=edge.metrics_address, problem=holder.problem
    )
    start_loops(parts)
    async with serving_metrics(
        build_metrics_page(context),
        metrics_listener,
        limits=table.limits,
        on_closed=lambda reason: metrics.count_closed_connection(f"metrics_{reason}"),
    ):
        try:
            await serve_until_stopped(edge, listener, table=table, drain_s=settings.drain_s)
        finally:
            end_s = (context.drain.asked_s or time.monotonic()) + settings.drain_s + STOP_S
            stores.database.end_by(end_s)
            reports.end_by(end_s)
            await stop(parts)


def start_loops(parts: Worker) -> None:
    """Start all background loops of a process in its supervisor."""
    parts.context.metrics.declare_loops(LOOPS)
    parts.supervisor.start({name: loop_of(parts) for name, loop_of in LOOPS.items()})


async def stop(parts: Worker) -> None:
    """Settle open attempts, end the loops, return leases, and write events; each step leaves work
    to the next.

    A failing step skips none of the later ones; its error is raised at the end.
    """
    ledger, dispatch, admission_parts, supervisor = (
        parts.ledger,
        parts.dispatch,
        parts.admission_parts,
        parts.supervisor,
    )
    async with AsyncExitStack() as steps:  # from the last line to the first
        steps.callback(lambda: ledger.own.finish(is_recorded=ledger.writer.has_taken_leave))
        steps.push_async_callback(dispatch.transport.close)
        steps.callback(dispatch.counter.close)
        steps.push_async_callback(supervisor.ended, WRITER)
        steps.callback(ledger.writer.stop)
        steps.push_async_callback(ledger.own.flush)  # the writer reads only durable records
        steps.push_async_callback(parts.deployments.loads.close)
        steps.push_async_callback(parts.refresher.close)
        steps.push_async_callback(parts.reads.close)
        steps.push_async_callback(admission_parts.refusals.close)
        steps.push_async_callback(admission_parts.claims.close)
        steps.push_async_callback(admission_parts.limiter.close)
        steps.push_async_callback(admission_parts.budget_leases.close)
        steps.push_async_callback(supervisor.cancel, but=(WRITER,))
        steps.push_async_callback(dispatch.abandoned.close)
