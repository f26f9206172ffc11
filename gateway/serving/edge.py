"""Builds the caller side of a serving process: the HTTP application, the connection table,
readiness and gauges; `process.py` serves it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gateway.api.app import build_app
from gateway.api.edge import Edge
from gateway.api.forward import Forwarder
from gateway.api.http.connection_table import ConnectionTable
from gateway.api.http.limits import (
    LOW_DESCRIPTORS,
    MORE_DESCRIPTORS,
    HttpLimits,
    most_connections,
    raise_descriptor_limit,
)
from gateway.api.large_bodies import LargeBodies
from gateway.api.metrics_page import MetricsPage
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.api.request_slots import RequestSlots
from gateway.domain.budgets.health import allowance_checks, clock_check
from gateway.domain.checks import Check
from gateway.domain.ledger.health import health_checks
from gateway.domain.request.end_user import end_user_key
from gateway.domain.words import host_and_port
from gateway.services.request.attempt import Attempts
from gateway.services.request.prompt_counts import PromptCounts
from gateway.services.request.service import RequestService
from gateway.services.request.stored_response_calls import StoredResponseCalls
from gateway.services.request.stored_responses import StoredResponses
from gateway.services.snapshot.snapshot import problems, snapshot_checks
from gateway.serving.context import ProcessContext
from gateway.serving.worker import Worker
from gateway.telemetry.logs import RequestLog

log = structlog.get_logger()


def build_edge(parts: Worker) -> Edge:
    """Build the application that the HTTP server runs."""
    settings = parts.context.settings
    slots, large_bodies = RequestSlots(settings.max_streams), LargeBodies()
    responses = _stored_responses(parts)
    return Edge(
        forward=_forwarder(parts, slots, large_bodies, responses),
        plain=build_app(_plain_endpoints(parts, slots, large_bodies, responses)),
        allowed_hosts=frozenset(settings.allowed_hosts),
        max_in_flight=settings.max_streams,
        metrics_address=host_and_port(settings.metrics_host, settings.metrics_port),
        drain=parts.context.drain,
    )


def build_connections(context: ProcessContext) -> ConnectionTable:
    """Build the table of callers' connections; its cap leaves the process the file descriptors for
    Postgres, upstreams and journal.

    Raises `BadUsage` if that leaves too few to serve at all.
    """
    settings = context.settings
    descriptors = raise_descriptor_limit(settings.max_connections)
    connections = most_connections(descriptors, configured=settings.max_connections)
    if descriptors < LOW_DESCRIPTORS:
        log.warning(
            "few_descriptors",
            limit=descriptors,
            connections=connections,
            what_to_do=MORE_DESCRIPTORS,
        )
    limits = HttpLimits(
        head_bytes=settings.max_head_bytes,
        fields=settings.max_header_fields,
        target_bytes=settings.max_target_bytes,
        head_s=settings.head_s,
        body_grace_s=settings.body_grace_s,
        body_bytes_per_s=settings.body_bytes_per_s,
        body_s=settings.body_s,
        write_s=settings.write_s,
        connections=connections,
    )
    metrics = context.metrics
    table = ConnectionTable(limits, on_closed=metrics.count_closed_connection)
    metrics.connections.set_function(lambda: len(table.open))
    return table


def build_metrics_page(context: ProcessContext) -> MetricsPage:
    """Build the application behind the metrics listener."""
    settings = context.settings
    return MetricsPage(
        registry=context.metrics.registry,
        bound=settings.metrics_host,
        names=settings.metrics_hosts,
        new_id=context.new_id,
    )


def show_in_metrics(parts: Worker) -> None:
    """Register the gauges of this process that `/metrics` computes at each read."""
    metrics, holder, admission_parts = (
        parts.context.metrics,
        parts.context.holder,
        parts.admission_parts,
    )
    budget_leases, limiter, ejections = (
        admission_parts.budget_leases,
        admission_parts.limiter,
        parts.deployments.ejections,
    )
    metrics.ejected.set_function(
        lambda: len(ejections.out({} if holder.current is None else holder.current.ejected))
    )
    metrics.watch_engines(parts.deployments.loads.signals)
    metrics.watch_health(parts.ledger.health)
    metrics.loop_lag.set_function(lambda: parts.shedding.lag_s)
    metrics.watch_allowances(
        budgets_away_s=lambda: budget_leases.away_s, is_alone=lambda: limiter.is_alone
    )


def _forwarder(
    parts: Worker, slots: RequestSlots, large_bodies: LargeBodies, responses: StoredResponses
) -> Forwarder:
    """Build the handler of the forwarding endpoints."""
    context, own = parts.context, parts.ledger.own
    settings = context.settings
    return Forwarder(
        requests=_requests(parts, responses, large_bodies),
        limiter=parts.admission_parts.limiter,
        holder=context.holder,
        metrics=context.metrics,
        lines=RequestLog(settings.log_level, context.log_writer.write),
        clock=context.clock,
        new_id=context.new_id,
        is_full=lambda: own.is_full,
        shedding=parts.shedding,
        slots=slots,
        large_bodies=large_bodies,
        max_body_bytes=settings.max_body_bytes,
        allows_demo_keys=context.allows_demo_keys,
        end_user_key=end_user_key(context.peppers[0]),
    )


def _requests(
    parts: Worker, responses: StoredResponses, large_bodies: LargeBodies
) -> RequestService:
    """Build the service that decides, admits and dispatches requests."""
    context, admission_parts, deployments, dispatch = (
        parts.context,
        parts.admission_parts,
        parts.deployments,
        parts.dispatch,
    )
    return RequestService(
        transport=dispatch.transport,
        providers=dispatch.providers,
        admission=admission_parts.admission,
        attempts=Attempts(parts.ledger.meter, context.clock),
        abandoned=dispatch.abandoned,
        clock=context.clock,
        max_attempts=context.settings.max_attempts,
        refusals=admission_parts.refusals,
        ejections=deployments.ejections,
        estimates=deployments.estimates,
        health=deployments.health,
        region=context.settings.region,
        text_forms=dispatch.text_forms,
        find_response=responses.find,
        run_large=large_bodies.read,
    )


def _stored_responses(parts: Worker) -> StoredResponses:
    """Build the search for stored responses in the ledger and in this worker's journal."""
    reports, ledger = parts.context.reports, parts.ledger
    return StoredResponses(
        stored=reports.stored_responses,
        recent=ledger.meter.recent_responses,
        is_lagging=ledger.journals.is_lagging,
        reads=parts.reads,
    )


def _plain_endpoints(
    parts: Worker, slots: RequestSlots, large_bodies: LargeBodies, responses: StoredResponses
) -> PlainEndpoints:
    """Build the dependencies of all endpoints except forwarding: models, receipts, usage and
    readiness.
    """
    context, ledger = parts.context, parts.ledger
    settings, holder, drain = context.settings, context.holder, context.drain
    return PlainEndpoints(
        holder=holder,
        reports=context.reports,
        reads=parts.reads,
        clock=context.clock,
        standing=parts.admission_parts.limiter.standing,
        allows_demo_keys=context.allows_demo_keys,
        not_ready=lambda: [
            *problems(
                holder,
                is_full=ledger.own.is_full,
                is_gone=ledger.own.is_gone,
                is_draining=drain.is_draining,
            ),
            *parts.supervisor.problems(),
        ],
        checks=lambda: _checks(parts),
        recent=ledger.meter.recent,
        is_lagging=ledger.journals.is_lagging,
        region=settings.region,
        estimates=parts.deployments.estimates,
        stored_responses=StoredResponseCalls(
            responses=responses,
            transport=parts.dispatch.transport,
            providers=parts.dispatch.providers,
            ejections=parts.deployments.ejections,
            health=parts.deployments.health,
            region=settings.region,
        ),
        max_body_bytes=settings.max_body_bytes,
        slots=slots,
        large_bodies=large_bodies,
        counts=PromptCounts(
            requests=_requests(parts, responses, large_bodies),
            counters=parts.dispatch.prompt_counters,
        ),
    )


def _checks(parts: Worker) -> Sequence[Check]:
    """Return the findings that `/readyz` lists; they do not decide whether this replica takes
    traffic.
    """
    context, ledger = parts.context, parts.ledger
    budget_leases, limiter = parts.admission_parts.budget_leases, parts.admission_parts.limiter
    return (
        *snapshot_checks(context.holder),
        *allowance_checks(
            budgets_away_s=budget_leases.silent_s,
            lease_s=context.settings.lease_s,
            is_alone=limiter.is_alone,
        ),
        clock_check(budget_leases.clock_skew_s),
        *parts.deployments.health.checks(),
        *health_checks(ledger.health()),
        *ledger.watch.checks(),
        *parts.supervisor.checks(),
    )
