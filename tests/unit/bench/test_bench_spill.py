"""The judge of the saturated engine can find: good books are good, and each planted fault is
found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.books.spill_books import (
    API,
    BOUNDED,
    ENGINE,
    SPILL,
    UNBOUNDED,
    Call,
    Phase,
    misses,
    table,
    wrongs,
)
from bench.spill import FIRST_CONTENT

AT_ENGINE = Call(request_id="r1", deployment=ENGINE, ttft_s=0.4)
SPILLED = Call(request_id="r2", deployment=API, degraded=SPILL, ttft_s=0.3)
EVENTS: list[Mapping[str, Any]] = [
    {
        "request_id": "r1",
        "deployment": ENGINE,
        "degraded": None,
        "outcome": "ok",
        "output_tokens": 100,
    },
    {
        "request_id": "r2",
        "deployment": API,
        "degraded": SPILL,
        "outcome": "ok",
        "output_tokens": 100,
    },
    {
        "request_id": "of another phase",
        "deployment": API,
        "degraded": None,
        "outcome": "ok",
        "output_tokens": 7,
    },
]
ENTRIES = [
    {"request_id": "r2", "generated": 100},
    {"request_id": "of another phase", "generated": 7},
]


def phase(*calls: Call, route: str = BOUNDED, engine_finished: int = 1) -> Phase:
    """A phase as it should be, but for its calls."""
    return Phase(
        name="phase",
        route=route,
        clients=2,
        calls=calls or (AT_ENGINE, SPILLED),
        engine_finished=engine_finished,
        engine_cpu_share=0.5,
        strangers_cpu_share=0.1,
    )


def at(ttft_s: float, *, route: str) -> Phase:
    """A phase of which half spilled and all waited so long."""
    return phase(replace(AT_ENGINE, ttft_s=ttft_s), replace(SPILLED, ttft_s=ttft_s), route=route)


ROOM = phase(replace(AT_ENGINE, ttft_s=0.02), route=UNBOUNDED)


def test_good_books_are_good() -> None:
    """Else every run would be thrown away."""
    assert wrongs(phase(), events=EVENTS, entries=ENTRIES) == []


@pytest.mark.parametrize(
    ("planted", "events", "entries", "found"),
    [
        (phase(engine_finished=2), EVENTS, ENTRIES, "the engine counted 2"),
        (phase(), EVENTS[:1], ENTRIES, "the API served 1 requests, the ledger has 0"),
        (phase(), EVENTS, ENTRIES[1:], "the API served 0 requests, the ledger has 1"),
        (phase(), EVENTS, [{"request_id": "r2", "generated": 99}], "or other tokens"),
        (phase(), [EVENTS[0], {**EVENTS[1], "output_tokens": 99}], ENTRIES, "or other tokens"),
        (phase(), [*EVENTS, EVENTS[1]], ENTRIES, "the API served 1 requests, the ledger has 2"),
        (phase(), [EVENTS[0], {**EVENTS[1], "degraded": None}], ENTRIES, "1 callers were told"),
        (phase(AT_ENGINE, replace(SPILLED, degraded=None)), EVENTS, ENTRIES, "1 callers were told"),
        (
            phase(replace(AT_ENGINE, deployment=API), SPILLED),
            EVENTS,
            ENTRIES,
            "1 callers were told",
        ),
        (
            phase(AT_ENGINE, replace(SPILLED, problem="status 503")),
            EVENTS,
            ENTRIES,
            "1 × status 503",
        ),
        (phase(route=UNBOUNDED), EVENTS, ENTRIES, "nothing to spill for"),
    ],
)
def test_a_planted_fault_is_found(
    planted: Phase, events: list[Mapping[str, Any]], entries: list[Mapping[str, Any]], found: str
) -> None:
    """Books that always agree would prove nothing of a gateway that spills in silence."""
    assert any(found in wrong for wrong in wrongs(planted, events=events, entries=entries))


def test_the_bench_shows_a_bound_met_only_by_spilling() -> None:
    """The bound is kept with it and missed without it, in one run."""
    assert misses(ROOM, [at(4.0, route=UNBOUNDED), at(1.5, route=BOUNDED)], bound_s=1.5) == []


@pytest.mark.parametrize(
    ("room", "loaded", "found"),
    [
        (ROOM, at(1.51, route=BOUNDED), "over the bound"),
        (ROOM, at(1.5, route=UNBOUNDED), "the engine had room"),
        (ROOM, phase(AT_ENGINE, route=BOUNDED), "neither all nor none"),
        (ROOM, phase(SPILLED, route=BOUNDED), "neither all nor none"),
        (at(0.8, route=UNBOUNDED), at(1.0, route=BOUNDED), "too tight"),
        (ROOM, phase(replace(AT_ENGINE, ttft_s=None), route=BOUNDED), "over the bound"),
        (ROOM, phase(replace(AT_ENGINE, ttft_s=None), route=UNBOUNDED), "the engine had room"),
    ],
)
def test_a_run_that_shows_nothing_fails(room: Phase, loaded: Phase, found: str) -> None:
    """An engine that is idle, or never used, keeps any bound; and no answers are no proof of
    either.
    """
    assert any(found in miss for miss in misses(room, [loaded], bound_s=1.5))


def test_the_table_shows_the_spilled_share() -> None:
    """The share is of all requests of the phase, not of those at the API."""
    assert table([phase()])[2] == "| phase | 2 | 2 | 0.40 | 0.40 | 50% | 0 | 1 | 1 | 50% | 10% |"


@pytest.mark.parametrize(
    ("event", "is_content"),
    [
        (b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', False),
        (b'data: {"choices":[{"delta":{"content":"t0 "}}]}\n\n', True),
        (b'data: {"choices": [{"delta": {"content": "t0 "}}]}\n\n', True),
    ],
)
def test_the_event_with_the_role_is_no_first_token(event: bytes, is_content: bool) -> None:
    """vLLM sends it before a request has left the queue: the time to it is always short."""
    assert bool(FIRST_CONTENT.search(event)) is is_content
