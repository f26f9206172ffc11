"""Recent observations: older samples count less, the prior counts as five, and memory does not
grow.
"""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.samples import HALF_LIFE_S, PRIOR_SAMPLES, Mean, Quantiles

seconds = st.floats(0.001, 600)


def filled(values: list[float], *, at_s: float = 0.0) -> Quantiles:
    found = Quantiles()
    for value in values:
        found.add(value, at_s)
    return found


def test_without_samples_the_prior_holds() -> None:
    """An unused deployment is predicted exactly as declared."""
    assert Quantiles().at(5.0, prior_s=0.3) == (0.3, 0.3, 0.0)
    mean = Mean()
    assert (mean.value(5.0, prior=256.0), mean.weight(5.0)) == (256.0, 0.0)


def test_five_samples_weigh_as_much_as_the_prior() -> None:
    """The mean of both stands half way between them."""
    mean = Mean()
    for _ in range(5):
        mean.add(100.0, 1.0)
    assert mean.value(1.0, prior=0.0) == pytest.approx(50.0)
    assert mean.weight(1.0) == PRIOR_SAMPLES


def test_a_sample_loses_half_of_its_weight_every_minute() -> None:
    """A figure of an hour ago says little about now."""
    mean, found = Mean(), filled([4.0] * 64)
    mean.add(10.0, 0.0)
    assert mean.weight(HALF_LIFE_S) == pytest.approx(0.5)
    assert found.at(2 * HALF_LIFE_S, prior_s=0.1)[2] == pytest.approx(16.0)


def test_a_slow_deployment_is_tried_again_later() -> None:
    """An unused deployment gives no new samples, so its figures must return to the prior by
    themselves.
    """
    found = filled([30.0] * 100)
    assert found.at(0.0, prior_s=0.5)[1] > 25
    assert found.at(600.0, prior_s=0.5)[:2] == (0.5, 0.5)
    assert found.at(1200.0, prior_s=0.5) == (0.5, 0.5, 0.0)


@given(st.lists(seconds, min_size=200, max_size=400))
def test_a_quantile_is_near_the_true_one(values: list[float]) -> None:
    """Buckets are 8 % wide; the prior is five samples among hundreds."""
    ordered = sorted(values)
    median, late, samples = filled(values).at(0.0, prior_s=0.5)
    count = len(ordered)
    spare = int(PRIOR_SAMPLES) + 1
    for found, share in ((median, 0.5), (late, 0.95)):
        place = int(share * count)
        low, high = ordered[max(0, place - spare)], ordered[min(count - 1, place + spare)]
        assert low / 1.09 <= found <= high * 1.09
    assert samples == pytest.approx(count)


@given(st.lists(st.tuples(st.floats(0, 1e5), seconds), max_size=60))
def test_memory_does_not_grow_with_samples(steps: list[tuple[float, float]]) -> None:
    """Thousands of deployments and days of traffic stay a few hundred buckets each, with any
    clock.
    """
    found, now_s = Quantiles(), 0.0
    for passed_s, value in steps:
        now_s += passed_s
        found.add(value, now_s)
        assert len(found._buckets) <= 260
        median, late, samples = found.at(now_s, prior_s=0.5)
        assert 0 < median <= late < inf
        assert 0 <= samples <= len(steps) + 1e-6


@pytest.mark.parametrize("value", [nan, inf, -inf, -1.0])
def test_an_invalid_duration_is_no_sample(value: float) -> None:
    """One broken clock must not turn every order after it."""
    mean = Mean()
    mean.add(value, 0.0)
    assert mean.weight(0.0) == 0.0
    assert filled([value]).at(0.0, prior_s=0.5) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize("value", [0.0, 1e-9, 1e9])
def test_the_shortest_and_longest_have_a_bucket_too(value: float) -> None:
    """Nothing is thrown away because it is out of the usual range."""
    median, _, samples = filled([value] * 50).at(0.0, prior_s=0.5)
    assert samples == pytest.approx(50)
    assert (median < 0.001) == (value < 1)


def test_a_sample_after_a_long_pause_weighs_one() -> None:
    """Weights are scaled down then, and the older ones in the same bucket with them."""
    found = filled([0.2] * 3, at_s=2399.0)
    found.add(0.2, 4900.0)
    assert found.at(4900.0, prior_s=0.5)[2] == pytest.approx(1.0)


def test_a_clock_that_steps_back_breaks_nothing() -> None:
    """The clock is monotonic; if it were not, weights would still be finite."""
    mean = Mean()
    mean.add(1.0, 100.0)
    assert mean.weight(50.0) == 1.0
