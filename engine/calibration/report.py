"""Puts the result of a calibration together: weights, tests, residuals and the reasons for which
it is refused, as plain values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from engine.calibration.cost_model import (
    BEND_P_VALUE,
    BEND_SHARE,
    CURVE_SOURCE,
    CURVES,
    KINDS,
    Bend,
    CostModel,
    LoadWindow,
    TokenKind,
    bends,
    fit,
    flat_time_s,
    prediction_error,
)
from engine.calibration.design import LoadRange
from engine.calibration.experiment import Clock, WindowTimes
from engine.errors import EngineError

HELD_OUT_LIMIT = 0.10
MOST_WIDTH = 4.0
"""The upper end of a rate's interval over its lower end: beyond, the rate is no price."""
DIGITS = 6
"""Significant digits of measured figures; their intervals are far wider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCalibration:
    """The windows of one calibration with the model that was fitted to them by one clock."""

    load: LoadRange
    clock: Clock
    windows: Sequence[WindowTimes]
    model: CostModel

    @property
    def running(self) -> float:
        """Return how many requests ran at once at the full concurrency: those in flight without
        those in the engine's queue, and never more than were at work at once. The network keeps its
        part, which is in no weight; a slow server may keep requests outside of the queue.
        """
        streams = max(one.planned.streams for one in self.windows)
        full = [one for one in self.windows if one.planned.streams == streams]
        in_engine = self.load.concurrency - median(one.queued for one in full)
        at_work = [one.most_at_work for one in full if one.most_at_work is not None]
        return max(1.0, min(in_engine, max(at_work, default=in_engine)))

    def loaded(self, windows: Sequence[WindowTimes]) -> list[LoadWindow]:
        """Return windows by the clock of the fit. Raises `EngineError` if it did not time all."""
        found = [window.by(self.clock) for window in windows]
        timed = [window for window in found if window is not None]
        if len(timed) < len(windows):
            raise EngineError(
                "The engine reports its own times for a part of the load alone, so they cannot be "
                "checked. Nothing was calibrated. Check its --enable-per-request-metrics."
            )
        return timed


def fitted(load: LoadRange, windows: Sequence[WindowTimes]) -> FittedCalibration:
    """Fit the model, by the engine's clock if it timed all windows. Raises `EngineError`."""
    is_timed = all(window.by_engine is not None for window in windows)
    clock: Clock = "engine" if is_timed else "client"
    timed = [window.by(clock) for window in windows]
    model = fit([window for window in timed if window is not None])
    return FittedCalibration(load=load, clock=clock, windows=windows, model=model)


def report(
    name: str, calibration: FittedCalibration, held_out: Sequence[WindowTimes]
) -> dict[str, Any]:
    """Return the JSON of the contract, with the details beside it.

    Raises: EngineError: an input or output token came out as free.
    """
    model, load = calibration.model, calibration.load
    fit_windows = calibration.loaded(calibration.windows)
    checked = calibration.loaded(held_out)
    measured_s = [window.engine_s for window in checked]
    error = prediction_error(measured_s, [model.predict_s(window) for window in checked])
    flat_s = flat_time_s(fit_windows)
    running = calibration.running
    tests = bends(fit_windows, model)
    return {
        "deployment": name,
        **rates(model, running),
        "intervals": intervals(model, running),
        "r_squared": _rounded(model.r_squared),
        "held_out_error": _rounded(error),
        "price_id": None,
        "flat_price_error": _rounded(
            prediction_error(measured_s, [flat_s * window.tokens for window in checked])
        ),
        "concurrency": load.concurrency,
        "running": _rounded(running),
        "longest_prompt": load.prompt,
        "longest_answer": load.answer,
        "clock": calibration.clock,
        "seconds": {
            name: _rounded(model.coefficient_s(name))
            for name in ("round", "input", "cached_input", "output", "step")
        },
        "bends": [
            {"curve": one.curve, "p_value": _rounded(one.p_value), "share": _rounded(one.share)}
            for one in tests
        ],
        "cross_check": cross_check(calibration),
        "residuals": [*residuals(calibration, calibration.windows)],
        "held_out": [*residuals(calibration, held_out)],
        "refused": [*refusals(error, tests), *_unbounded(model, running)],
    }


def rates(model: CostModel, concurrency: float) -> dict[str, float | None]:
    """Return the tokens per second of each kind at a concurrency."""
    times = {kind: model.token_time(kind, concurrency) for kind in KINDS}
    return {
        f"{kind}_tok_per_s": None if time is None else _rounded(time.tok_per_s)
        for kind, time in times.items()
    }


def intervals(model: CostModel, concurrency: float) -> dict[str, list[float | None] | None]:
    """Return the 95 % interval of each rate; an end is None if the engine time may be 0."""
    times = {kind: model.token_time(kind, concurrency) for kind in KINDS}
    return {
        f"{kind}_tok_per_s": None
        if time is None
        else [_rounded(end) for end in time.interval_tok_per_s]
        for kind, time in times.items()
    }


def cross_check(calibration: FittedCalibration) -> dict[str, Any] | None:
    """Return the same fit by the client's clock, if the engine's own was used: the rates, and the
    ratio of each to the engine's.
    """
    if calibration.clock == "client":
        return None
    by_client = [window.by_client for window in calibration.windows]
    by_engine = calibration.loaded(calibration.windows)
    own = rates(calibration.model, calibration.running)
    try:
        other = rates(fit(by_client), calibration.load.concurrency)
    except EngineError as error:
        return {"clock": "client", "problem": str(error)}
    at_work = sum(window.concurrency * window.engine_s for window in by_engine)
    in_flight = sum(window.concurrency * window.engine_s for window in by_client)
    return {
        "clock": "client",
        "engine_share": _rounded(at_work / in_flight),
        **other,
        "ratios": {
            name: _rounded(value / base) if value and (base := own[name]) else None
            for name, value in other.items()
        },
    }


def residuals(
    calibration: FittedCalibration, windows: Sequence[WindowTimes]
) -> Iterator[dict[str, Any]]:
    """Yield each window's load, its measured and its predicted engine time."""
    for times, window in zip(windows, calibration.loaded(windows), strict=True):
        predicted_s = calibration.model.predict_s(window)
        yield {
            "streams": times.planned.streams,
            "requests": window.requests,
            "input_tokens": window.input_tokens,
            "cached_input_tokens": window.cached_input_tokens,
            "output_tokens": window.output_tokens,
            "measured_s": _rounded(window.engine_s),
            "predicted_s": _rounded(predicted_s),
            "error": _rounded(predicted_s / window.engine_s - 1),
        }


def refusals(held_out_error: float, tests: Sequence[Bend]) -> Iterator[str]:
    """Yield each reason for which the weights are no price, with the next step."""
    if not held_out_error <= HELD_OUT_LIMIT:  # also if it is no number
        yield (
            f"The weights miss the engine time of other load by {held_out_error:.1%}; at most "
            f"{HELD_OUT_LIMIT:.0%} is allowed. Stop other work on the engine, or give it more "
            "--seconds."
        )
    for one in tests:
        if one.counts:
            yield (
                f"The residuals bend: the square of the {one.curve} length moves the engine time "
                f"by up to {one.share:.1%} (p = {one.p_value:.1g}; a bend counts above "
                f"{BEND_SHARE:.0%} and below p = {BEND_P_VALUE / len(CURVES):g}). One price for a "
                f"token would be wrong at some lengths. Calibrate for a smaller --{one.curve}. "
                f"Test: {CURVE_SOURCE}."
            )


def _unbounded(model: CostModel, concurrency: float) -> Iterator[str]:
    """Yield a reason for each rate that the measurement does not bound.

    Cached input may cost nothing that can be seen: its rate is then the lower end of the interval,
    so its price is the most that it can cost. That bounds it if it is below the price of input.
    """
    both: tuple[TokenKind, ...] = ("input", "output")
    times = {kind: model.token_time(kind, concurrency) for kind in KINDS}
    if all((time := times[kind]) is None or time.low_s <= 0 for kind in both):
        yield (
            "The engine time does not grow with the tokens: input and output may both cost nothing."
            " Check that the engine itself answers, or give more --seconds and a longer --answer."
        )
        return
    plain = times["input"]
    for kind, time in times.items():
        if time is None or time.high_s <= MOST_WIDTH * time.low_s:
            continue
        if kind == "cached_input" and plain is not None and time.high_s <= plain.seconds:
            continue
        low, high = time.interval_tok_per_s
        upper = "no upper end" if high is None else f"{high:,.0f}"
        yield (
            f"The rate of {kind.replace('_', ' ')} tokens is not bounded: {low:,.0f} to {upper} "
            f"tokens/s (95 %); at most a factor of {MOST_WIDTH:g} is allowed. Did the engine run "
            "fewer requests at once than asked (max_num_seqs)? Give a smaller --concurrency, more "
            "--seconds, or stop other work on the engine."
        )


def _rounded(value: float | None) -> float | None:
    """Return a figure with its significant digits."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
