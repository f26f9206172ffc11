"""Shows each self-hosted engine's live signals as metrics when `/metrics` is read; one that an
engine does not report is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.domain.deployments.engine_signals import QUANTILES, EngineSignals

_GAUGES: Mapping[str, tuple[str, Callable[[EngineSignals], float | None]]] = {
    "tollgate_engine_queue": (
        "Requests that wait in the engine.",
        lambda signals: signals.queue,
    ),
    "tollgate_engine_running": (
        "Requests that the engine works on.",
        lambda signals: signals.running,
    ),
    "tollgate_engine_kv_use_ratio": (
        "Share of the engine's KV cache in use.",
        lambda signals: signals.kv_use,
    ),
    "tollgate_engine_prefix_hit_ratio": (
        "Share of looked-up prompt tokens found in the prefix cache, in the last minute.",
        lambda signals: signals.prefix_hit_rate,
    ),
    "tollgate_engine_pressure": (
        "Demand in units of the engine's capacity: 1 is full, above 1 requests wait.",
        lambda signals: signals.pressure,
    ),
}


class EngineGauges(Collector):
    """The gauges of self-hosted engines by deployment; the policy bounds their number."""

    def __init__(self, read: Callable[[], Mapping[str, EngineSignals | None]]) -> None:
        """Keep the reader of all engines' signals, which is called for each page."""
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Yield the gauges of every engine that was sampled lately."""
        engines = self._read()
        up = GaugeMetricFamily(
            "tollgate_engine_up",
            "1 if the engine's metrics page answered lately, 0 if not.",
            labels=("deployment",),
        )
        for name, signals in engines.items():
            up.add_metric((name,), float(signals is not None))
        yield up
        answering = {name: signals for name, signals in engines.items() if signals is not None}
        for metric, (words, figure_of) in _GAUGES.items():
            family = GaugeMetricFamily(metric, words, labels=("deployment",))
            for name, signals in answering.items():
                if (figure := figure_of(signals)) is not None:
                    family.add_metric((name,), figure)
            yield family
        yield _quantiles(
            "tollgate_engine_ttft_seconds",
            "Time to first token in the last minute, by the engine's own histogram.",
            {name: signals.ttft.quantile for name, signals in answering.items()},
        )
        yield _quantiles(
            "tollgate_engine_tpot_seconds",
            "Time per output token in the last minute, by the engine's own histogram.",
            {name: signals.tpot.quantile for name, signals in answering.items()},
        )


def _quantiles(
    metric: str, words: str, quantile_of: Mapping[str, Callable[[float], float | None]]
) -> Metric:
    """Return the gauges of a time's quantiles by deployment."""
    family = GaugeMetricFamily(metric, words, labels=("deployment", "quantile"))
    for name, quantile in quantile_of.items():
        for share in QUANTILES:
            if (seconds := quantile(share)) is not None:
                family.add_metric((name, f"{share:g}"), seconds)
    return family
