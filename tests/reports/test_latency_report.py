"""Callers' waits against the bounds in force: from the attempts themselves, and not flattered."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.reports.dimensions import Dimension
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import random_event, values_of
from tests.storage.factories import NOON, event

TIMES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "gap": "max_gap_s",
    "queue": "queue_s",
    "overhead": "overhead_s",
    "duration": "duration_s",
}


def bound(ttft_p95_s: object = None, max_cost_nusd: object = None) -> dict[str, Any]:
    """The record of a decision under these bounds."""
    return {"ranked": [], "bounds": {"ttft_p95_s": ttft_p95_s, "max_cost_nusd": max_cost_nusd}}


def percentile(values: list[float], share: float) -> float | None:
    """Between its two neighbours, as Postgres and everybody's spreadsheet do it."""
    ordered = sorted(values)
    if not ordered:
        return None
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def from_sizes(values: list[float], share: float) -> float | None:
    """The same from counts by size, as the sums of a day keep them: each size is 1.3 times the
    last, from half a millisecond on.
    """
    if not values:
        return None
    edges = [0.0, *(0.0005 * 1.3**n for n in range(55)), math.inf]
    counts = [sum(low <= one < high for one in values) for low, high in pairwise(edges)]
    wanted, below = share * (len(values) - 1) + 0.5, 0
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count and below + count >= wanted:
            part = (wanted - below) / count
            return high * part if low == 0 else low * (high / low) ** part
        below += count
    raise AssertionError


def timed(number: int, rng: Random) -> UsageEvent:
    """A random event with any of its times, and any bounds."""

    def some() -> float | None:
        return rng.choice([None, rng.random() * 2])

    return replace(
        random_event(number, rng),
        ttft_s=some(),
        tpot_s=some(),
        max_gap_s=some(),
        queue_s=some(),
        overhead_s=some(),
        duration_s=rng.random(),
        degraded=rng.choice([None, None, "spill", "route:small"]),
        outcome=rng.choice(list(Outcome)),
        decision=rng.choice([{}, bound(), bound(rng.random()), bound(1, rng.randrange(10**9))]),
    )


def figures(
    events: list[UsageEvent], of: Callable[[list[float], float], float | None]
) -> dict[str, Any]:
    """Return the report's figures for these events, with the percentiles that `of` returns."""
    found: dict[str, Any] = {"attempts": len(events)}
    for name, member in TIMES.items():
        seen = [value for one in events if (value := getattr(one, member)) is not None]
        found |= {f"{name}_p{share}_s": of(seen, share / 100) for share in (50, 95, 99)}
    is_error = [
        one.outcome not in (Outcome.OK, Outcome.CLIENT_GONE, Outcome.GATEWAY_STOPPED)
        for one in events
    ]
    found["error_share"] = round(sum(is_error) / len(events), 6)
    is_degraded = [one.degraded is not None for one in events]
    found["degraded_share"] = round(sum(is_degraded) / len(events), 6)
    bounds = [(one, one.decision.get("bounds", {})) for one in events]
    waits = [
        (one.ttft_s, limit) for one, of in bounds if (limit := of.get("ttft_p95_s")) is not None
    ]
    costs = [
        (one.cost_nusd, limit)
        for one, of in bounds
        if (limit := of.get("max_cost_nusd")) is not None
    ]
    found["ttft_bound_s"] = min((limit for _, limit in waits), default=None)
    for name, pairs in (("ttft", waits), ("cost", costs)):
        known = [(value, limit) for value, limit in pairs if value is not None]
        missed = sum(value > limit for value, limit in known)
        found[f"{name}_missed"] = missed
        found[f"{name}_missed_share"] = round(missed / len(known), 6) if known else None
    return found


@pytest.mark.parametrize(
    ("dimension", "of"),
    [
        (Dimension.ROUTE, from_sizes),
        (Dimension.TEAM, from_sizes),
        (Dimension.DEPLOYMENT, from_sizes),
        (Dimension.DAY, from_sizes),
        (Dimension.KEY, from_sizes),
        (Dimension.END_USER, percentile),
    ],
)
def test_every_figure_is_of_the_attempts_themselves(
    finance: Reports,
    write: Write,
    database: Database,
    rng: Random,
    dimension: Dimension,
    of: Callable[[list[float], float], float | None],
) -> None:
    """A percentile of percentiles is no caller's wait; a bound that is not the attempt's own is
    no promise.
    """
    events = [timed(number, rng) for number in range(300)]
    write(*events[:200])
    rollups.refresh(database)
    write(*events[200:])

    report = finance.run("latency", ask(by=[dimension.value]))

    column = dimension.report_column.name
    for row in (*report.records(), report.total):
        of_row = [
            one for one in events if column not in row or values_of(one, dimension) == [row[column]]
        ]
        expected = figures(of_row, of)
        found = {name: None if row[name] is None else float(str(row[name])) for name in expected}
        assert found == pytest.approx(expected)
    assert len(report.rows) > 1


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_from_sizes_is_near_the_exact_one(
    finance: Reports, write: Write, rng: Random, share: float
) -> None:
    """The note promises the same size, which ends at 1.3 times its beginning."""
    waits = [rng.lognormvariate(-1, 1.2) for _ in range(400)]
    write(*(event(n, ttft_s=wait) for n, wait in enumerate(waits)))
    found = float(str(finance.run("latency", ask()).total[f"ttft_p{round(share * 100)}_s"]))
    assert found == pytest.approx(percentile(waits, share), rel=0.3)
    assert found != percentile(waits, share), "read from the events, which are many"


def test_a_bound_is_the_one_that_was_in_force(finance: Reports, write: Write) -> None:
    """Who tightens a bound today has not missed it yesterday."""
    yesterday = NOON - timedelta(days=1)
    write(
        event(1, at=yesterday, ttft_s=0.9, decision=bound(1.0)),
        event(2, ttft_s=0.9, decision=bound(0.8)),
        event(3, ttft_s=0.8, decision=bound(0.8)),
        event(4, ttft_s=9.0),
        event(5, ttft_s=None, decision=bound(0.8)),
    )

    total = finance.run("latency", ask()).total

    assert (total["ttft_missed"], total["ttft_bound_s"]) == (1, 0.8)
    assert total["ttft_missed_share"] == Decimal("0.333333")
    assert (total["cost_missed"], total["cost_missed_share"]) == (0, None)


def test_a_cost_bound_is_checked_against_the_charged_cost(finance: Reports, write: Write) -> None:
    """To the nano-dollar: at the bound is within it, and an unknown cost has missed nothing yet."""
    write(
        event(1, cost_nusd=1001, decision=bound(None, 1000)),
        event(2, cost_nusd=1000, decision=bound(None, 1000)),
        event(3, cost_nusd=None, held_nusd=9999, lines=(), decision=bound(None, 1000)),
    )
    total = finance.run("latency", ask()).total
    assert (total["cost_missed"], float(str(total["cost_missed_share"]))) == (1, 0.5)


@pytest.mark.parametrize("ttft_p95_s", ["soon", [], {}, True, "0.5"])
def test_a_bound_of_another_shape_is_ignored(
    finance: Reports, write: Write, ttft_p95_s: object
) -> None:
    """An event stays for ever: one that a later version wrote otherwise may not end all reports on
    its month.
    """
    write(
        event(1, decision=bound(ttft_p95_s)),
        event(2, decision={"bounds": 7}),
        event(3, decision={"bounds": []}),
    )
    total = finance.run("latency", ask()).total
    assert (total["attempts"], total["ttft_bound_s"], total["ttft_missed_share"]) == (3, None, None)


def test_a_caller_who_leaves_is_no_error(finance: Reports, write: Write) -> None:
    """An error rate that rises with every closed tab would be ignored."""
    write(*(event(number, outcome=outcome) for number, outcome in enumerate(Outcome)))
    share = finance.run("latency", ask()).total["error_share"]
    assert share == round(Decimal(len(Outcome) - 3) / len(Outcome), 6)


def test_the_report_states_the_definition_of_a_miss(finance: Reports, write: Write) -> None:
    """A share without its rule is read as somebody else's rule."""
    assert not any("bound" in note for note in finance.run("latency", ask()).notes)
    write(event(1))
    assert any(
        "A bound is missed by an attempt that took longer" in n
        for n in finance.run("latency", ask()).notes
    )
