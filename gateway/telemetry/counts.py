"""Counts requests and attempts as plain numbers, and converts them to metrics when `/metrics` is
read.

The metrics library takes a lock and checks labels for each number, and a request has a dozen. These
counters change and are read on the event loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import NUSD_PER_USD

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TPOT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)
_QUEUE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)
_PLACE_LABELS = ("route", "deployment")


class Seconds:
    """A histogram of durations. `bounds` are the inclusive upper ends of its buckets."""

    __slots__ = ("_bounds", "_counts", "_sum_s")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Start an empty histogram."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # the last bucket is for longer times
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration in its bucket."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    @property
    def is_empty(self) -> bool:
        """Return True if no duration was observed yet."""
        return not any(self._counts)

    def write(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add this histogram as one series of a metric."""
        bounds = (*self._bounds, float("inf"))
        ends = [str(floatToGoString(bound)) for bound in bounds]  # type: ignore[no-untyped-call]
        family.add_metric(
            labels, list(zip(ends, accumulate(self._counts), strict=True)), self._sum_s
        )


class _Place:
    """The counters of one route's attempts at one deployment."""

    __slots__ = (
        "cached_input",
        "cost_nusd",
        "degraded",
        "duration",
        "engine_queue",
        "gap",
        "input",
        "is_priced",
        "outcomes",
        "output",
        "overhead",
        "queue",
        "reasoning",
        "tpot",
        "ttft",
        "unknown",
    )

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.outcomes: dict[str, int] = {}
        self.degraded: dict[str, int] = {}
        self.input = self.cached_input = self.output = self.reasoning = 0
        self.cost_nusd = self.unknown = 0
        self.is_priced = False
        self.ttft, self.tpot, self.duration = (
            Seconds(_SECONDS),
            Seconds(_TPOT_SECONDS),
            Seconds(_SECONDS),
        )
        self.gap, self.overhead = Seconds(_SECONDS), Seconds(_OVERHEAD_SECONDS)
        self.queue, self.engine_queue = Seconds(_QUEUE_SECONDS), Seconds(_QUEUE_SECONDS)

    def count(self, event: UsageEvent) -> None:
        """Add one settled attempt to the counters and histograms."""
        outcome, usage = event.outcome, event.usage
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.input += usage.input_tokens or 0
        self.cached_input += usage.cached_input_tokens or 0
        self.output += usage.output_tokens or 0
        self.reasoning += usage.reasoning_tokens or 0
        if event.cost_nusd is None:
            self.unknown += 1
        else:
            self.cost_nusd += event.cost_nusd
            self.is_priced = True
        if event.ttft_s is not None:
            self.ttft.observe(event.ttft_s)
        if event.tpot_s is not None:
            self.tpot.observe(event.tpot_s)
        if event.max_gap_s is not None:
            self.gap.observe(event.max_gap_s)
        if event.queue_s is not None:
            self.queue.observe(event.queue_s)
        if event.engine_queue_s is not None:
            self.engine_queue.observe(event.engine_queue_s)
        if event.overhead_s is not None:
            self.overhead.observe(event.overhead_s)
        if event.degraded is not None:
            self.degraded[event.degraded] = self.degraded.get(event.degraded, 0) + 1
        self.duration.observe(event.duration_s)


class RequestCounts(Collector):
    """Requests and attempts, by endpoint and by route and deployment; policy and API bound their
    number.
    """

    def __init__(self) -> None:
        """Start without any count."""
        self.in_flight = 0
        self._places: dict[tuple[str, str], _Place] = {}
        self._answers: dict[tuple[str, int], int] = {}

    def count_event(self, event: UsageEvent) -> None:
        """Count one settled attempt under its route and deployment."""
        place_labels = (event.route, event.deployment)
        place = self._places.get(place_labels)
        if place is None:
            place = self._places[place_labels] = _Place()
        place.count(event)

    def count_request(self, endpoint: str, status: int) -> None:
        """Count one answered request by endpoint and HTTP status."""
        key = (endpoint, status)
        self._answers[key] = self._answers.get(key, 0) + 1

    def collect(self) -> Iterable[Metric]:
        """Yield the current metrics of all counts. Called on the event loop."""
        yield GaugeMetricFamily("tollgate_inflight", "Requests in flight.", value=self.in_flight)
        answers = CounterMetricFamily(
            "tollgate_requests_total", "Requests answered.", labels=("endpoint", "status")
        )
        for (endpoint, status), count in list(self._answers.items()):
            answers.add_metric((endpoint, str(status)), count)
        yield answers
        places = list(self._places.items())
        yield from _counters(places)
        yield from _histograms(places)


def _counters(places: list[tuple[tuple[str, str], _Place]]) -> Iterable[Metric]:
    """Return the counter metrics of attempts, tokens, cost and unknown usage, by route and
    deployment.
    """
    attempts = CounterMetricFamily(
        "tollgate_attempts_total", "Upstream attempts.", labels=(*_PLACE_LABELS, "outcome")
    )
    tokens = CounterMetricFamily(
        "tollgate_tokens_total",
        "Tokens metered; cached is part of input, reasoning of output.",
        labels=(*_PLACE_LABELS, "kind"),
    )
    cost = CounterMetricFamily(
        "tollgate_cost_usd_total", "Metered cost in USD.", labels=_PLACE_LABELS
    )
    unknown = CounterMetricFamily(
        "tollgate_unknown_usage_total", "Attempts whose usage is unknown.", labels=_PLACE_LABELS
    )
    degraded = CounterMetricFamily(
        "tollgate_degraded_attempts_total",
        "Attempts that a route's bounds sent elsewhere: spill, or route:NAME.",
        labels=(*_PLACE_LABELS, "how"),
    )
    for place_labels, place in places:
        for outcome, count in list(place.outcomes.items()):
            attempts.add_metric((*place_labels, outcome), count)
        for kind in ("input", "cached_input", "output", "reasoning"):
            if count := getattr(place, kind):
                tokens.add_metric((*place_labels, kind), count)
        if place.is_priced:
            cost.add_metric(place_labels, place.cost_nusd / NUSD_PER_USD)
        if place.unknown:
            unknown.add_metric(place_labels, place.unknown)
        for how, count in list(place.degraded.items()):
            degraded.add_metric((*place_labels, how), count)
    return (attempts, tokens, cost, unknown, degraded)


# The histograms, by their attribute.
_HISTOGRAMS = {
    "ttft": ("tollgate_ttft_seconds", "Time to first token."),
    "tpot": ("tollgate_tpot_seconds", "Time per output token after the first."),
    "gap": ("tollgate_gap_seconds", "Longest silence between two pieces of an answer's content."),
    "queue": ("tollgate_queue_seconds", "Wait in the gateway for room, budget or a pause."),
    "engine_queue": ("tollgate_engine_queue_seconds", "Wait in the engine, by its own report."),
    "overhead": ("tollgate_overhead_seconds", "The gateway's own time before it sends."),
    "duration": ("tollgate_upstream_seconds", "Duration of an attempt."),
}


def _histograms(places: list[tuple[tuple[str, str], _Place]]) -> Iterable[Metric]:
    """Yield the histogram metrics of times, by route and deployment."""
    for name, (metric, words) in _HISTOGRAMS.items():
        family = HistogramMetricFamily(metric, words, labels=_PLACE_LABELS)
        for place_labels, place in places:
            seconds: Seconds = getattr(place, name)
            if not seconds.is_empty:
                seconds.write(family, place_labels)
        yield family
