"""An engine that reports times which cannot be, so that a calibration makes any price of them."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from engine.calibration.cost_model import fit
from engine.calibration.design import (
    LoadRange,
    PlannedWindow,
    fitted_windows,
    held_out_windows,
)
from engine.calibration.experiment import WindowTimes, window_times
from engine.calibration.report import FittedCalibration, refusals, report
from engine.errors import EngineError
from engine.load.measured import LoadRun, MeasuredRequest

PLANNED = PlannedWindow(streams=1, prompts=(9, 9), answers=(4, 4), cached_shares=(0.0, 0.0))
TRUE = {"time_to_first_token_ms": 300.0, "generation_time_ms": 650.0, "queue_time_ms": 5.0}
FALSE: dict[str, Any] = {
    "text": TRUE | {"time_to_first_token_ms": "300"},
    "NaN": TRUE | {"time_to_first_token_ms": math.nan},
    "infinite": TRUE | {"generation_time_ms": math.inf},
    "beyond every float": TRUE | {"generation_time_ms": 10**400},
    "negative": TRUE | {"queue_time_ms": -5.0},
    "a list": [1],
    "ten times the client's": {name: 10 * value for name, value in TRUE.items()},
    "more with its queue": TRUE | {"queue_time_ms": 100.0},
    "none at all": TRUE | {"time_to_first_token_ms": 0, "generation_time_ms": 0},
}


def run_of(metrics: Any) -> LoadRun:
    """Return a run of one request that took its client a second."""
    request = MeasuredRequest(
        scheduled_s=0.0,
        sent_s=0.0,
        token_times_s=[0.35, 1.0],
        ended_s=1.0,
        prompt_tokens=9,
        cached_tokens=0,
        output_tokens=4,
        engine_metrics=metrics,
        failure=None,
    )
    return LoadRun(requests=[request], began=0.0, duration_s=1.0)


def test_true_times_are_taken() -> None:
    """The other tests would pass if all times were refused."""
    by_engine = window_times(PLANNED, run_of(TRUE)).by_engine
    assert by_engine is not None
    assert by_engine.engine_s == pytest.approx(1.0)


@pytest.mark.parametrize("metrics", FALSE.values(), ids=FALSE)
def test_times_that_cannot_be_are_no_price(metrics: Any) -> None:
    """Ten times the time that had passed was ten times the price, and NaN in the held-out load was
    an error below 10 %.
    """
    with pytest.raises(EngineError, match="Nothing was calibrated"):
        window_times(PLANNED, run_of(metrics))


def test_an_error_that_is_no_number_is_no_small_one() -> None:
    """A comparison with NaN is always false."""
    assert list(refusals(0.05, [])) == []
    assert len(list(refusals(math.nan, []))) == 1


def test_a_constant_time_is_no_price() -> None:
    """By the noise alone, one calibration in five had a price: 0.2 to 1.8 million tokens per
    second, for the same engine.
    """
    load = LoadRange(prompt=1024, answer=128, concurrency=16)
    found: list[list[str]] = []
    for seed in range(30):
        rng = random.Random(seed)
        fitted = fitted_windows(load, rng)
        windows, held_out = (
            [timed(one, constant_s=rng.gauss(1, 0.01)) for one in planned]
            for planned in (fitted, held_out_windows(load, rng, fitted))
        )
        model = fit([one.by_client for one in windows])
        calibration = FittedCalibration(load=load, clock="client", windows=windows, model=model)
        try:
            found.append(report("odd", calibration, held_out)["refused"])
        except EngineError:  # a time below 0: too noisy
            continue
    caught = sum("does not grow with the tokens" in " ".join(reasons) for reasons in found)
    # An interval of 95 % misses the truth now and then.
    assert caught >= 0.8 * len(found) > 3


def timed(planned: PlannedWindow, *, constant_s: float) -> WindowTimes:
    """Return a window whose requests all took the same time."""
    prompt, answer = planned.prompts[1], planned.answers[1]
    cached = round(prompt * planned.cached_shares[1])
    requests = [
        MeasuredRequest(
            scheduled_s=0.0,
            sent_s=0.0,
            token_times_s=[constant_s],
            ended_s=constant_s,
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=answer,
            engine_metrics=None,
            failure=None,
        )
    ] * planned.streams
    return window_times(planned, LoadRun(requests=requests, began=0.0, duration_s=constant_s))
