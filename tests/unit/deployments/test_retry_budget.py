"""The retry budget: in every case retries stay a tenth of the requests plus a floor."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.domain.deployments.retry_budget import FLOOR_PER_S, HELD_S, SHARE, RetryBudget


def taken(budget: RetryBudget, now_s: float) -> int:
    """How many can be taken at once."""
    count = 0
    while budget.has_one(now_s):
        budget.take(now_s)
        count += 1
    return count


def test_the_floor_is_there_without_any_request() -> None:
    """Who sends one request a minute may try it again."""
    budget = RetryBudget()
    assert taken(budget, 0) == FLOOR_PER_S * HELD_S
    assert not budget.has_one(HELD_S)
    assert taken(budget, HELD_S + 1) == FLOOR_PER_S * HELD_S


def test_a_tenth_of_the_requests_is_on_top() -> None:
    """The share that makes a bad minute bearable and is too little for a storm."""
    budget = RetryBudget()
    for _ in range(1000):
        budget.note_request(0)
    assert taken(budget, 0) == FLOOR_PER_S * HELD_S + 100


def test_unused_retries_do_not_accumulate() -> None:
    """A quiet hour saves nothing up for the next outage."""
    budget = RetryBudget()
    for _ in range(1000):
        budget.note_request(0)
    assert taken(budget, HELD_S) == FLOOR_PER_S * HELD_S


def test_taking_without_asking_is_our_mistake() -> None:
    """Who takes has looked."""
    budget = RetryBudget()
    taken(budget, 0)
    with pytest.raises(AssertionError):
        budget.take(0)


class RetryBudgetMachine(RuleBasedStateMachine):
    """Requests and retries at any moments; an independent list of both is the judge."""

    def __init__(self) -> None:
        super().__init__()
        self.budget, self.now_s = RetryBudget(), 0.0
        self.requests: list[float] = []
        self.retries: list[float] = []

    @rule(seconds=st.floats(0, 12))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(count=st.integers(1, 200))
    def ask(self, count: int) -> None:
        for _ in range(count):
            self.budget.note_request(self.now_s)
        self.requests += [self.now_s] * count

    @rule(wanted=st.integers(1, 60))
    def retry(self, wanted: int) -> None:
        for _ in range(wanted):
            if not self.budget.has_one(self.now_s):
                break
            self.budget.take(self.now_s)
            self.retries.append(self.now_s)

    @invariant()
    def never_more_than_the_share(self) -> None:
        """In the ten seconds before any retry, that one among them."""
        if self.retries:
            last_s = self.retries[-1]
            made = sum(last_s - HELD_S < at_s <= last_s for at_s in self.retries)
            came = sum(last_s - HELD_S < at_s <= last_s for at_s in self.requests)
            assert made <= FLOOR_PER_S * HELD_S + SHARE * came


TestRetryBudgetMachine = RetryBudgetMachine.TestCase
