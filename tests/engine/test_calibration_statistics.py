"""The statistics of a calibration on windows whose true weights are known."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.calibration.cost_model import (
    KINDS,
    LoadWindow,
    TokenKind,
    bends,
    fit,
    flat_time_s,
    prediction_error,
)
from engine.calibration.design import (
    LoadRange,
    PlannedWindow,
    fitted_windows,
    held_out_windows,
    request_numbers,
)
from engine.calibration.least_squares import CollinearDesignError, solve
from engine.calibration.report import refusals
from engine.calibration.student import two_sided_p, two_sided_quantile
from engine.errors import EngineError, UsageError

LOAD = LoadRange(prompt=1024, answer=128, concurrency=16)
TRUE = {"input": 20e-6, "cached_input": 2e-6, "output": 300e-6, "step": 8e-3, "round": 5e-3}
ROUNDS = 5


def true_s(kind: TokenKind) -> float:
    """The engine seconds of a token at the load's concurrency."""
    return TRUE[kind] + (TRUE["step"] / LOAD.concurrency if kind == "output" else 0.0)


def loaded(
    planned: PlannedWindow,
    rng: random.Random,
    *,
    noise: float = 0.0,
    pair_s: float = 0.0,
    round_s: float = TRUE["round"],
) -> LoadWindow:
    """The window that an engine with the true weights would give."""
    numbers = request_numbers()
    requests = [
        one
        for one, _ in zip(
            planned.requests(rng, numbers), range(ROUNDS * planned.streams), strict=False
        )
    ]
    cached = sum(one.shared_tokens for one in requests)
    inputs = sum(one.prompt_tokens for one in requests) - cached
    outputs = sum(one.answer_tokens for one in requests)
    pairs = sum((one.prompt_tokens**2 - one.shared_tokens**2) / 2 for one in requests)
    seconds = (
        round_s * ROUNDS
        + TRUE["input"] * inputs
        + TRUE["cached_input"] * cached
        + TRUE["output"] * outputs
        + TRUE["step"] * outputs / planned.streams
        + pair_s * pairs
    )
    return LoadWindow(
        requests=len(requests),
        concurrency=planned.streams,
        input_tokens=inputs,
        cached_input_tokens=cached,
        output_tokens=outputs,
        prompt_pairs=pairs,
        answer_pairs=sum(
            one.answer_tokens * (one.prompt_tokens + one.answer_tokens / 2) for one in requests
        ),
        engine_s=seconds * rng.gauss(1, noise),
    )


def windows(seed: int, **changes: float) -> list[LoadWindow]:
    rng = random.Random(seed)
    return [loaded(one, rng, **changes) for one in fitted_windows(LOAD, rng)]


def test_quantiles_are_those_of_the_printed_tables() -> None:
    """Two-sided 5 % and 1 % points of Student's t, as statistics books print them."""
    printed = {(0.95, 1): 12.706, (0.95, 5): 2.571, (0.95, 19): 2.093, (0.99, 10): 3.169}
    printed[0.95, 120] = 1.980
    for (confidence, dof), value in printed.items():
        assert two_sided_quantile(confidence, dof) == pytest.approx(value, abs=6e-4)
        assert two_sided_p(value, dof) == pytest.approx(1 - confidence, abs=6e-4)
    assert two_sided_p(0, 7) == 1


WHOLE = st.integers(-50, 50)


@given(st.lists(st.tuples(WHOLE, WHOLE, WHOLE, WHOLE), min_size=5, max_size=12))
@settings(deadline=None)
def test_coefficients_solve_the_normal_equations_exactly(
    given_rows: Sequence[tuple[int, int, int, int]],
) -> None:
    """An independent solution in fractions: the residuals are orthogonal to each column."""
    rows, values = [row[:3] for row in given_rows], [row[3] for row in given_rows]
    try:
        found = solve(rows, values)
    except CollinearDesignError:
        return
    for column in zip(*rows, strict=True):
        left = [
            value - sum(Fraction(c) * x for c, x in zip(found.coefficients, row, strict=True))
            for row, value in zip(rows, values, strict=True)
        ]
        total = sum(one * other for one, other in zip(left, column, strict=True))
        assert abs(float(total)) < 1e-5 * max(1, *map(abs, found.coefficients)) * len(rows)


def test_true_weights_come_back_exactly_without_noise() -> None:
    """The network's wait goes to the intercept, whatever it is: no token pays for it."""
    for round_s in (0.0, TRUE["round"], 0.4):
        model = fit(windows(1, round_s=round_s))
        assert model.coefficient_s("round") == pytest.approx(round_s, abs=1e-9)
        for kind in KINDS:
            found = model.token_time(kind, LOAD.concurrency)
            assert found is not None
            assert found.seconds == pytest.approx(true_s(kind))
        assert model.r_squared == pytest.approx(1)


def test_the_intervals_cover_the_true_weights_in_95_of_100_cases() -> None:
    """An interval that is too narrow is a lie about money; the seeds make it the same each time."""
    covered = dict.fromkeys(KINDS, 0)
    for seed in range(200):
        model = fit(windows(seed, noise=0.02))
        for kind in KINDS:
            found = model.token_time(kind, LOAD.concurrency)
            assert found is not None
            covered[kind] += found.low_s <= true_s(kind) <= found.high_s
    # Of 200 cases at 95 %, fewer than 179 or more than 199 have a probability below 1 in 1,000.
    assert all(179 <= count <= 199 for count in covered.values()), covered


def test_a_weight_is_of_its_concurrency() -> None:
    """One decode step serves the whole batch, so a lone answer's token costs many times more."""
    model = fit(windows(2))
    times = [model.token_time("output", one) for one in (4, 8, 16)]
    seconds = [one.seconds for one in times if one is not None]
    assert seconds == pytest.approx([300e-6 + 8e-3 / one for one in (4, 8, 16)])


def test_held_out_load_is_predicted_and_a_flat_price_is_not() -> None:
    """The lengths and the concurrencies of the held-out windows were never fitted."""
    rng = random.Random(3)
    planned = fitted_windows(LOAD, rng)
    fitted = [loaded(one, rng, noise=0.02) for one in planned]
    checked = held_out_windows(LOAD, rng, planned)
    assert not {one.streams for one in checked} & {one.streams for one in planned}
    others = [loaded(one, rng, noise=0.02) for one in checked]
    measured_s = [one.engine_s for one in others]
    model = fit(fitted)
    error = prediction_error(measured_s, [model.predict_s(one) for one in others])
    flat_s = flat_time_s(fitted)
    flat_error = prediction_error(measured_s, [flat_s * one.tokens for one in others])
    assert error < 0.05
    assert flat_error > 4 * error
    assert list(refusals(error, bends(fitted, model))) == []


def test_errors_of_opposite_sign_do_not_cancel() -> None:
    """A sum that is right by chance predicts nothing."""
    assert prediction_error([1, 1], [1.5, 0.5]) == 0.5


@pytest.mark.parametrize(("pair_s", "is_refused"), [(0.0, False), (10e-9, False), (200e-9, True)])
def test_a_prefill_that_grows_quadratically_is_refused(pair_s: float, is_refused: bool) -> None:
    """A significant bend without consequence is none: on a quiet machine every bend is
    significant.
    """
    fitted = windows(4, noise=0.01, pair_s=pair_s)
    tests = bends(fitted, fit(fitted))
    assert [one.counts for one in tests if one.curve == "prompt"] == [is_refused]
    reasons = list(refusals(0.0, tests))
    assert any("square of the prompt length" in one for one in reasons) == is_refused
    if is_refused:
        assert any("--prompt" in one and "Ramsey" in one for one in reasons)


def test_noise_is_no_bend() -> None:
    """A test that refuses good measurements would be switched off."""
    refused = 0
    for seed in range(60):
        fitted = windows(seed, noise=0.03)
        refused += any(one.counts for one in bends(fitted, fit(fitted)))
    assert refused <= 2


def test_a_held_out_error_above_the_limit_is_refused_with_both_figures() -> None:
    """The reader sees by how much it failed."""
    (reason,) = refusals(0.153, [])
    assert "15.3%" in reason
    assert "10%" in reason
    assert list(refusals(0.0999, [])) == []


def test_an_engine_without_a_prefix_cache_has_no_cached_weight() -> None:
    """It is unknown, not zero; such tokens then cost as much as plain input."""
    without = [
        replace(
            one,
            input_tokens=one.input_tokens + one.cached_input_tokens,
            cached_input_tokens=0,
            engine_s=one.engine_s + 18e-6 * one.cached_input_tokens,
        )
        for one in windows(5)
    ]
    model = fit(without)
    assert model.token_time("cached_input", 16) is None
    assert model.coefficient_s("cached_input") is None
    found = model.token_time("input", 16)
    assert found is not None
    assert found.seconds == pytest.approx(TRUE["input"])
    assert len(bends(without, model)) == 2


def test_cached_tokens_that_cost_nothing_take_the_upper_end_of_their_interval() -> None:
    """A price of 0 would claim more than the measurement knows."""
    free = [
        replace(one, engine_s=one.engine_s - 3e-6 * one.cached_input_tokens)
        for one in windows(6, noise=0.01)
    ]
    found = fit(free).token_time("cached_input", 16)
    assert found is not None
    assert found.seconds == found.high_s > 0
    low, high = found.interval_tok_per_s
    assert (low, high) == (pytest.approx(1 / found.high_s), None)


def test_one_concurrency_alone_is_refused_by_name() -> None:
    """An engine that runs fewer requests at once than asked gives such windows."""
    same = [replace(one, concurrency=8.0) for one in windows(7)]
    with pytest.raises(EngineError, match=r"cannot tell the time of '(step|output)'"):
        fit(same)


def test_too_few_windows_and_free_tokens_are_refused() -> None:
    """Neither can be a price."""
    with pytest.raises(EngineError, match="Too few windows"):
        fit(windows(8)[:5])
    free = [replace(one, engine_s=one.engine_s - 21e-6 * one.input_tokens) for one in windows(9)]
    with pytest.raises(EngineError, match="too noisy"):
        fit(free).token_time("input", 16)


@given(st.integers(64, 40_000), st.integers(8, 4000), st.integers(4, 256), st.integers())
@settings(deadline=None, max_examples=50)
def test_the_held_out_load_lies_inside_the_fitted_range(
    prompt: int, answer: int, concurrency: int, seed: int
) -> None:
    """Beyond it the model would extrapolate; at a fitted concurrency it would not be tested."""
    load = LoadRange(prompt=prompt, answer=answer, concurrency=concurrency)
    rng = random.Random(seed)
    planned = fitted_windows(load, rng)
    assert (
        len({(one.streams, one.prompts, one.answers, one.cached_shares) for one in planned}) == 24
    )
    for window in held_out_windows(load, rng, planned):
        assert 1 <= window.streams <= concurrency
        assert window.streams not in {one.streams for one in planned}
        for request, _ in zip(window.requests(rng, request_numbers()), range(20), strict=False):
            assert math.floor(prompt / 4) <= request.prompt_tokens <= prompt
            assert math.floor(answer / 4) <= request.answer_tokens <= answer
            assert 0 <= request.shared_tokens < request.prompt_tokens


def test_a_range_that_is_too_small_is_refused() -> None:
    """Its parts would not differ."""
    for small in ({"prompt": 63}, {"answer": 7}, {"concurrency": 3}):
        with pytest.raises(UsageError, match="at least"):
            LoadRange(**({"prompt": 64, "answer": 8, "concurrency": 4} | small))
