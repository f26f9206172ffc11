"""Computes the figures of a benchmark from its measured requests: quantiles, throughput, goodput
under an SLO and USD per million output tokens.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import UsageError
from engine.load.measured import LoadRun, MeasuredRequest

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SLO_KEYS = ("ttft_ms", "tpot_ms", "e2e_ms")
LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
COLUMNS = (
    "profile",
    "requests",
    "failed",
    *LATENCIES,
    "throughput_tok_per_s",
    "goodput_per_s",
    "usd_per_mtok",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The latencies that a good request keeps, in seconds; None is no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def is_kept_by(self, request: MeasuredRequest) -> bool:
        """Return True if an answered request keeps each bound; one token has no TPOT."""
        pairs = (
            (request.ttft_s, self.ttft_s),
            (request.tpot_s, self.tpot_s),
            (request.e2e_s, self.e2e_s),
        )
        return all(
            value <= bound for value, bound in pairs if value is not None and bound is not None
        )


def read_slo(text: str) -> Slo:
    """Return the SLO in a text such as `ttft_ms=500,tpot_ms=50`. Raises `UsageError`."""
    bounds: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            bound_ms = float(value)
        except ValueError:
            bound_ms = -1.0
        if name not in SLO_KEYS or not 0 < bound_ms < float("inf"):
            raise UsageError(
                f"--slo {part.strip()!r} is no bound. Write {', '.join(SLO_KEYS)}, each as "
                "NAME=MILLISECONDS, with commas between them."
            )
        bounds[name.removesuffix("_ms") + "_s"] = bound_ms / 1000
    return Slo(**bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rent:
    """The price of the GPUs that ran the engine; unknown on a CPU or without a price."""

    usd_per_gpu_hour: float | None = None
    gpus: int = 1

    def usd_per_mtok(self, throughput_tok_per_s: float | None) -> float | None:
        """Return the rent for a million output tokens at this throughput."""
        if self.usd_per_gpu_hour is None or not throughput_tok_per_s:
            return None
        return self.usd_per_gpu_hour * self.gpus * 1e6 / (3600 * throughput_tok_per_s)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile of sorted values, between two of them by their distance (numpy's `linear`,
    R's type 7: Hyndman and Fan, The American Statistician 50 (1996) 361).
    """
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def quantiles(values: Iterable[float | None]) -> dict[str, float | None]:
    """Return p50, p95 and p99 of the values that are known."""
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return dict.fromkeys(QUANTILES)
    return {name: quantile(ordered, share) for name, share in QUANTILES.items()}


def pooled(runs: Sequence[LoadRun]) -> LoadRun:
    """Return the rounds of one engine as one run; its length is the sum of theirs."""
    return LoadRun(
        requests=[one for run in runs for one in run.requests],
        began=runs[0].began,
        duration_s=sum(run.duration_s for run in runs),
    )


def throughput_tok_per_s(runs: Sequence[LoadRun]) -> float | None:
    """Return the output tokens of answered requests per second; None if there are none."""
    duration_s = sum(run.duration_s for run in runs)
    tokens = sum(run.output_tokens for run in runs)
    return tokens / duration_s if tokens and duration_s else None


def run_row(profile: str | None, run: LoadRun, *, slo: Slo | None, rent: Rent) -> dict[str, Any]:
    """Return one run as a row of the contract's JSON. Failed requests are in `requests` and
    `failed` alone.
    """
    answered = run.answered
    throughput = throughput_tok_per_s([run])
    good = None if slo is None else sum(slo.is_kept_by(one) for one in answered)
    return {
        "profile": profile,
        "requests": len(run.requests),
        "failed": len(run.requests) - len(answered),
        "ttft_s": quantiles(one.ttft_s for one in answered),
        "tpot_s": quantiles(one.tpot_s for one in answered),
        "itl_s": quantiles(gap for one in answered for gap in one.gaps_s),
        "e2e_s": quantiles(one.e2e_s for one in answered),
        "throughput_tok_per_s": throughput,
        "goodput_per_s": None if good is None else good / run.duration_s if good else 0.0,
        "usd_per_mtok": rent.usd_per_mtok(throughput),
    }


def failure_counts(run: LoadRun) -> list[tuple[str, int]]:
    """Return the reasons of the failed requests, the most frequent first."""
    return Counter(one.failure for one in run.requests if one.failure is not None).most_common()
