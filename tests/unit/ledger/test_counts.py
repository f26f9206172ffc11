"""The counters of every request give the same output as the metrics library itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.telemetry.counts import (
    _OVERHEAD_SECONDS,
    _QUEUE_SECONDS,
    _SECONDS,
    _TPOT_SECONDS,
    RequestCounts,
)
from tests.storage.factories import event

PLACE_LABELS = ("route", "deployment")
COUNTS = st.none() | st.integers(0, 1000)
BOUNDS = st.sampled_from([*_SECONDS, *_TPOT_SECONDS, *_OVERHEAD_SECONDS, *_QUEUE_SECONDS])
DURATIONS = BOUNDS | st.floats(0, 400)


@st.composite
def settled(draw: st.DrawFn) -> UsageEvent:
    """Return an event with any counted values."""
    return replace(
        event(),
        route=draw(st.sampled_from("ab")),
        deployment=draw(st.sampled_from("xy")),
        outcome=draw(st.sampled_from(Outcome)),
        cost_nusd=draw(COUNTS),
        duration_s=draw(DURATIONS),
        ttft_s=draw(st.none() | DURATIONS),
        tpot_s=draw(st.none() | DURATIONS),
        overhead_s=draw(st.none() | DURATIONS),
        queue_s=draw(st.none() | DURATIONS),
        max_gap_s=draw(st.none() | DURATIONS),
        engine_queue_s=draw(st.none() | DURATIONS),
        degraded=draw(st.sampled_from([None, "spill", "route:small"])),
        usage=TokenUsage(
            input_tokens=draw(COUNTS),
            cached_input_tokens=draw(COUNTS),
            output_tokens=draw(COUNTS),
            reasoning_tokens=draw(COUNTS),
        ),
    )


def as_the_library_counts(events: list[UsageEvent]) -> CollectorRegistry:
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    attempts = Counter(
        "tollgate_attempts_total", "-", (*PLACE_LABELS, "outcome"), registry=registry
    )
    tokens = Counter("tollgate_tokens_total", "-", (*PLACE_LABELS, "kind"), registry=registry)
    cost = Counter("tollgate_cost_usd_total", "-", PLACE_LABELS, registry=registry)
    unknown = Counter("tollgate_unknown_usage_total", "-", PLACE_LABELS, registry=registry)
    ttft = Histogram(
        "tollgate_ttft_seconds", "-", PLACE_LABELS, buckets=_SECONDS, registry=registry
    )
    tpot = Histogram(
        "tollgate_tpot_seconds", "-", PLACE_LABELS, buckets=_TPOT_SECONDS, registry=registry
    )
    duration = Histogram(
        "tollgate_upstream_seconds", "-", PLACE_LABELS, buckets=_SECONDS, registry=registry
    )
    overhead = Histogram(
        "tollgate_overhead_seconds", "-", PLACE_LABELS, buckets=_OVERHEAD_SECONDS, registry=registry
    )
    gap = Histogram("tollgate_gap_seconds", "-", PLACE_LABELS, buckets=_SECONDS, registry=registry)
    queue = Histogram(
        "tollgate_queue_seconds", "-", PLACE_LABELS, buckets=_QUEUE_SECONDS, registry=registry
    )
    engine_queue = Histogram(
        "tollgate_engine_queue_seconds",
        "-",
        PLACE_LABELS,
        buckets=_QUEUE_SECONDS,
        registry=registry,
    )
    degraded = Counter(
        "tollgate_degraded_attempts_total", "-", (*PLACE_LABELS, "how"), registry=registry
    )
    for one in events:
        where = (one.route, one.deployment)
        attempts.labels(*where, one.outcome.value).inc()
        for kind in ("input", "cached_input", "output", "reasoning"):
            if count := getattr(one.usage, f"{kind}_tokens"):
                tokens.labels(*where, kind).inc(count)
        if one.cost_nusd is None:
            unknown.labels(*where).inc()
        else:
            cost.labels(*where).inc(one.cost_nusd / 1e9)
        if one.degraded is not None:
            degraded.labels(*where, one.degraded).inc()
        times = (
            (ttft, one.ttft_s),
            (tpot, one.tpot_s),
            (duration, one.duration_s),
            (overhead, one.overhead_s),
            (gap, one.max_gap_s),
            (queue, one.queue_s),
            (engine_queue, one.engine_queue_s),
        )
        for histogram, seconds in times:
            if seconds is not None:
                histogram.labels(*where).observe(seconds)
    return registry


def samples(registry: CollectorRegistry) -> dict[tuple[object, ...], float]:
    """Every sample by name and labels; sums of floats to the nano."""
    return {
        (sample.name, *sorted(sample.labels.items())): round(sample.value, 9)
        for metric in registry.collect()
        for sample in metric.samples
    }


@given(st.lists(settled(), max_size=12))
def test_counts_read_as_the_library_would_count(events: list[UsageEvent]) -> None:
    """Dashboards and alerts were written for the library's series: a bucket's end belongs to it."""
    registry, counts = CollectorRegistry(), RequestCounts()
    registry.register(counts)
    for one in events:
        counts.count_event(one)
    expected = samples(as_the_library_counts(events))
    found = samples(registry)
    assert {
        name: value for name, value in found.items() if name != ("tollgate_inflight",)
    } == expected


def test_requests_are_counted_by_endpoint_and_status() -> None:
    """The error-rate alert divides these, and the drain waits for them."""
    registry, counts = CollectorRegistry(), RequestCounts()
    registry.register(counts)
    counts.in_flight = 3
    for status in (200, 200, 503):
        counts.count_request("/v1/chat/completions", status)
    labels = {"endpoint": "/v1/chat/completions"}
    assert registry.get_sample_value("tollgate_requests_total", labels | {"status": "200"}) == 2
    assert registry.get_sample_value("tollgate_requests_total", labels | {"status": "503"}) == 1
    assert registry.get_sample_value("tollgate_inflight") == 3
