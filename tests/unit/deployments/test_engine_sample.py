"""Samples prove an engine's hours: never more than was seen, never the same second twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.deployments.engine_sample import (
    HOUR,
    EngineSample,
    UpSpan,
    up,
    up_while_silent,
    watched,
)
from gateway.domain.deployments.engine_signals import EngineSignals, Histogram
from gateway.domain.pricing.selfhost import GpuRate, gpu_bill_nusd

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def look(
    second: float, *, is_up: bool = True, started: float | None = None, is_watched: bool = True
) -> EngineSample:
    """A sample so many seconds after noon; `started` is when the engine's process says it began."""
    return EngineSample(
        deployment="qwen",
        at=NOON + timedelta(seconds=second),
        is_up=is_up,
        is_watched=is_watched,
        started_at=None if started is None else NOON + timedelta(seconds=started),
    )


def up_s(previous: EngineSample | None, sample: EngineSample) -> float:
    span = up(previous, sample)
    assert span is None or span.begin < span.end, "a stretch of no time is none"
    return 0.0 if span is None else (span.end - span.begin).total_seconds()


def test_a_sample_takes_the_signals_of_an_engine_that_is_up() -> None:
    """A silent engine has none: those of its last page would look like the present."""
    waits = Histogram(((0.1, 0.0), (0.5, 10.0), (inf, 10.0)))
    signals = EngineSignals(
        running=4, queue=0, room=8, kv_use=0.25, prefix_hit_rate=0.4, ttft=waits
    )
    shown = look(0).with_signals(signals)
    assert (shown.kv_use, shown.prefix_hit_rate, shown.pressure) == (0.25, 0.4, 0.5)
    assert (shown.ttft_p50_s, shown.ttft_p95_s) == (pytest.approx(0.3), pytest.approx(0.48))
    assert (shown.tpot_p50_s, shown.tpot_p95_s) == (None, None)
    silent = look(0, is_up=False)
    assert silent.with_signals(signals) is silent
    assert look(0).with_signals(None) == look(0)


def test_an_engine_is_up_as_long_as_two_looks_can_prove() -> None:
    """Each case is one way in which a minute can be uncertain."""
    cases = {
        "the first look proves nothing": (up_s(None, look(60)), 0),
        "up at both looks": (up_s(look(0), look(60)), 60),
        "down now": (up_s(look(0), look(60, is_up=False)), 0),
        "was down, and does not say since when it is up": (up_s(look(0, is_up=False), look(60)), 0),
        "was down, and says since when it is up": (
            up_s(look(0, is_up=False), look(60, started=45)),
            15,
        ),
        "has run since before the last look": (up_s(look(0, started=-9), look(60, started=-9)), 60),
        "restarted between the looks": (up_s(look(0, started=-9), look(60, started=50)), 10),
        "nobody looked for hours, but it says it ran": (
            up_s(look(0), look(7200, started=-9)),
            7200,
        ),
        "nobody looked for hours, and it says nothing": (up_s(look(0), look(7200)), 0),
        "three blind minutes are believed": (up_s(look(0), look(180)), 180),
        "a second more is not": (up_s(look(0), look(181)), 0),
        "nobody looked for a day, but it says it ran": (
            up_s(look(0), look(86_400, started=-9)),
            86_400,
        ),
        "nobody looked for a second more": (up_s(look(0), look(86_401, started=-9)), 0),
        "both looks are of one moment": (up_s(look(60), look(60)), 0),
        "the clock was set back between the looks": (up_s(look(60), look(0)), 0),
        "nobody looked for two days": (up_s(look(0), look(2 * 86_400, started=-9)), 0),
        "it left the policy and came back": (
            up_s(look(0, is_watched=False), look(60, started=-9)),
            0,
        ),
        "it leaves the policy": (up_s(look(0), look(60, is_watched=False)), 0),
        "it says it started after it was looked at": (up_s(look(0), look(60, started=99)), 0),
    }
    assert {name: found for name, (found, expected) in cases.items() if found != expected} == {}


MOMENTS = st.integers(0, 4 * 86_400_000).map(
    lambda ms: NOON + timedelta(milliseconds=ms, microseconds=ms % 1000)
)


@given(st.lists(MOMENTS, min_size=2, max_size=2, unique=True).map(sorted))
def test_a_span_is_the_sum_of_its_hours(ends: list[datetime]) -> None:
    """A loss or double count at the full hour would be on the bill."""
    begin, end = ends
    parts = list(UpSpan(begin=begin, end=end).by_hour())
    assert sum(ms for _, ms in parts) == ms_of(end) - ms_of(begin)
    assert all(
        0 <= ms <= 3_600_000 and hour.minute == hour.second == hour.microsecond == 0
        for hour, ms in parts
    )
    assert [hour for hour, _ in parts] == sorted({hour for hour, _ in parts})


@given(st.data())
def test_looks_one_after_the_other_count_each_second_once(data: st.DataObject) -> None:
    """For any number of looks and workers: uptime is within the watched time, and that within
    the clock.
    """
    seconds = sorted(
        data.draw(st.lists(st.integers(0, 500_000), min_size=2, max_size=30, unique=True))
    )
    samples = [
        look(
            second,
            is_up=data.draw(st.booleans()),
            is_watched=data.draw(st.sampled_from([True, True, True, False])),
            started=data.draw(st.none() | st.integers(-1000, second)),
        )
        for second in seconds
    ]
    hours: dict[datetime, list[int]] = {}
    for previous, sample in zip([None, *samples], samples, strict=False):
        for place, span in enumerate((watched(previous, sample), up(previous, sample))):
            for hour, ms in span.by_hour() if span else ():
                hours.setdefault(hour, [0, 0])[place] += ms
    assert all(0 <= up_ms <= watched_ms <= 3_600_000 for watched_ms, up_ms in hours.values())
    whole = (seconds[-1] - seconds[0]) * 1000
    assert sum(watched_ms for watched_ms, _ in hours.values()) <= whole


def ms_of(moment: datetime) -> int:
    return (moment - NOON.replace(hour=0)) // timedelta(milliseconds=1)


def test_a_gpu_bill_is_exact_and_rounded_once() -> None:
    """An hour of three GPUs at 3.10 USD costs 9.30 USD; a third of a nano-dollar is not lost
    twice.
    """
    gpu = GpuRate(
        type="H200",
        count=3,
        usd_per_gpu_hour=Decimal("3.10"),
        input_tok_per_s=Decimal(1),
        output_tok_per_s=Decimal(1),
        target_utilisation=Decimal(1),
    )
    assert gpu_bill_nusd(gpu, 3_600_000) == 9_300_000_000
    assert gpu_bill_nusd(gpu, 0) == 0
    assert gpu_bill_nusd(gpu, 1) == 2583  # 2583.33…
    assert gpu_bill_nusd(gpu, 24 * 3_600_000) == 24 * 9_300_000_000


def test_a_span_within_another_is_their_overlap() -> None:
    """Spans that only touch share nothing."""
    morning, day = (
        UpSpan(begin=NOON - HOUR, end=NOON),
        UpSpan(begin=NOON - HOUR / 2, end=NOON + HOUR),
    )
    assert morning.within(day) == day.within(morning) == UpSpan(begin=NOON - HOUR / 2, end=NOON)
    assert morning.within(UpSpan(begin=NOON, end=NOON + HOUR)) is None


def test_an_engine_that_missed_a_look_was_up_if_the_same_process_answers_again() -> None:
    """An overloaded process is silent, and its GPUs are in use."""
    before, silent = look(0, started=-60), look(60, is_up=False)
    found = up_while_silent(before, silent, look(120, started=-60))
    assert found == UpSpan(begin=before.at, end=silent.at)
    day_s = 86_400
    for last_up, previous, sample in (
        (None, silent, look(120, started=-60)),
        (before, None, look(120, started=-60)),
        (before, look(60, started=-60), look(120, started=-60)),  # nothing was missed
        (before, look(60, is_up=False, is_watched=False), look(120, started=-60)),
        (before, silent, look(120, started=90)),  # another process
        (before, silent, look(120)),  # it does not say which
        (before, silent, look(120, is_up=False)),
        (look(60, started=-60), silent, look(120, started=-60)),
        (before, silent, look(day_s + 1, started=-60)),
    ):
        assert up_while_silent(last_up, previous, sample) is None
