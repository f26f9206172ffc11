"""Runs the windows of a calibration on an engine, and returns the engine time of each.

The engine time of a window is the time in which the engine worked for it. At a full concurrency
that is the window's own length: the sum of the requests' times divided by the requests at work
(Little's law, J. D. C. Little, A Proof for the Queuing Formula L = λW, Oper. Res. 9, 1961).
Requests are timed by two clocks. The engine's own is vLLM's `metrics` of each answer: the time from
its scheduling to the first token, plus the generation. The client's includes the network and the
wait in the engine's queue.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from engine.calibration.cost_model import LoadWindow
from engine.calibration.design import PlannedWindow, request_numbers
from engine.errors import EngineError
from engine.load.client import LoadClient
from engine.load.loops import closed_loop
from engine.load.measured import LoadRun, MeasuredRequest
from engine.load.prompts import PromptWriter
from engine.load.workload import LoadRequest

FEWEST_ROUNDS, MOST_ROUNDS = 2, 200
MOST_MS = 1e9
"""The longest time that an engine may report for a request: eleven days."""
KNOWN_VERSIONS = ("0.32",)
"""Versions of vLLM whose `time_to_first_token_ms` is known to count from scheduling, without the
queue: `build_request_metrics` in vllm/entrypoints/generate/base/serving.py.
"""
MOST_ENGINE_SHARE = 1.02
"""The most time that an engine may report for its requests, as a share of the client's time: two
clocks differ a little.
"""
Clock = Literal["engine", "client"]
CLOCKS: tuple[Clock, ...] = ("engine", "client")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTimes:
    """One window by each clock that could time it."""

    planned: PlannedWindow
    by_engine: LoadWindow | None
    """None if the engine reports no time of its own, or one whose meaning is not known."""
    by_client: LoadWindow
    queued: int = 0
    """The requests in the engine's queue, their median over the time; 0 without `by_engine`."""
    most_at_work: int | None = None
    """The most requests at work at once, but for a hundredth of the time; None without
    `by_engine`.
    """

    def by(self, clock: Clock) -> LoadWindow | None:
        """Return the window by one clock."""
        return self.by_engine if clock == "engine" else self.by_client


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The engine that is measured, and the seconds that a window lasts about."""

    client: LoadClient
    writer: PromptWriter
    window_s: float
    rng: random.Random
    has_known_times: bool = True
    """Whether the meaning of the engine's own times is known; else the client's clock is used."""
    numbers: Iterator[int] = field(default_factory=request_numbers)
    on_window: Callable[[int, int], None] = lambda _, __: None
    """Called before each window with its number and the number of windows."""

    def run(self, planned: Sequence[PlannedWindow]) -> list[WindowTimes]:
        """Run windows one after the other. Raises `EngineError` if a request fails."""
        return asyncio.run(self._run(planned))

    async def _run(self, planned: Sequence[PlannedWindow]) -> list[WindowTimes]:
        """Run the windows in one event loop."""
        try:
            found = []
            for index, window in enumerate(planned):
                self.on_window(index, len(planned))
                found.append(await self._window(window))
            return found
        finally:
            self.client.close()

    async def _window(self, window: PlannedWindow) -> WindowTimes:
        """Fill the prefix cache, run one round to learn its length, then the measured rounds.

        Whole rounds end together: few requests run beside fewer others than planned.
        """
        requests = window.requests(self.rng, self.numbers)
        if window.longest.shared_tokens:
            await self._load([window.longest], streams=1)
        first = await self._load(islice(requests, window.streams), streams=window.streams)
        rounds = round(self.window_s / max(first.duration_s, 1e-3)) - 1
        rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, rounds))
        run = await self._load(islice(requests, window.streams * rounds), streams=window.streams)
        return window_times(window, run, has_known_times=self.has_known_times)

    async def _load(
        self, requests: Iterator[LoadRequest] | Sequence[LoadRequest], *, streams: int
    ) -> LoadRun:
        """Send requests in a closed loop. Raises `EngineError` if one fails."""
        run = await closed_loop(self.client, map(self.writer.body, requests), streams=streams)
        failed = next((one for one in run.requests if one.failure is not None), None)
        if failed is not None:
            raise EngineError(
                f"A request failed: {failed.failure}. Nothing was calibrated. Check the engine, or "
                "give a smaller --prompt, --answer or --concurrency."
            )
        return run


def is_known_version(version: str | None) -> bool:
    """Return True if the meaning of this vLLM's own times is known."""
    return version is not None and ".".join(version.split(".")[:2]) in KNOWN_VERSIONS


def window_times(
    planned: PlannedWindow, run: LoadRun, *, has_known_times: bool = True
) -> WindowTimes:
    """Return the load of a run and its engine time by each clock. Raises `EngineError` without
    usage, or if the engine reports times that cannot be.
    """
    requests = run.answered
    client_s = sum(one.e2e_s for one in requests)
    at_once = client_s / run.duration_s
    own = [engine_times(one) for one in requests] if has_known_times else []
    known = [one for one in own if one is not None]
    by_engine, queued, most = None, 0, None
    if known and len(known) == len(requests):
        engine_s, queued_s = sum(one.work_s for one in known), sum(one.queue_s for one in known)
        if not 0 < engine_s <= engine_s + queued_s <= MOST_ENGINE_SHARE * client_s:
            raise EngineError(
                f"The engine reports {engine_s:.3g} s of work and {queued_s:.3g} s in its queue for"
                f" requests that took {client_s:.3g} s in all. Nothing was calibrated. Check the "
                "clock and the metrics of the engine."
            )
        ended_s = [one.ended_s for one in requests]
        works = [(end - one.work_s, end) for end, one in zip(ended_s, known, strict=True)]
        waits = [(start - one.queue_s, start) for (start, _), one in zip(works, known, strict=True)]
        # The median leaves out the end of a run, when the queue drains, and the short waits for
        # the end of a step. The network's way back is small beside a queue that counts.
        queued = most_at_once(waits, run.duration_s, share=0.5)
        most = most_at_once(works, run.duration_s, share=0.99)
        # The rest of the client's time a request is in the network or in the engine's queue.
        at_work = at_once * min(1.0, engine_s / client_s)
        by_engine = _loaded(requests, at_work, engine_s)
    return WindowTimes(
        planned=planned,
        by_engine=by_engine,
        by_client=_loaded(requests, at_once, client_s),
        queued=queued,
        most_at_work=most,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """The seconds of one request by vLLM's own figures."""

    work_s: float
    """From its scheduling to its last token."""
    queue_s: float
    """Before its scheduling."""


def engine_times(request: MeasuredRequest) -> EngineTimes | None:
    """Return the times of a request by vLLM's own figures; None without. Raises `EngineError` if a
    figure is no time.
    """
    metrics = request.engine_metrics or {}
    names = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms")
    first, writing, queue = (_milliseconds(metrics, name) for name in names)
    if first is None or queue is None:
        return None
    # An answer of one token has no generation time.
    return EngineTimes(work_s=(first + (writing or 0.0)) / 1000, queue_s=queue / 1000)


def most_at_once(spans: Sequence[tuple[float, float]], duration_s: float, *, share: float) -> int:
    """Return how many spans of time are open at once at most, in a share of `duration_s`."""
    changes = sorted(
        (moment_s, change)
        for opened_s, closed_s in spans
        for moment_s, change in ((opened_s, 1), (closed_s, -1))
    )
    spent_s: dict[int, float] = {}
    count, last_s = 0, 0.0
    for moment_s, change in changes:
        spent_s[count] = spent_s.get(count, 0.0) + max(0.0, moment_s - last_s)
        count, last_s = count + change, max(last_s, moment_s)
    spent_s[0] = spent_s.get(0, 0.0) + max(0.0, duration_s - last_s)
    passed_s = 0.0
    for count in sorted(spent_s):
        passed_s += spent_s[count]
        if passed_s >= share * sum(spent_s.values()):
            break
    return count


def _milliseconds(metrics: Any, name: str) -> float | None:
    """Return a time in an engine's figures; None if it is absent. Raises `EngineError` unless it is
    a number from 0.
    """
    value = metrics.get(name) if isinstance(metrics, dict) else metrics
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= MOST_MS:
        raise EngineError(
            f"The engine reports {name}: {str(value)[:40]!r}, which is no time. Nothing was "
            "calibrated."
        )
    return float(value)


def _loaded(
    requests: Sequence[MeasuredRequest], concurrency: float, request_s: float
) -> LoadWindow:
    """Return the tokens of requests that took `request_s` together. Raises `EngineError` if the
    engine reports no usage.
    """
    if any(one.prompt_tokens is None or one.output_tokens is None for one in requests):
        raise EngineError(
            "The engine's answers have no usage, so their tokens are unknown. Its streams must "
            "honour stream_options.include_usage."
        )
    prompts = [one.prompt_tokens or 0 for one in requests]
    cached = [one.cached_tokens or 0 for one in requests]
    answers = [one.output_tokens or 0 for one in requests]
    return LoadWindow(
        requests=len(requests),
        concurrency=concurrency,
        input_tokens=sum(prompts) - sum(cached),
        cached_input_tokens=sum(cached),
        output_tokens=sum(answers),
        prompt_pairs=sum((p**2 - c**2) / 2 for p, c in zip(prompts, cached, strict=True)),
        answer_pairs=sum(a * (p + a / 2) for p, a in zip(prompts, answers, strict=True)),
        engine_s=request_s / concurrency,
    )
