"""The breaker: it opens for the right reasons, never stays shut for long, and a success closes
it.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.domain.deployments.breaker import (
    FIRST_OPEN_S,
    LEAST_OUTCOMES,
    LONGEST_OPEN_S,
    PROBE_LOST_S,
    SILENT_IN_A_ROW,
    Breaker,
)
from gateway.domain.sliding_count import SlidingCount


def opened_at(now_s: float) -> Breaker:
    breaker = Breaker()
    assert breaker.open(now_s)
    return breaker


def test_half_of_twenty_failed_opens() -> None:
    """Not before: of few requests half may fail by chance."""
    breaker = Breaker()
    for _ in range(LEAST_OUTCOMES // 2):
        breaker.succeeded(0, 0)
    opened = [breaker.failed(0, 0, is_silent=False) for _ in range(LEAST_OUTCOMES // 2)]
    assert opened == [False] * (LEAST_OUTCOMES // 2 - 1) + [True]


def test_fewer_than_half_does_not_open() -> None:
    """Most requests are served: to turn them all away would be the larger outage."""
    breaker = Breaker()
    for _ in range(100):
        breaker.succeeded(0, 0)
    assert not any(breaker.failed(0, 0, is_silent=False) for _ in range(99))


def test_failures_of_long_ago_do_not_count() -> None:
    """Ten seconds later they say nothing of now."""
    breaker = Breaker()
    for _ in range(LEAST_OUTCOMES - 1):
        breaker.failed(0, 0, is_silent=False)
    assert not breaker.failed(11, 11, is_silent=False)


def test_silence_opens_sooner() -> None:
    """Nothing listens there: twenty callers need not each wait for that."""
    breaker = Breaker()
    opened = [breaker.failed(0, 0, is_silent=True) for _ in range(SILENT_IN_A_ROW)]
    assert opened == [False] * (SILENT_IN_A_ROW - 1) + [True]


def test_any_answer_breaks_a_row_of_silence() -> None:
    """An answer, even a bad one, says that somebody is there."""
    for answer in (
        lambda breaker: breaker.succeeded(0, 0),
        lambda breaker: breaker.failed(0, 0, is_silent=False),
    ):
        breaker = Breaker()
        for _ in range(SILENT_IN_A_ROW - 1):
            breaker.failed(0, 0, is_silent=True)
        answer(breaker)
        assert not breaker.failed(0, 0, is_silent=True)


def test_one_probe_at_a_time() -> None:
    """A recovering deployment must not get all requests at once."""
    breaker = opened_at(100)
    assert not breaker.is_due(100 + FIRST_OPEN_S - 0.1)
    assert breaker.is_due(105)
    breaker.began(105)
    assert not breaker.is_due(106)


def test_a_probe_that_fails_waits_longer_and_never_over_ten_seconds() -> None:
    """Something that stays down is not asked every five seconds for ever."""
    breaker = opened_at(0)
    now_s, waits = FIRST_OPEN_S, []
    for _ in range(3):
        breaker.began(now_s)
        assert not breaker.failed(now_s, now_s, is_silent=True)
        due_s = next(
            now_s + tenth / 10 for tenth in range(200) if breaker.is_due(now_s + tenth / 10)
        )
        waits.append(round(due_s - now_s, 1))
        now_s = due_s
    assert waits == [LONGEST_OPEN_S] * 3
    assert LONGEST_OPEN_S < 10


def test_a_success_closes_and_forgets() -> None:
    """Earlier failures no longer count, and the next opening is a first one."""
    breaker = opened_at(0)
    for now_s in (5.0, 15.0):
        breaker.began(now_s)
        breaker.failed(now_s, now_s, is_silent=True)
    breaker.began(30)
    assert breaker.succeeded(30, 31)
    assert breaker.opened_s is None
    assert not breaker.failed(31, 31, is_silent=True)
    breaker.open(32)
    assert breaker.is_due(32 + FIRST_OPEN_S)


def test_attempts_from_before_the_opening_are_ignored() -> None:
    """A stream of before that ends well, or badly, in the meantime."""
    breaker = opened_at(10)
    assert not breaker.succeeded(9, 12)
    breaker.began(15)
    assert not breaker.failed(9, 16, is_silent=True)
    assert not breaker.is_due(16)


def test_attempts_that_are_no_probe_do_not_put_it_off() -> None:
    """Of the last eligible deployment each request is one: under load its probe would never come
    due.
    """
    breaker = opened_at(0)
    for now_s in range(1, 5):
        breaker.began(now_s)
        assert not breaker.failed(now_s, now_s, is_silent=True)
    assert breaker.is_due(FIRST_OPEN_S)


def test_a_probe_whose_caller_left_frees_the_probe_slot() -> None:
    """It gave no result; otherwise a caller who hangs up would keep a deployment shut."""
    breaker = opened_at(0)
    breaker.began(5)
    breaker.give_up(4)
    assert not breaker.is_due(6)
    breaker.give_up(5)
    assert breaker.is_due(6)


def test_a_probe_without_a_result_expires() -> None:
    """It may hang for its whole minute."""
    breaker = opened_at(0)
    breaker.began(5)
    assert breaker.is_due(5 + PROBE_LOST_S)


def test_opening_twice_is_once() -> None:
    """Of two attempts refused at the same time the second must not put the probe off."""
    breaker = opened_at(0)
    assert not breaker.open(4)
    assert breaker.is_due(FIRST_OPEN_S)


def test_a_count_is_of_the_last_seconds() -> None:
    """By whole seconds, and none is kept beyond."""
    count = SlidingCount(3)
    for now_s in (10.0, 10.9, 11.2, 12.0):
        count.add(now_s)
    assert [count.count(now_s) for now_s in (12.9, 13.0, 14.5, 15.0, 99.0)] == [4, 2, 1, 0, 0]
    count.add(99.5)
    count.clear()
    assert count.count(99.6) == 0


class BreakerMachine(RuleBasedStateMachine):
    """Attempts begin and end in any order and in any way; the next probe is never due too late."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker, self.now_s = Breaker(), 0.0
        self.under_way: list[float] = []
        # Since when it is neither closed nor is a probe due or under way.
        self.shut_s: float | None = None
        self.probe_s: float | None = None

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def begin(self) -> None:
        if self.breaker.is_due(self.now_s):
            self.probe_s = self.now_s
        self.breaker.began(self.now_s)
        self.under_way.append(self.now_s)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), is_silent=st.booleans())
    def fail(self, data: st.DataObject, is_silent: bool) -> None:
        began_s = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        was_open = self.breaker.opened_s is not None
        has_opened = self.breaker.failed(began_s, self.now_s, is_silent=is_silent)
        assert has_opened == (not was_open and self.breaker.opened_s is not None)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def succeed(self, data: st.DataObject) -> None:
        began_s = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        opened_s = self.breaker.opened_s
        self.breaker.succeeded(began_s, self.now_s)
        assert (self.breaker.opened_s is None) == (opened_s is None or began_s >= opened_s)

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.breaker.give_up(self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1))))

    @rule()
    def open_at_once(self) -> None:
        self.breaker.open(self.now_s)

    @invariant()
    def a_probe_is_due_within_ten_seconds(self) -> None:
        """After any history: due ten seconds from now at the latest."""
        if self.breaker.opened_s is not None:
            assert self.breaker.is_due(self.now_s + 10)

    @invariant()
    def it_is_never_shut_for_longer_than_ten_seconds(self) -> None:
        """During any other events."""
        has_probe = self.probe_s is not None and self.probe_s in self.under_way
        if self.breaker.opened_s is None or self.breaker.is_due(self.now_s) or has_probe:
            self.shut_s = None
        elif self.shut_s is None:
            self.shut_s = self.now_s
        else:
            assert self.now_s - self.shut_s <= 10


TestBreakerMachine = BreakerMachine.TestCase
