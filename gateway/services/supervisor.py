"""Runs the background loops of a serving process, restarts any that ends by itself after a growing
pause, and reports failing ones to readiness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import structlog

from gateway.domain.checks import Check, Status
from gateway.services.ports import Clock

log = structlog.get_logger()

FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 5.0
CANCEL_AGAIN_S = 1.0
STEADY_S = 10.0  # seconds; a loop that ran this long is healthy again
DOWN_AFTER_S = 15.0  # seconds; a loop unhealthy for this long is down
_REMEDY = (
    "look for background_loop_failed in the log and restart this replica, see "
    "docs/runbooks/background-loop.md"
)

Loop = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _State:
    """The state of one background loop. `started_s` is None while it waits for its restart."""

    started_s: float | None
    failing_since_s: float | None = None
    pause_s: float = FIRST_PAUSE_S
    problem: str = ""


class Supervisor:
    """Runs the background loops of one process.

    `on_failure` is called with a loop's name whenever it ended by itself.
    """

    def __init__(self, clock: Clock, *, on_failure: Callable[[str], None]) -> None:
        """Start without loops; `start` runs them."""
        self._clock, self._on_failure = clock, on_failure
        self._states: dict[str, _State] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}  # each as long as the process runs
        self._is_stopping = False

    def start(self, loops: Mapping[str, Loop]) -> None:
        """Run each background loop from now on, restarted whenever it ends."""
        for name, loop in loops.items():
            self._states[name] = _State(self._clock.monotonic())
            self._tasks[name] = asyncio.create_task(self._run_forever(name, loop), name=name)

    async def cancel(self, *, but: Iterable[str] = ()) -> None:
        """Cancel all loops except those named, and ignore how they end.

        A loop that answered its cancellation with another error is cancelled again, because the
        process ends.
        """
        self._is_stopping = True
        running = {task for name, task in self._tasks.items() if name not in but}
        while running:
            for task in running:
                task.cancel()
            _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_S)

    async def ended(self, name: str) -> None:
        """Wait until a loop that was asked to end has ended."""
        await self._tasks[name]

    def is_running(self, name: str) -> bool:
        """Return True if a loop runs at this moment."""
        return self._states[name].started_s is not None and not self._tasks[name].done()

    def task(self, name: str) -> asyncio.Task[None]:
        """Return the task that runs a loop."""
        return self._tasks[name]

    def checks(self) -> tuple[Check, ...]:
        """Return the readiness checks on the background loops."""
        down, failing = self._down(), self._failing()
        if down:
            return (Check("background loops", Status.FAIL, f"down: {self._named(down)}", _REMEDY),)
        if failing:
            return (
                Check(
                    "background loops",
                    Status.WARN,
                    f"started again: {self._named(failing)}",
                    _REMEDY,
                ),
            )
        return (Check("background loops", Status.OK, f"all {len(self._states)} run"),)

    def problems(self) -> list[str]:
        """Return the reasons why this replica should not take traffic: the loops that stay down,
        each with its remedy.
        """
        return [
            f"The background loop {self._named([name])} stays down: {_REMEDY}."
            for name in self._down()
        ]

    async def _run_forever(self, name: str, loop: Loop) -> None:
        """Run one loop, and start it again after a growing pause whenever it ends or fails."""
        state = self._states[name]
        while True:
            state.started_s = self._clock.monotonic()
            try:
                await loop()
                problem = "it ended"
            except asyncio.CancelledError as cancelled:
                if self._is_stopping:
                    raise
                _current().uncancel()  # the code inside the loop was cancelled, not the loop
                problem = repr(cancelled)
            except Exception as failure:  # the boundary of all background loops
                problem = repr(failure)
                log.exception("background_loop_failed", loop=name, retry_s=state.pause_s)
            if self._is_stopping:
                return
            self._note_failure(name, state, problem)
            await asyncio.sleep(state.pause_s)
            state.pause_s = min(state.pause_s * 2, MAX_PAUSE_S)

    def _note_failure(self, name: str, state: _State, problem: str) -> None:
        """Record, log and report that a loop ended by itself; a long healthy run resets its
        pause.
        """
        now_s = self._clock.monotonic()
        if state.failing_since_s is None or self._is_healthy(state, now_s):
            state.failing_since_s, state.pause_s = now_s, FIRST_PAUSE_S
        log.error("background_loop_ended", loop=name, problem=problem, retry_s=state.pause_s)
        state.started_s, state.problem = None, problem
        self._on_failure(name)

    def _is_healthy(self, state: _State, now_s: float) -> bool:
        """Return True if a loop never failed, or has run for `STEADY_S` since its last failure."""
        is_steady = state.started_s is not None and now_s - state.started_s >= STEADY_S
        return state.failing_since_s is None or is_steady

    def _failing(self) -> list[str]:
        """Return the names of the loops that failed and have not run steadily since."""
        now_s = self._clock.monotonic()
        return [name for name, state in self._states.items() if not self._is_healthy(state, now_s)]

    def _down(self) -> list[str]:
        """Return the names of the loops that have failed for too long."""
        now_s = self._clock.monotonic()
        since_s = {name: self._states[name].failing_since_s for name in self._failing()}
        return [
            name
            for name, at_s in since_s.items()
            if at_s is not None and now_s - at_s >= DOWN_AFTER_S
        ]

    def _named(self, names: Iterable[str]) -> str:
        """Return loop names as text for the checks, each with its last problem."""
        return ", ".join(f"'{name}' ({self._states[name].problem})" for name in names)


def _current() -> asyncio.Task[object]:
    """Return the asyncio task that runs this code."""
    task = asyncio.current_task()
    assert task is not None, "a loop runs in a task"
    return task
