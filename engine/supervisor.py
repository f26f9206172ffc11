"""Runs one program, vLLM, as the leader of a process group; starts it again when it or one of its
workers ends, and ends the whole group when asked to.

vLLM is three processes or more. Killing only its API process leaves EngineCore and Worker running
with all the memory (seen in 0.32.0). So there are three safeguards. This process ends the group
when it is asked to, when its parent dies, or when one process of the group ends. A guard ends the
group when this process is killed. The kernel signals the program when its parent is gone.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FrameType

from engine import home as homes
from engine.children import start_bound
from engine.errors import EngineError
from engine.process_group import GroupMember, kill_group, titled_workers_of, workers_of

POLL_S = 0.1
PROBE_EVERY_S = 0.5
LOADING_LOOK_S = 1.0
LOADING_GRACE_S = 5.0
"""After a worker's end while the engine loads, the leader's time to end by itself: its last lines
say more than ours.
"""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
MOST_LIKE_ENDS = 5
"""The ends with the same exit code, one after the other, of a program that was never ready.

A setting that it refuses does not mend itself. A killed or lost process may.
"""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True)
class StopRequests:
    """The signals that asked this process to end."""

    taken: list[int] = field(default_factory=list)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Record a signal; it is the handler of `STOP_SIGNALS`."""
        self.taken.append(number)

    @property
    def is_urgent(self) -> bool:
        """Return True if the same signal came twice, so the engine is to stop at once; Ctrl-C
        reaches us and our parent, which then sends SIGTERM once.
        """
        return len(set(self.taken)) < len(self.taken)


@dataclass(slots=True)
class RestartWaits:
    """The seconds before each restart: doubled until the engine was ready, then short again."""

    _next_s: float = FIRST_WAIT_S

    def next_s(self) -> float:
        """Return the seconds before the next restart."""
        wait_s, self._next_s = self._next_s, min(2 * self._next_s, LONGEST_WAIT_S)
        return wait_s

    def reset(self) -> None:
        """Begin again with the shortest time: the engine was ready."""
        self._next_s = FIRST_WAIT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedProgram:
    """The program to run, and the questions about it."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    grace_s: float
    """The program's time after SIGTERM before its group is killed."""
    is_bound_to_parent: bool
    failure: Callable[[], str | None]
    """Return None once the program is ready, else the reason; called in a thread of its own."""
    on_ready: Callable[[], None]
    """Called once, when the program is ready for the first time."""
    obstacle: Callable[[], str | None] = lambda: None
    """Return why a start would fail now, as a sentence without its full stop, or None; called
    before each start.
    """
    must_start: bool = False
    """End, instead of starting it again, if it ends before it was ever ready."""


class Readiness:
    """Asks a program in a thread until it is ready. A hung program must not hang its supervisor."""

    def __init__(self, failure: Callable[[], str | None]) -> None:
        """Begin to ask."""
        self._failure = failure
        self._ready, self._over = threading.Event(), threading.Event()
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        """Ask until the answer is yes or `stop`. Runs in the thread."""
        while not self._over.is_set():
            if self._failure() is None:
                self._ready.set()
                return
            self._over.wait(PROBE_EVERY_S)

    @property
    def is_reached(self) -> bool:
        """Return True if the program has been ready."""
        return self._ready.is_set()

    def stop(self) -> None:
        """Ask no more."""
        self._over.set()


class LoadingWorkers:
    """The workers of a program that is not ready yet.

    A worker that the out-of-memory killer ends is usually noticed by the leader. One that waits in
    a collective operation with it may notice nothing, so the leader would load for ever.
    """

    def __init__(self, group: int) -> None:
        """Begin without any worker; they appear while the program loads."""
        self._group = group
        self._gone_s: dict[GroupMember, float | None] = {}
        self._next_look_s = 0.0

    def lost(self, now_s: float) -> GroupMember | None:
        """Look for workers, once a second; return one that has been gone for `LOADING_GRACE_S`."""
        if now_s < self._next_look_s:
            return None
        self._next_look_s = now_s + LOADING_LOOK_S
        for worker in titled_workers_of(self._group):
            self._gone_s.setdefault(worker, None)
        for worker, gone_s in self._gone_s.items():
            if worker.is_alive:
                continue
            if gone_s is None:
                self._gone_s[worker] = now_s
            elif now_s - gone_s >= LOADING_GRACE_S:
                return worker
        return None


def run(supervised: SupervisedProgram) -> int:
    """Run a program until an end is requested, and start it again whenever it ends before that.

    Return 0 if an end was requested. With `must_start`, return the program's exit code, at least 1,
    if it ended before it was ever ready. Raises `EngineError` if it cannot be started at all.
    """
    return _Supervisor(supervised).run()


class _Supervisor:
    """The state of one `run`."""

    def __init__(self, supervised: SupervisedProgram) -> None:
        """Take the stop signals of this process."""
        self._supervised = supervised
        self._stop = StopRequests()
        self._waits = RestartWaits()
        self._was_ready = False
        self._like_ends, self._last_code = 0, 0  # the first end is one, whatever its code
        # Polled, because the kernel's PR_SET_PDEATHSIG would fire when the *thread* that started us
        # ends.
        self._parent = os.getppid() if supervised.is_bound_to_parent else None
        for number in STOP_SIGNALS:
            signal.signal(number, self._stop.on_signal)

    def run(self) -> int:
        """Run the program again and again; see `run`."""
        while not self._must_end():
            code, obstacle = 1, self._supervised.obstacle()
            if obstacle is None:
                code, reason = self._run_once()
                if reason is None:
                    return 0
            problem = obstacle or f"The engine {reason}"
            if self._supervised.must_start and not self._was_ready:
                _say(f"{problem} before it was ready.")
                return max(1, abs(code))
            if obstacle is None and self._is_hopeless(code):
                _say(f"{problem} {MOST_LIKE_ENDS} times, never ready. It is not started again.")
                return max(1, code)
            wait_s = self._waits.next_s()
            _say(f"{problem}. Starting it again in {wait_s:g} s.")
            self._sleep(wait_s)
        return 0

    def _is_hopeless(self, code: int) -> bool:
        """Count an end; return True after `MOST_LIKE_ENDS` with one exit code, also 0: `-- --help`
        prints and ends. The code of a signal is negative, or from 128 on behind a shell.
        """
        self._like_ends = self._like_ends + 1 if code == self._last_code else 1
        self._last_code = code
        return 0 <= code < 128 and not self._was_ready and self._like_ends >= MOST_LIKE_ENDS

    def _run_once(self) -> tuple[int, str | None]:
        """Run the program once; return its exit code and the reason of its end, None if an end was
        requested.
        """
        try:
            # Its output goes to standard error: only the deployment block is on standard output.
            program = start_bound(
                self._supervised.argv,
                self._supervised.environment,
                is_group_leader=True,
                stdout=sys.stderr.fileno(),
            )
        except OSError as error:
            raise EngineError(f"Cannot run {self._supervised.argv[0]}: {error}.") from error
        guard = _start_guard(program.pid, self._supervised.grace_s)
        readiness = Readiness(self._supervised.failure)
        try:
            guard, reason = self._watch(program, guard, readiness)
            if reason is None:
                self._stop_gracefully(program)
        finally:
            readiness.stop()
            kill_group(program.pid)
            program.wait()
            _dismiss(guard)
        return program.returncode, reason

    def _watch(
        self, program: subprocess.Popen[str], guard: subprocess.Popen[bytes], readiness: Readiness
    ) -> tuple[subprocess.Popen[bytes], str | None]:
        """Wait until the program or one of its workers ends, or an end is requested.

        Return the guard, which is another one if it was killed, and the reason of the end.
        """
        workers: Sequence[GroupMember] | None = None
        loading = LoadingWorkers(program.pid)
        while program.poll() is None:
            if self._must_end():
                return guard, None
            if guard.poll() is not None:
                guard = _start_guard(program.pid, self._supervised.grace_s)
            if workers is None and readiness.is_reached:
                workers = workers_of(program.pid)
                self._on_ready()
            if workers is None and (lost := loading.lost(time.monotonic())) is not None:
                return guard, f"lost its process {lost.pid} ({lost.name}) while it loaded"
            for worker in workers or ():
                if not worker.is_alive:
                    return guard, f"lost its process {worker.pid} ({worker.name})"
            time.sleep(POLL_S)
        return guard, None if self._must_end() else _ending(program.returncode)

    def _on_ready(self) -> None:
        """Record that the program is ready, and report it the first time."""
        self._waits.reset()
        _say("The engine is ready: it answered a one-token request.")
        if not self._was_ready:
            self._was_ready = True
            self._supervised.on_ready()

    def _must_end(self) -> bool:
        """Return True if an end was requested or the parent is gone."""
        if self._stop.taken:
            return True
        if self._parent is not None and os.getppid() != self._parent:
            _say("The program that started the engine is gone: stopping.")
            self._stop.taken.append(signal.SIGTERM)
            return True
        return False

    def _stop_gracefully(self, program: subprocess.Popen[str]) -> None:
        """Ask the leader to end and wait for it, at most `grace_s` or until a second signal."""
        # Only the leader: its workers must live until it has drained them.
        program.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self._supervised.grace_s
        while program.poll() is None and not self._stop.is_urgent:
            if time.monotonic() > deadline_s:
                return
            time.sleep(POLL_S)

    def _sleep(self, wait_s: float) -> None:
        """Wait before a restart, until an end is requested at the most."""
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s and not self._must_end():
            time.sleep(min(POLL_S, wait_s))


def _say(message: str) -> None:
    """Print a message on standard error, if it still can be written: a full disk or a log reader
    that ended must not end the engine, nor keep it from being started again.
    """
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def _ending(code: int) -> str:
    """Describe the end of a program; a negative code is a signal's."""
    return f"was killed (signal {-code})" if code < 0 else f"ended by itself (exit {code})"


def _start_guard(group: int, grace_s: float) -> subprocess.Popen[bytes]:
    """Start the guard process, which briefly outlives us and ends the group; the end of its
    standard input is its signal.
    """
    argv = [sys.executable, str(homes.PACKAGE / "guard.py"), str(group), str(grace_s)]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True
    )


def _dismiss(guard: subprocess.Popen[bytes]) -> None:
    """Kill the guard process, which is not needed after the program's end."""
    guard.kill()
    guard.wait()
    if guard.stdin is not None:
        guard.stdin.close()
