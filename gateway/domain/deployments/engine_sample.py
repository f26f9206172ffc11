"""Declares one sample of a self-hosted engine, and computes from two samples the time for which it
was watched and certainly up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gateway.domain.deployments.engine_signals import EngineSignals

HOUR, MILLISECOND = timedelta(hours=1), timedelta(milliseconds=1)
# Without a process start time, an engine that was up at both ends of a longer gap may have been
# down in it.
LONGEST_BLIND_GAP = timedelta(minutes=3)
# A longer gap is not watched: an engine up at both ends proves too little. A reserved machine is
# billed for it all the same.
LONGEST_GAP = timedelta(hours=24)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSample:
    """One look at one deployment's engine.

    `is_watched` is False in the last sample of a deployment that left the policy. The counters are
    those of the engine's process since `started_at`; None if not reported. The figures from
    `kv_use` on are the live signals that `engine_signals` explains, over the last minute.
    """

    deployment: str
    at: datetime
    is_watched: bool = True
    is_up: bool = False
    started_at: datetime | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    prefix_hit_rate: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p95_s: float | None = None
    pressure: float | None = None

    def with_signals(self, signals: EngineSignals | None) -> EngineSample:
        """Return the sample with an engine's live signals; itself without any."""
        if signals is None or not self.is_up:
            return self
        return replace(
            self,
            kv_use=signals.kv_use,
            prefix_hit_rate=signals.prefix_hit_rate,
            ttft_p50_s=signals.ttft.quantile(0.5),
            ttft_p95_s=signals.ttft.quantile(0.95),
            tpot_p50_s=signals.tpot.quantile(0.5),
            tpot_p95_s=signals.tpot.quantile(0.95),
            pressure=signals.pressure,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpSpan:
    """A stretch of time, `begin` to `end`."""

    begin: datetime
    end: datetime

    def by_hour(self) -> Iterator[tuple[datetime, int]]:
        """Yield each clock hour that the span touches, with the span's milliseconds in it; they add
        up to the span.
        """
        begin = self.begin
        while begin < self.end:
            hour = begin.replace(minute=0, second=0, microsecond=0)
            end = min(self.end, hour + HOUR)
            yield hour, (end - hour) // MILLISECOND - (begin - hour) // MILLISECOND
            begin = end

    def within(self, other: UpSpan) -> UpSpan | None:
        """Return the part of the span that lies in `other`; None if they do not overlap."""
        begin, end = max(self.begin, other.begin), min(self.end, other.end)
        return UpSpan(begin=begin, end=end) if begin < end else None


def watched(previous: EngineSample | None, sample: EngineSample) -> UpSpan | None:
    """Return the time between two samples of an engine; None if they are too far apart or one is
    not of a watched engine.
    """
    if previous is None or not previous.is_watched or not sample.is_watched:
        return None
    if not timedelta(0) < sample.at - previous.at <= LONGEST_GAP:
        return None
    return UpSpan(begin=previous.at, end=sample.at)


def up(previous: EngineSample | None, sample: EngineSample) -> UpSpan | None:
    """Return the part of the time between two samples in which the engine was certainly up; None if
    there is none.

    A running process has run since its start, even without looks. A process that ended since the
    previous sample was last seen there; its time after that is unknown and not counted.
    """
    span = watched(previous, sample)
    if span is None or previous is None or not sample.is_up:
        return None
    if sample.started_at is not None:
        begin = max(span.begin, min(sample.started_at, span.end))
        return UpSpan(begin=begin, end=span.end) if begin < span.end else None
    return span if previous.is_up and span.end - span.begin <= LONGEST_BLIND_GAP else None


def up_while_silent(
    last_up: EngineSample | None, previous: EngineSample | None, sample: EngineSample
) -> UpSpan | None:
    """Return the time until a silent sample in which the engine was up after all, because the same
    process answers again; None if that is not certain.

    `last_up` is the newest sample before `previous` that was answered. An overloaded or stopped
    process misses a look now and then; its GPUs are in use all the same.
    """
    if last_up is None or previous is None or previous.is_up or not previous.is_watched:
        return None
    is_same = sample.started_at is not None and sample.started_at == last_up.started_at
    if not (last_up.is_up and sample.is_up and is_same):
        return None
    if not last_up.at < previous.at or sample.at - last_up.at > LONGEST_GAP:
        return None
    return UpSpan(begin=last_up.at, end=previous.at)
