"""An engine with continuous batching and chunked prefill, step by step in virtual time.

It knows nothing of the calibration's model: the time of a window follows from its steps.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.calibration.design import PlannedWindow, request_numbers
from engine.calibration.experiment import WindowTimes, window_times
from engine.load.measured import LoadRun, MeasuredRequest
from engine.load.workload import LoadRequest

ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """The times of one step of the engine."""

    step: float = 4e-3
    """To read the weights, whatever the batch."""
    sequence: float = 300e-6
    """Of each sequence that writes a token."""
    prompt_token: float = 60e-6
    cached_token: float = 2e-6
    pair: float = 0.0
    """Of attention: each pair of tokens that is compared."""
    network: float = 2e-3
    """Of each request, half before and half after."""
    chunk: int = 1024
    """The most tokens of one step (max_num_batched_tokens)."""
    block: int = 128
    most: int = 1_000_000
    """The most sequences that run at once (max_num_seqs); others wait in the queue."""
    is_silent: bool = False
    """Whether it reports no times of its own."""


@dataclass(slots=True, kw_only=True)
class Sequence:
    """One request in the engine."""

    request: LoadRequest
    sent_s: float
    arrived_s: float
    cached: int
    read: int
    written: int = 0
    scheduled_s: float | None = None
    """The begin of the first step that it is a part of."""
    first_s: float | None = None
    """The end of the step that wrote its first token."""

    @property
    def unread(self) -> int:
        """Return the prompt tokens that still have to be read."""
        return self.request.prompt_tokens - self.read

    @property
    def is_done(self) -> bool:
        """Return True if the answer is complete."""
        return self.written >= self.request.answer_tokens


@dataclass(slots=True, kw_only=True)
class BatchingEngine:
    """The engine with the sequences that it works on."""

    seconds: StepSeconds
    now_s: float = 0.0
    running: list[Sequence] = field(default_factory=list)

    def arrive(self, request: LoadRequest, sent_s: float) -> None:
        """Take a request from the network."""
        cached = request.shared_tokens // self.seconds.block * self.seconds.block
        self.running.append(
            Sequence(
                request=request,
                sent_s=sent_s,
                arrived_s=sent_s + self.seconds.network / 2,
                cached=cached,
                read=cached,
            )
        )

    def step(self) -> list[Sequence]:
        """Make one step: a token for each answer, and as much of the prompts as fits; return the
        answers that it completed.
        """
        one, room, spent_s = self.seconds, self.seconds.chunk, self.seconds.step
        here = [each for each in self.running if each.arrived_s <= self.now_s][: one.most]
        for each in here:
            each.scheduled_s = self.now_s if each.scheduled_s is None else each.scheduled_s
        for each in here:
            if not each.unread:
                spent_s += one.sequence + one.pair * (each.read + each.written)
                each.written += 1
                room -= 1
        for each in here:
            if each.unread and room > 0:
                taken = min(room, each.unread)
                if each.read == each.cached:
                    spent_s += one.cached_token * each.cached
                spent_s += one.prompt_token * taken
                spent_s += one.pair * ((each.read + taken) ** 2 - each.read**2) / 2
                each.read, room = each.read + taken, room - taken
                each.written = 0 if each.unread else 1  # the last chunk writes the first token
        self.now_s += spent_s
        for each in here:
            if each.written and each.first_s is None:
                each.first_s = self.now_s
        done = [each for each in here if each.is_done]
        self.running = [each for each in self.running if not each.is_done]
        return done


def measured(planned: PlannedWindow, rng: random.Random, seconds: StepSeconds) -> WindowTimes:
    """Run a window in a closed loop; return it by both clocks, from the times that vLLM 0.32 would
    report: to the first token from the scheduling, without the queue.
    """
    engine, done = BatchingEngine(seconds=seconds), []
    todo = _first(planned.requests(rng, request_numbers()), ROUNDS * planned.streams)
    for _ in range(planned.streams):
        engine.arrive(todo.pop(0), 0.0)
    while engine.running:
        engine.now_s = max(engine.now_s, min(each.arrived_s for each in engine.running))
        for each in engine.step():
            done.append(_request(each, engine.now_s, seconds))
            if todo:
                engine.arrive(todo.pop(0), engine.now_s + seconds.network / 2)
    length_s = engine.now_s + seconds.network / 2
    return window_times(planned, LoadRun(requests=done, began=0.0, duration_s=length_s))


def _first(requests: Iterator[LoadRequest], count: int) -> list[LoadRequest]:
    """Return the first requests."""
    return [next(requests) for _ in range(count)]


def _request(sequence: Sequence, ended_s: float, seconds: StepSeconds) -> MeasuredRequest:
    """Return a complete request as its client saw it, with the engine's figures."""
    assert sequence.scheduled_s is not None
    assert sequence.first_s is not None
    network_s = seconds.network / 2
    return MeasuredRequest(
        scheduled_s=sequence.sent_s,
        sent_s=sequence.sent_s,
        token_times_s=[sequence.first_s + network_s],
        ended_s=ended_s + network_s,
        prompt_tokens=sequence.request.prompt_tokens,
        cached_tokens=sequence.cached,
        output_tokens=sequence.request.answer_tokens,
        engine_metrics=None
        if seconds.is_silent
        else {
            "time_to_first_token_ms": 1000 * (sequence.first_s - sequence.scheduled_s),
            "generation_time_ms": 1000 * (ended_s - sequence.first_s),
            "queue_time_ms": 1000 * (sequence.scheduled_s - sequence.arrived_s),
        },
        failure=None,
    )
