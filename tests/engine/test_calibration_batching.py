"""The linear model on an engine with continuous batching: a step costs a fixed time and a time for
each sequence, prefill is chunked and mixed with decode, and lengths differ within a batch.
"""

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest
from batching_engine import StepSeconds, measured

from engine.calibration.design import LoadRange, fitted_windows, held_out_windows
from engine.calibration.report import fitted, report

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
