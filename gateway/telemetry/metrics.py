"""Every metric, declared once: base units in the name, bounded labels, no user and no key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from gateway.domain.ledger_health import LedgerHealth, LedgerState
from gateway.domain.usage_event import UsageEvent
from gateway.domain.written import Written
from gateway.errors import BadUsage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TPOT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_SYNC_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


class Metrics:
    """The registry behind `/metrics`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a twin of every series that nobody reads
        self.registry = CollectorRegistry()
        where = ("route", "deployment")
        self.requests = Counter(
            "tollgate_requests_total", "Requests answered.", ("endpoint", "status"), registry=self.registry
        )
        self.attempts = Counter(
            "tollgate_attempts_total", "Upstream attempts.", (*where, "outcome"), registry=self.registry
        )
        self.tokens = Counter(
            "tollgate_tokens_total", "Tokens metered; cached is part of input, reasoning of output.",
            (*where, "kind"), registry=self.registry,
        )  # fmt: skip
        self.cost = Counter("tollgate_cost_usd_total", "Metered cost in USD.", where, registry=self.registry)
        self.unknown = Counter(
            "tollgate_unknown_usage_total", "Attempts whose usage is unknown.", where, registry=self.registry
        )
        self.ttft = Histogram(
            "tollgate_ttft_seconds", "Time to first token.", where, buckets=_SECONDS, registry=self.registry
        )
        self.tpot = Histogram(
            "tollgate_tpot_seconds", "Time per output token after the first.", where,
            buckets=_TPOT_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.duration = Histogram(
            "tollgate_upstream_seconds", "Duration of an attempt.", where, buckets=_SECONDS, registry=self.registry
        )
        self.overhead = Histogram(
            "tollgate_overhead_seconds", "The gateway's own time before it sends.", (),
            buckets=_OVERHEAD_SECONDS, registry=self.registry,
        )  # fmt: skip
        self.in_flight = Gauge("tollgate_inflight", "Requests in flight.", registry=self.registry)
        self.waiting_events = Gauge(
            "tollgate_unwritten_events", "Settled events not yet in Postgres.", registry=self.registry
        )
        self.written_events = Counter(
            "tollgate_written_events_total", "Events written to Postgres.", registry=self.registry
        )
        self.write_failures = Counter(
            "tollgate_write_failures_total", "Batches that Postgres did not take; they are tried again.",
            registry=self.registry,
        )  # fmt: skip
        self._declare_ledger()
        self.policy_version = Gauge("tollgate_policy_version", "Policy version in force.", registry=self.registry)
        self._children: dict[tuple[object, ...], Any] = {}

    def _declare_ledger(self) -> None:
        """What alerts watch (deploy/alerts). Counters stand at 0 from the start: an increase from nothing is seen."""
        self.journal_used = Gauge("tollgate_journal_used_bytes", "Bytes of the journal in use.", registry=self.registry)
        self.journal_max = Gauge("tollgate_journal_max_bytes", "Bytes the journal may take.", registry=self.registry)
        self.oldest_unsettled = Gauge(
            "tollgate_journal_oldest_unsettled_seconds", "Age of the oldest attempt still running, 0 for none.",
            registry=self.registry,
        )  # fmt: skip
        self.writer_lag = Gauge(
            "tollgate_writer_lag_seconds", "Age of the oldest settled record not in Postgres yet, 0 for none.",
            registry=self.registry,
        )  # fmt: skip
        self.journal_sync = Histogram(
            "tollgate_journal_sync_seconds", "Time of one group commit of the journal.", buckets=_SYNC_SECONDS,
            registry=self.registry,
        )  # fmt: skip
        self.dead_letters = Counter(
            "tollgate_dead_letters_total", "Records Postgres cannot take, set aside.", registry=self.registry
        )
        self.conflicting_events = Counter(
            "tollgate_conflicting_events_total", "Events that came again with other content.", registry=self.registry
        )
        self.default_partition_rows = Gauge(
            "tollgate_default_partition_rows", "Events in the default partition; any is too many.",
            registry=self.registry,
        )  # fmt: skip
        self.missing_partitions = Gauge(
            "tollgate_missing_partitions", "Partitions of this month and the next ones that are not there.",
            registry=self.registry,
        )  # fmt: skip

    def watch_health(self, read: Callable[[], LedgerHealth]) -> None:
        """Ask `read`, which must not block, whenever the metrics are read."""
        self.journal_used.set_function(lambda: read().journal_used_bytes)
        self.journal_max.set_function(lambda: read().journal_max_bytes)
        self.oldest_unsettled.set_function(lambda: read().oldest_unsettled_s or 0.0)
        self.writer_lag.set_function(lambda: read().writer_lag_s or 0.0)
        self.waiting_events.set_function(lambda: read().waiting_events)

    def note_state(self, state: LedgerState) -> None:
        """Postgres was asked how the ledger is."""
        self.default_partition_rows.set(state.default_partition_rows)
        self.missing_partitions.set(len(state.missing_partitions))

    def count_event(self, event: UsageEvent) -> None:
        """Count one settled attempt."""
        where = (event.route, event.deployment)
        self._child(self.attempts, *where, event.outcome.value).inc()
        usage = event.usage
        counts = {
            "input": usage.input_tokens,
            "cached_input": usage.cached_input_tokens,
            "output": usage.output_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        for kind, count in counts.items():
            if count:
                self._child(self.tokens, *where, kind).inc(count)
        if event.cost_nusd is None:
            self._child(self.unknown, *where).inc()
        else:
            self._child(self.cost, *where).inc(event.cost_nusd / 1e9)
        for histogram, seconds in ((self.ttft, event.ttft_s), (self.tpot, event.tpot_s)):
            if seconds is not None:
                self._child(histogram, *where).observe(seconds)
        self._child(self.duration, *where).observe(event.duration_s)
        if event.overhead_s is not None:
            self.overhead.observe(event.overhead_s)

    def count_request(self, endpoint: str, status: int) -> None:
        """Count one answered request."""
        self._child(self.requests, endpoint, str(status)).inc()

    def note_written(self, written: Written) -> None:
        """A batch was committed."""
        self.written_events.inc(written.inserted)
        self.conflicting_events.inc(written.conflicts)
        self.dead_letters.inc(written.dead)

    def _child(self, metric: Metric, *values: str) -> Metric:
        """One series of a metric. Kept here: `labels` checks and locks, which costs more than to count."""
        child: Metric | None = self._children.get((metric, *values))
        if child is None:
            child = self._children[metric, *values] = metric.labels(*values)
        return child


def start_listener(metrics: Metrics, *, host: str, port: int) -> None:
    """Serve `/metrics` on a listener of its own, in a thread: it has no key check."""
    try:
        start_http_server(port, host, registry=metrics.registry)
    except OSError as broken:
        raise BadUsage(
            f"Cannot serve metrics on {host}:{port}: {broken.strerror}. Choose another port with TOLLGATE_METRICS_PORT."
        ) from None
