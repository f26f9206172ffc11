"""Parses large request bodies in one thread, the teams taking turns, so that neither the event loop
nor another team waits long; small bodies are parsed elsewhere.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from gateway.wire.json_bounds import opens_in

LARGE_BYTES = 128 * 1024
# Even a smaller body is slow if it has many objects, because each one is checked. No body below the
# minimum size has this many.
MAX_OPENS = 5_000
_LEAST_BYTES = 2 * MAX_OPENS

P = ParamSpec("P")
T = TypeVar("T")


def is_large(body: bytes) -> bool:
    """Return True for a body that could take more than about 20 ms to parse."""
    size = len(body)
    return size >= LARGE_BYTES or (size > _LEAST_BYTES and opens_in(body) > MAX_OPENS)


class LargeBodies:
    """The one thread that parses all large bodies; the teams take turns.

    It runs one body at a time, because each running thread may hold the interpreter for a step of
    20 ms. However many bodies one team sends, another team's body waits for only one of them.
    """

    def __init__(self) -> None:
        """Make the thread pool of one, with no body waiting."""
        self.thread = ThreadPoolExecutor(1, "large-bodies")
        self._is_busy = False
        # In the order of the teams' turns.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def read(self, team: str, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `read` in the thread at the team's turn; return its result or raise its error."""
        await self._wait_for_turn(team)
        try:
            # The loop's executor passes only positional arguments, and no caller here has others.
            return await asyncio.get_running_loop().run_in_executor(
                self.thread, lambda: read(*args, **kwargs)
            )
        finally:
            self._give_next_turn()

    async def _wait_for_turn(self, team: str) -> None:
        """Wait until the thread is free for this team's body; a cancelled waiter passes its turn
        on.
        """
        if not self._is_busy:
            self._is_busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(team, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its caller left when its turn had come
                self._give_next_turn()
            raise

    def _give_next_turn(self) -> None:
        """Give the thread to the next body, of the team that has waited longest; mark it free if
        none waits.
        """
        while self._waiting:
            team = next(iter(self._waiting))
            turns = self._waiting.pop(team)
            while turns:
                turn = turns.popleft()
                if not turn.done():
                    if turns:
                        self._waiting[team] = turns  # behind the other teams
                    turn.set_result(None)
                    return
        self._is_busy = False
