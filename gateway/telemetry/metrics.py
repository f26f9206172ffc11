"""Declares every metric, and changes them when services report; `api/metrics_page.py` serves them.

Names have base units; labels are bounded and contain no user and no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from gateway.domain.alerts.delivery import Channel
from gateway.domain.alerts.spikes import SpikeAlert
from gateway.domain.budgets.alerts import BudgetAlert, plain_share
from gateway.domain.deployments.engine_signals import EngineSignals
from gateway.domain.ledger.health import LedgerHealth, LedgerState
from gateway.domain.ledger.records import Written
from gateway.telemetry.counts import RequestCounts
from gateway.telemetry.engine_gauges import EngineGauges

_SYNC_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)


class Metrics:
    """The registry behind `/metrics`. The counters of every request are in `counts`."""

    def __init__(self) -> None:
        """Declare all metrics in a new registry."""
        disable_created_metrics()  # type: ignore[no-untyped-call]  # doubles every series without use
        self.registry = CollectorRegistry()
        self.counts = RequestCounts()
        self.registry.register(self.counts)
        self.count_event, self.count_request = self.counts.count_event, self.counts.count_request
        self.waiting_events = Gauge(
            "tollgate_unwritten_events",
            "Settled events not yet in Postgres.",
            registry=self.registry,
        )
        self.written_events = Counter(
            "tollgate_written_events_total", "Events written to Postgres.", registry=self.registry
        )
        self.write_failures = Counter(
            "tollgate_write_failures_total",
            "Batches that Postgres did not take; they are tried again.",
            registry=self.registry,
        )
        self._declare_ledger()
        self.budgets_away = Gauge(
            "tollgate_budget_leases_away_seconds",
            "For how long Postgres has not leased money, 0 while it does.",
            registry=self.registry,
        )
        self.limits_alone = Gauge(
            "tollgate_limits_alone",
            "1 while this replica keeps to its own part of each limit.",
            registry=self.registry,
        )
        self.snapshot_age = Gauge(
            "tollgate_snapshot_age_seconds",
            "Age of the policy and keys that are served from.",
            registry=self.registry,
        )
        self.policy_version = Gauge(
            "tollgate_policy_version", "Policy version in force.", registry=self.registry
        )
        self.ejections = Counter(
            "tollgate_residency_contradictions_total",
            "Deployments taken out of use, because they reported another place.",
            ("deployment",),
            registry=self.registry,
        )
        self.ejected = Gauge(
            "tollgate_ejected_deployments",
            "Deployments out of use until `policy readmit`.",
            registry=self.registry,
        )
        self.background_failures = Counter(
            "tollgate_background_failures_total",
            "Background loops that ended by themselves; they are started again.",
            ("loop",),
            registry=self.registry,
        )
        self.dropped_log_lines = Counter(
            "tollgate_log_lines_dropped_total",
            "Log lines dropped, because standard error took none or too few.",
            registry=self.registry,
        )
        self._declare_connections()
        self._declare_dispatch()
        self._declare_budget_alerts()

    def _declare_connections(self) -> None:
        """Declare the metrics of callers' connections and of those that the gateway ended."""
        self.connections = Gauge(
            "tollgate_connections", "Connections of callers.", registry=self.registry
        )
        self._closed_connections = Counter(
            "tollgate_connections_closed_total",
            "Connections the gateway ended: over the cap, too slow, or with a request that "
            "cannot be read.",
            ("reason",),
            registry=self.registry,
        )

    def count_closed_connection(self, reason: str) -> None:
        """Count a connection that the gateway ended: at_cap, head_late, body_late, write_late or
        refused; of the metrics listener with `metrics_` before it.
        """
        self._closed_connections.labels(reason).inc()

    def _declare_dispatch(self) -> None:
        """Declare the metrics of deployments and of refused requests."""
        self.open_breakers = Gauge(
            "tollgate_breaker_open",
            "1 while a deployment is passed over.",
            ("deployment",),
            registry=self.registry,
        )
        self.opened_breakers = Counter(
            "tollgate_breaker_opened_total",
            "How often a deployment began to be passed over.",
            ("deployment", "reason"),
            registry=self.registry,
        )
        self.retries = Counter(
            "tollgate_retries_total",
            "Attempts after a request's first.",
            ("deployment",),
            registry=self.registry,
        )
        self.refused_retries = Counter(
            "tollgate_retries_refused_total",
            "Attempts that no retry budget covered.",
            ("deployment",),
            registry=self.registry,
        )
        self.shed_requests = Counter(
            "tollgate_shed_requests_total",
            "Requests refused because this replica has too much to do.",
            ("priority",),
            registry=self.registry,
        )
        self.loop_lag = Gauge(
            "tollgate_loop_lag_seconds",
            "How late the event loop is at its turns.",
            registry=self.registry,
        )

    def _declare_ledger(self) -> None:
        """Declare the metrics that alerts watch (deploy/alerts).

        Counters start at 0, so that an alert sees the first increase.
        """
        self.journal_used = Gauge(
            "tollgate_journal_used_bytes", "Bytes of the journal in use.", registry=self.registry
        )
        self.journal_max = Gauge(
            "tollgate_journal_max_bytes", "Bytes the journal may take.", registry=self.registry
        )
        self.oldest_unsettled = Gauge(
            "tollgate_journal_oldest_unsettled_seconds",
            "Age of the oldest attempt still running, 0 for none.",
            registry=self.registry,
        )
        self.writer_lag = Gauge(
            "tollgate_writer_lag_seconds",
            "Age of the oldest settled record not in Postgres yet, 0 for none.",
            registry=self.registry,
        )
        self.journal_sync = Histogram(
            "tollgate_journal_sync_seconds",
            "Time of one group commit of the journal.",
            buckets=_SYNC_SECONDS,
            registry=self.registry,
        )
        self.dead_letters = Counter(
            "tollgate_dead_letters_total",
            "Dead letters: records that Postgres refused.",
            registry=self.registry,
        )
        self.conflicting_events = Counter(
            "tollgate_conflicting_events_total",
            "Events that came again with other content.",
            registry=self.registry,
        )
        self.default_partition_rows = Gauge(
            "tollgate_default_partition_rows",
            "Events in the default partition; any is too many.",
            registry=self.registry,
        )
        self.missing_partitions = Gauge(
            "tollgate_missing_partitions",
            "Partitions of this month and the next ones that are not there.",
            registry=self.registry,
        )
        # From Postgres: attempts of a killed gateway are booked from its journal, and no process
        # counts them.
        self.last_hour_attempts = Gauge(
            "tollgate_last_hour_attempts",
            "Attempts of the last hour in the ledger, of all gateways.",
            registry=self.registry,
        )
        self.last_hour_unknown_attempts = Gauge(
            "tollgate_last_hour_unknown_attempts",
            "Those of them whose usage is unknown.",
            registry=self.registry,
        )

    def _declare_budget_alerts(self) -> None:
        """Declare the metrics of the worker that raises alerts; a policy bounds the number of
        thresholds.
        """
        self.budget_alerts = Counter(
            "tollgate_budget_alerts_total",
            "Budgets that reached a threshold, once a period each.",
            ("threshold",),
            registry=self.registry,
        )
        self.spike_alerts = Counter(
            "tollgate_spike_alerts_total",
            "Days of teams that stood out, once each.",
            registry=self.registry,
        )
        # The names are those of the first alerts; operators' rules read them.
        self.undelivered_alerts = Gauge(
            "tollgate_budget_alerts_undelivered",
            "Alerts of budgets and spikes that the channel's receiver has not taken yet.",
            ("channel",),
            registry=self.registry,
        )
        self.given_up_alerts = Counter(
            "tollgate_budget_alerts_given_up_total",
            "Alerts of budgets and spikes that the channel's receiver did not take within a day.",
            ("channel",),
            registry=self.registry,
        )
        self.given_up_statements = Counter(
            "tollgate_statements_given_up_total",
            "Scheduled statements that their receiver did not take within a day.",
            registry=self.registry,
        )
        for channel in Channel:
            self.undelivered_alerts.labels(channel)
            self.given_up_alerts.labels(channel)

    def watch_health(self, read: Callable[[], LedgerHealth]) -> None:
        """Call `read` for the ledger's health at each read of the metrics; it must not block."""
        self.journal_used.set_function(lambda: read().journal_used_bytes)
        self.journal_max.set_function(lambda: read().journal_max_bytes)
        self.oldest_unsettled.set_function(lambda: read().oldest_unsettled_s or 0.0)
        self.writer_lag.set_function(lambda: read().writer_lag_s or 0.0)
        self.waiting_events.set_function(lambda: read().waiting_events)

    def watch_allowances(
        self, *, budgets_away_s: Callable[[], float | None], is_alone: Callable[[], bool]
    ) -> None:
        """Show at each read of the metrics whether budgets and limits are synchronised with
        Postgres.
        """
        self.budgets_away.set_function(lambda: budgets_away_s() or 0.0)
        self.limits_alone.set_function(lambda: float(is_alone()))

    def watch_engines(self, read: Callable[[], Mapping[str, EngineSignals | None]]) -> None:
        """Show the live signals of each engine at each read of the metrics."""
        self.registry.register(EngineGauges(read))

    def declare_loops(self, names: Iterable[str]) -> None:
        """Show each background loop's failures from the start, so that an alert sees the first
        one.
        """
        for name in names:
            self.background_failures.labels(name)

    def count_background_failure(self, loop: str) -> None:
        """Count a background loop that ended by itself."""
        self.background_failures.labels(loop).inc()

    def note_state(self, state: LedgerState) -> None:
        """Show the ledger's state, as read from Postgres, in the metrics."""
        self.default_partition_rows.set(state.default_partition_rows)
        self.missing_partitions.set(len(state.missing_partitions))
        self.last_hour_attempts.set(state.attempts_last_hour)
        self.last_hour_unknown_attempts.set(state.unknown_last_hour)

    def count_alert(self, alert: BudgetAlert | SpikeAlert) -> None:
        """Count a raised alert."""
        match alert:
            case BudgetAlert():
                self.budget_alerts.labels(plain_share(alert.threshold)).inc()
            case SpikeAlert():
                self.spike_alerts.inc()

    def note_opened(self, deployment: str, reason: str) -> None:
        """Show that a deployment's breaker opened, and count the reason."""
        self.open_breakers.labels(deployment).set(1)
        self.opened_breakers.labels(deployment, reason).inc()

    def note_closed(self, deployment: str) -> None:
        """Show that a deployment's breaker closed, so it is used again."""
        self.open_breakers.labels(deployment).set(0)

    def count_retry(self, deployment: str) -> None:
        """Count one further attempt of a request at this deployment."""
        self.retries.labels(deployment).inc()

    def count_refused_retry(self, deployment: str) -> None:
        """Count a retry that was refused, because its deployment or team had no retry budget."""
        self.refused_retries.labels(deployment).inc()

    def count_shed(self, priority: str) -> None:
        """Count a request that was refused early under load, by its team's priority."""
        self.shed_requests.labels(priority).inc()

    def count_ejection(self, deployment: str) -> None:
        """Count the ejection of a deployment."""
        self.ejections.labels(deployment).inc()

    def note_written(self, written: Written) -> None:
        """Count the events of a batch that was committed to Postgres."""
        self.written_events.inc(written.inserted)
        self.conflicting_events.inc(written.conflicts)
        self.dead_letters.inc(written.dead)
