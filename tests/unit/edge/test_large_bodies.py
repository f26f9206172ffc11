"""Large bodies are read one at a time, and the teams take turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gateway.api.large_bodies import LARGE_BYTES, MAX_OPENS, LargeBodies, is_large


class Held:
    """Bodies that are read when the test lets them; `read` notes the order."""

    def __init__(self) -> None:
        self.bodies = LargeBodies()
        self.order: list[str] = []
        self.may_go = threading.Event()
        self.tasks: list[asyncio.Task[None]] = []

    def _read(self, name: str) -> None:
        self.may_go.wait()
        self.order.append(name)

    async def send(self, team: str, *names: str) -> None:
        """Begin to read bodies, in this order."""
        for name in names:
            self.tasks.append(asyncio.create_task(self.bodies.read(team, self._read, name)))
            await asyncio.sleep(0)

    async def go(self) -> None:
        """Let all of them be read."""
        self.may_go.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@pytest.fixture
def held() -> Iterator[Held]:
    """Nothing waits for a body when the test is over."""
    held = Held()
    yield held
    held.may_go.set()
    held.bodies.thread.shutdown()


async def test_a_team_waits_for_one_body_of_each_other_team(held: Held) -> None:
    """However many the others sent before."""
    await held.send("blue", "b1", "b2", "b3", "b4")
    await held.send("green", "g1", "g2")
    await held.send("red", "r1")
    await held.go()
    assert held.order == ["b1", "b2", "g1", "r1", "b3", "g2", "b4"]


async def test_a_disconnected_caller_passes_its_turn_to_the_next(held: Held) -> None:
    """Before its turn, at it, and while its body is read."""
    await held.send("blue", "b1", "b2", "b3")
    await held.send("green", "g1")
    held.tasks[1].cancel()
    held.tasks[0].cancel()  # its body is being read, but its caller left
    await asyncio.sleep(0)
    await held.go()
    assert held.order == ["b1", "b3", "g1"]
    await held.send("blue", "b4")
    await held.go()
    assert held.order[-1] == "b4"


async def test_a_turn_given_to_a_disconnected_caller_is_passed_on(held: Held) -> None:
    """The turn is given in one step of the loop and taken in a later one."""
    await held.send("blue", "b1", "b2", "b3")
    held.tasks[0].cancel()
    await asyncio.sleep(0)  # the turn was given to b2, whose task has not run since
    held.tasks[1].cancel()
    await held.go()
    assert held.order == ["b1", "b3"]


async def test_an_error_is_its_callers_and_ends_the_turn(held: Held) -> None:
    """The error of a malformed body."""

    def fail() -> None:
        raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        await held.bodies.read("blue", fail)
    held.may_go.set()
    await held.send("blue", "b1")
    await held.go()
    assert held.order == ["b1"]


def test_a_body_is_large_by_its_bytes_or_by_its_objects() -> None:
    """42,900 tools stand in 126 KiB."""
    assert not is_large(b"a" * (LARGE_BYTES - 1))
    assert is_large(b"a" * LARGE_BYTES)
    assert not is_large(b"{}" * MAX_OPENS)
    assert is_large(b"[]" * (MAX_OPENS + 1))
