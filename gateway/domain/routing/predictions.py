"""Declares the figures that predictions start from and their results, and computes rates and queue
times for `objectives.expect`, which predicts.

A prediction is only for ordering, so it may be a float; charges are exact and computed in
`domain.pricing.pricing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from math import isfinite, sqrt

from msgspec import Struct

from gateway.domain.deployments.engine_load import EngineLoad
from gateway.domain.policy.policy import LatencyPrior
from gateway.domain.pricing.pricing import MTOK, Price
from gateway.domain.pricing.tokens import TokenKind

TOKENS_PER_BYTE = 0.25
OUTPUT_TOKENS = 256.0
DEFAULT_PRIOR = LatencyPrior()
NUSD_PER_USD = 1_000_000_000

# of a latency bound; otherwise a deployment that missed it would flap with every spared request
KEPT_AGAIN_AT = 0.8

# The bounds that can be missed, by their names in events and explanations.
TTFT, COST, WINDOW = "ttft_p95", "max_cost", "context_window"

# A bound must hold for 95 of 100 requests, most of which find a shorter queue than the last
# admitted one. So that last one may be predicted at one deviation above the mean. With 1.645
# deviations, which one in twenty exceeds, a self-hosted engine is idle for more of the time
# (docs/routing.md).
LATE_DEVIATIONS = 1.0

Rates = tuple[tuple[float, float, float, float], ...]


class Prediction(Struct, frozen=True, gc=False):
    """The current figures of one candidate. Samples are counted by their remaining weight.

    `waiting` is the engine's reported queue before a new request, None without a recent report.
    """

    ttft_s: float = DEFAULT_PRIOR.ttft_s
    ttft_p95_s: float = DEFAULT_PRIOR.ttft_s
    tpot_s: float = DEFAULT_PRIOR.tpot_s
    samples: float = 0.0
    tokens_per_byte: float = TOKENS_PER_BYTE
    cached_share: float = 0.0
    cached_samples: float = 0.0
    waiting: float | None = None


class Conditions(Struct, frozen=True, kw_only=True):
    """The current figures of all candidates of a decision: `predictions` in the order of its
    eligible ones.

    `output_tokens` is the mean of one answer, learned per route and team. `late` are the
    deployments that missed the latency bound at the last look. `in_flight` counts the attempts in
    flight at each.
    """

    predictions: Sequence[Prediction]
    output_tokens: float = OUTPUT_TOKENS
    output_samples: float = 0.0
    in_flight: Mapping[str, int] = {}
    late: AbstractSet[str] = frozenset()


class Expected(Struct, frozen=True, gc=False):
    """One request's predicted tokens, cost and time at one candidate.

    `misses` are the bounds it would miss.
    """

    cost_nusd: float
    input_tokens: float
    output_tokens: float
    cached_share: float
    ttft_s: float
    ttft_p95_s: float
    tpot_s: float
    samples: float
    cached_samples: float
    output_samples: float
    waiting: float | None = None
    misses: tuple[str, ...] = ()

    def record(self) -> dict[str, object]:
        """Return the prediction as an event stores it: whole tokens and nano-dollars, hundredths of
        milliseconds.
        """
        kept: dict[str, object] = {
            "cost_nusd": _whole(self.cost_nusd),
            "input_tokens": _whole(self.input_tokens),
            "output_tokens": _whole(self.output_tokens),
            "ttft_s": _rounded(self.ttft_s),
            "ttft_p95_s": _rounded(self.ttft_p95_s),
            "tpot_s": _rounded(self.tpot_s),
            "samples": _whole(self.samples),
        }
        if self.cached_share:
            kept["cached_share"] = _rounded(self.cached_share)
        if self.waiting is not None:
            kept["waiting"] = _whole(self.waiting)
        if self.misses:
            kept["misses"] = list(self.misses)
        return kept


def rates_of(price: Price) -> Rates:
    """Return the standard tier's rates in nano-dollars a token: (minimum input, input, cached
    input, output).

    The highest context tier comes first. Cached input without a rate costs the same as input, as in
    charges.
    """
    thresholds = {rate.from_input_tokens for rate in price.rates if rate.service_tier is None} | {0}
    return tuple(
        (float(least), *_rates_from(price, least)) for least in sorted(thresholds, reverse=True)
    )


def _rates_from(price: Price, least: int) -> tuple[float, float, float]:
    """Return the rates of input, cached input and output in nano-dollars a token, for prompts of at
    least `least` tokens.
    """
    steps = price.steps(least)
    rates = {kind: float(step.usd_per_mtok) * (NUSD_PER_USD / MTOK) for kind, step in steps.items()}
    input_nusd = rates.get(TokenKind.INPUT, 0.0)
    return (
        input_nusd,
        rates.get(TokenKind.CACHED_INPUT, input_nusd),
        rates.get(TokenKind.OUTPUT, 0.0),
    )


def _whole(figure: float) -> int | None:
    """Return a figure as a whole number for JSON; None for NaN and infinity."""
    return round(figure) if isfinite(figure) else None


def _rounded(figure: float) -> float | None:
    """Return a figure with five decimals for JSON; None for NaN and infinity."""
    return round(figure, 5) if isfinite(figure) else None


def queue_s(load: EngineLoad, *, ttft_s: float) -> tuple[float, float]:
    """Return the seconds that a new request waits at an engine before its prefill: the mean, and
    the cautious figure that counts against a latency bound.

    It waits until the excess over the engine's room, itself included, has ended. That is the time
    until the n-th end of a Poisson process of this rate, with mean n / rate and deviation √n /
    rate. Without an observed room, an engine without waiting requests counts as free. If nothing
    finishes, the queue moves as slowly as was observed, at worst one after the other.
    """
    waiting = load.waiting or 0.0
    if load.room is None and waiting <= 0.0:
        return 0.0, 0.0
    # Long prompts leave less of it.
    room = (load.running or 0.0) if load.room is None or waiting > 0.0 else load.room
    ends = (load.running or 0.0) + waiting + load.sent_since + 1.0 - room
    if load.finished_per_s:
        ends -= load.finished_per_s * load.age_s  # the engine has continued since
        if ends <= 0.0:
            return 0.0, 0.0
        return ends / load.finished_per_s, (
            ends + LATE_DEVIATIONS * sqrt(ends)
        ) / load.finished_per_s
    slow_s = max(load.queue_s or 0.0, ends * ttft_s) if ends > 0.0 else 0.0
    return slow_s, slow_s
