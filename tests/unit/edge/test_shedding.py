"""Refusing early: who is refused when, and that one pause is no overload."""

from __future__ import annotations

import asyncio

import pytest

from gateway.domain.policy.policy import Priority
from gateway.errors import Overloaded
from gateway.services.request.shedding import TURNS, Shedding
from tests.waiting import soon


class Load:
    """The measured values."""

    def __init__(self) -> None:
        self.journal = 0.0
        self.streams = 0
        self.shed: list[str] = []
        self.shedding = Shedding(
            lag_s=0.1,
            journal_share=lambda: self.journal,
            streams=lambda: self.streams,
            max_streams=100,
            on_shed=self.shed.append,
        )

    def refused(self, *, late_s: float = 0.0, turns: int = TURNS) -> list[Priority]:
        """Who is refused after some turns."""
        for _ in range(turns):
            self.shedding.note_turn(late_s)
        return [priority for priority in Priority if self._is_refused(priority)]

    def _is_refused(self, priority: Priority) -> bool:
        try:
            self.shedding.check(priority)
        except Overloaded as error:
            return error.retry_after_s is not None
        return False


@pytest.mark.parametrize(
    ("late_s", "refused"),
    [
        (0.0, []),
        (0.04, []),
        (0.06, [Priority.LOW]),
        (0.11, [Priority.NORMAL, Priority.LOW]),
        (0.25, [Priority.HIGH, Priority.NORMAL, Priority.LOW]),
    ],
)
def test_a_late_loop_refuses_low_first_and_high_last(
    late_s: float, refused: list[Priority]
) -> None:
    """Instead of serving everyone late, the gateway serves the high-priority teams in time."""
    load = Load()
    assert load.refused(late_s=late_s) == refused
    assert load.shed == [priority.value for priority in refused]


def test_one_pause_is_no_overload() -> None:
    """The collector, or a machine that looks away for a moment: the next turn is in time."""
    load = Load()
    assert load.refused(late_s=5.0, turns=TURNS - 1) == []
    assert load.refused(late_s=0.0, turns=1) == []


def test_it_ends_with_the_first_turn_in_time() -> None:
    """Who is refused longer than needed is refused for nothing."""
    load = Load()
    assert load.refused(late_s=5.0)
    assert load.refused(late_s=0.0, turns=1) == []


@pytest.mark.parametrize(
    ("share", "refused"),
    [(0.44, []), (0.46, [Priority.LOW]), (0.91, [Priority.NORMAL, Priority.LOW])],
)
def test_a_journal_that_fills_is_kept_for_high(share: float, refused: list[Priority]) -> None:
    """The last tenth is for them; nothing is admitted once it is full, and the journal says that
    itself.
    """
    load = Load()
    load.journal = share
    assert load.refused() == refused


@pytest.mark.parametrize(
    ("streams", "refused"),
    [
        (47, []),
        (48, [Priority.LOW]),
        (95, [Priority.NORMAL, Priority.LOW]),
        (1000, [Priority.NORMAL, Priority.LOW]),
    ],
)
def test_the_last_streams_are_for_high(streams: int, refused: list[Priority]) -> None:
    """The cap itself stands at the edge, for all."""
    load = Load()
    load.streams = streams
    assert load.refused() == refused


async def test_a_loop_that_is_held_up_is_seen() -> None:
    """The delay is measured in the loop itself."""
    load = Load()
    running = asyncio.create_task(load.shedding.run())

    def hold_up() -> bool:
        sum(range(3_000_000))  # nothing else gets a turn meanwhile
        return load.shedding.lag_s > 0

    await soon(hold_up, "a lag")
    running.cancel()
