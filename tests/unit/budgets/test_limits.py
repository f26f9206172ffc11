"""Which limits apply to a request, and the arithmetic of the last 60 seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.budgets.limits import (
    NO_LIMITS,
    WINDOW_S,
    Limits,
    SlidingCounts,
    limits_of_deployment,
)
from tests import factories

TEN, TWENTY, THIRTY = (Limits(requests_per_minute=figure) for figure in (10, 20, 30))


def test_a_request_is_under_the_limits_of_its_team_project_and_key() -> None:
    """Each is counted by itself: leaving one out would let that many more through."""
    team = factories.team(
        limits=TEN, project_limits={"checkout": TWENTY}, key_limits={"k1": THIRTY}
    )
    assert team.limits_for(project="checkout", key_id="k1") == (
        ("payments", TEN),
        ("payments/project:checkout", TWENTY),
        ("payments/key:k1", THIRTY),
    )


def test_each_project_and_key_without_a_limit_of_its_own_has_the_one_for_each() -> None:
    """`*` is for each by itself: one count for all of them would let one project starve the
    others.
    """
    team = factories.team(project_limits={"*": TEN, "search": NO_LIMITS}, key_limits={"*": TWENTY})
    assert team.limits_for(project="checkout", key_id="k1") == (
        ("payments/project:checkout", TEN),
        ("payments/key:k1", TWENTY),
    )
    assert team.limits_for(project="search", key_id="k2") == (("payments/key:k2", TWENTY),)
    assert team.limits_for(project=None, key_id="k2") == (("payments/key:k2", TWENTY),)


def test_a_team_without_limits_has_nothing_to_ask() -> None:
    """Then the request path skips limits altogether."""
    assert factories.team().limits_for(project="checkout", key_id="k1") == ()
    assert limits_of_deployment("qwen-eu", NO_LIMITS) == ()
    assert limits_of_deployment("qwen-eu", TEN) == (("deployment:qwen-eu", TEN),)


STEP_S = 1 / SlidingCounts.STEPS_PER_S
TAKEN = st.lists(st.tuples(st.floats(0, 40), st.integers(1, 50)), max_size=30)


@given(taken=TAKEN, later_s=st.floats(0, 130))
def test_a_window_counts_like_a_list_of_times(
    taken: list[tuple[float, int]], later_s: float
) -> None:
    """Never less than the last 60 seconds had, or the limit would be exceeded; a step more at
    most.
    """
    counts, moments, now_s = SlidingCounts(), [], 1000.0
    for pause_s, units in taken:
        now_s += pause_s
        counts.add(now_s, units)
        moments.append((now_s, units))
    now_s += later_s
    used = counts.slide(now_s)
    exactly, at_most = (
        sum(units for at_s, units in moments if at_s > now_s - span_s)
        for span_s in (WINDOW_S, WINDOW_S + STEP_S)
    )
    assert exactly <= used <= at_most


@given(taken=TAKEN, part=st.floats(0, 1))
def test_room_is_there_when_it_was_promised(taken: list[tuple[float, int]], part: float) -> None:
    """`Retry-After` is kept: a caller that comes at that moment finds room, and one before it does
    not.
    """
    counts, now_s = SlidingCounts(), 1000.0
    for pause_s, units in taken:
        now_s += pause_s
        counts.add(now_s, units)
    used = counts.slide(now_s)
    excess = int(used * part)
    ready_s = counts.ready_s(now_s, excess)
    if excess > 0:
        assert now_s <= ready_s <= now_s + WINDOW_S + STEP_S
        assert used - counts.slide(ready_s - STEP_S / 2) < excess
    assert used - counts.slide(ready_s) >= excess


def test_a_correction_counts_at_the_time_of_its_reservation() -> None:
    """The excess reservation leaves the window now; the rest leaves it at its own time."""
    counts = SlidingCounts()
    counts.add(1000.0, 100)
    counts.add(1030.0, 10)
    counts.correct(1000.0, -60)
    assert counts.used == 50
    assert counts.slide(1061.0) == 10
    counts.correct(1000.0, -40)
    assert counts.used == 10, "what has slid out is not corrected"


def test_a_correction_of_an_empty_window_is_nothing() -> None:
    """An attempt may run for longer than a minute."""
    counts = SlidingCounts()
    counts.correct(1000.0, -5)
    assert (counts.used, counts.ready_s(1000.0, 3)) == (0, pytest.approx(1000.0))
