"""The linear model on an engine with continuous batching: a step costs a fixed time and a time for
each sequence, prefill is chunked and mixed with decode, and lengths differ within a batch.
"""

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from batching_engine import StepSeconds, measured

from engine.calibration.design import (
    LoadRange,
    PlannedWindow,
    fitted_windows,
    held_out_windows,
)
from engine.calibration.experiment import WindowTimes
from engine.calibration.report import HELD_OUT_LIMIT, MOST_WIDTH, fitted, report

LOAD = LoadRange(prompt=512, answer=64, concurrency=8)
CPU = StepSeconds()
GPU = StepSeconds(step=8e-3, sequence=20e-6, prompt_token=10e-6, cached_token=1e-7, block=16)


def calibrated(seconds: StepSeconds, seed: int, load: LoadRange = LOAD) -> dict[str, Any]:
    """The result of one calibration in virtual time."""
    rng = random.Random(seed)
    planned = fitted_windows(load, rng)
    fit = fitted(load, [measured(one, rng, seconds) for one in planned])
    held_out = held_out_windows(load, rng, planned)
    return report("virtual", fit, [measured(one, rng, seconds) for one in held_out])


@pytest.mark.parametrize(
    "seconds",
    [CPU, GPU, replace(CPU, network=0.05), replace(CPU, chunk=256)],
    ids=["cpu", "gpu", "far", "small-chunks"],
)
def test_mixed_load_at_other_concurrencies_is_predicted(seconds: StepSeconds) -> None:
    """Within 10 %, median of five; one flat price per token on the same load is far off."""
    results = [calibrated(seconds, seed) for seed in range(5)]
    errors = [one["held_out_error"] for one in results]
    flat = [one["flat_price_error"] for one in results]
    assert statistics.median(errors) < 0.05
    assert max(errors) < 0.1
    assert statistics.median(flat) > 3 * statistics.median(errors)
    assert [one["refused"] for one in results] == [[]] * 5


def test_the_weights_are_those_of_the_steps() -> None:
    """A decode step is shared by its batch; what a token adds to a step is its weight."""
    result = calibrated(CPU, 1)
    seconds = CPU.sequence + CPU.step / LOAD.concurrency
    assert 1 / result["output_tok_per_s"] == pytest.approx(seconds, rel=0.05)
    assert 1 / result["input_tok_per_s"] == pytest.approx(CPU.prompt_token, rel=0.1)
    assert result["seconds"]["step"] == pytest.approx(CPU.step, rel=0.1)
    assert result["cached_input_tok_per_s"] > 10 * result["input_tok_per_s"]


@pytest.mark.parametrize("most", [4, 5, 6, 8])
def test_the_weights_are_those_of_the_sequences_that_run(most: int) -> None:
    """Requests in the queue are in no batch. The time to the first token counts from scheduling in
    vLLM 0.32: less the queue it was negative, or gave the same engine 2.4 times its rate.
    """
    fitting = calibrated(replace(CPU, most=most), 1, replace(LOAD, concurrency=most))
    queueing = calibrated(replace(CPU, most=most), 1, replace(LOAD, concurrency=2 * most + 4))
    assert fitting["refused"] == queueing["refused"] == []
    assert queueing["running"] == pytest.approx(most, rel=0.08)
    for rate in ("input_tok_per_s", "output_tok_per_s"):
        assert queueing[rate] == pytest.approx(fitting[rate], rel=0.1)


@pytest.mark.parametrize("network", [0.4, 0.8])
def test_requests_that_wait_outside_of_the_queue_are_in_no_batch(network: float) -> None:
    """A real vLLM on a busy machine kept 12 of 16 requests in its server, with times in its queue
    of 0.02 ms: as if 15.5 ran at once, an output token got 2.6 times its rate.
    """
    few = replace(CPU, most=4)
    fitting = calibrated(few, 1, replace(LOAD, concurrency=4))
    waiting = calibrated(replace(few, network=network), 1, replace(LOAD, concurrency=16))
    assert waiting["running"] == 4
    assert waiting["output_tok_per_s"] == pytest.approx(fitting["output_tok_per_s"], rel=0.2)


def test_a_rate_without_bounds_is_no_price() -> None:
    """Where the requests at work hardly vary, the output token and its step cannot be separated:
    rates of 74 to 7,545 tokens a second became prices, one with no upper end.
    """
    load = LoadRange(prompt=512, answer=64, concurrency=16)
    lone = replace(CPU, most=1, is_silent=True)  # it runs one request at a time
    wide = 0
    for seed in range(6):
        rng = random.Random(seed)

        def timed(planned: PlannedWindow, rng: random.Random = rng) -> WindowTimes:
            found = measured(planned, rng, lone)
            window = found.by_client
            at_work, noise = rng.uniform(0.98, 1), rng.gauss(1, 0.01)
            own = replace(window, concurrency=at_work, engine_s=window.engine_s * noise)
            return replace(found, by_engine=own)

        planned = fitted_windows(load, rng)
        fit = fitted(load, [timed(one) for one in planned])
        held_out = [timed(one) for one in held_out_windows(load, rng, planned)]
        result = report("virtual", fit, held_out)
        assert result["held_out_error"] < HELD_OUT_LIMIT, "its load is predicted all the same"
        low, high = result["intervals"]["output_tok_per_s"]
        is_wide = high is None or high > MOST_WIDTH * low
        reasons = [one for one in result["refused"] if "output tokens is not bounded" in one]
        assert len(reasons) == is_wide, (seed, low, high)
        wide += is_wide
    assert wide >= 2


def test_an_interval_is_at_most_four_times_its_lower_end() -> None:
    """Unless it is that of cached input whose price is below that of input even at most."""
    for seconds in (CPU, GPU):
        for seed in range(3):
            result = calibrated(seconds, seed)
            for kind in ("input", "output"):
                low, high = result["intervals"][f"{kind}_tok_per_s"]
                assert high <= MOST_WIDTH * low


def test_a_network_of_50_ms_is_in_no_weight() -> None:
    """The same engine behind a slow line must cost the same."""
    near, far = calibrated(CPU, 1), calibrated(replace(CPU, network=0.05), 1)
    for rate in ("input_tok_per_s", "output_tok_per_s"):
        assert far[rate] == pytest.approx(near[rate], rel=0.15)
        by_client = far["cross_check"][rate]
        assert by_client == pytest.approx(near[rate], rel=0.15)
    assert far["cross_check"]["engine_share"] < near["cross_check"]["engine_share"]


def test_attention_over_long_contexts_is_refused() -> None:
    """Each written token reads its whole context: beyond some length a token's price depends on
    the place where it stands.
    """
    long = LoadRange(prompt=4096, answer=256, concurrency=8)
    result = calibrated(replace(CPU, pair=0.3e-6), 1, long)
    assert any("The residuals bend" in reason for reason in result["refused"])
