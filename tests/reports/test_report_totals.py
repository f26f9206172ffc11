"""A report's total is the sum of its events, whatever is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.domain.money import usd_from_nusd
from gateway.domain.usage_event import UsageEvent
from gateway.reports import UNTAGGED, Cell, Dimension, Reports, ask
from gateway.storage import rollups
from gateway.storage.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import random_event, values_of
from tests.storage.factories import event

COUNTED = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
some_dimensions = st.lists(st.sampled_from(Dimension), max_size=4, unique=True)


@pytest.fixture
def known(write: Write, database: Database, rng: Random) -> list[UsageEvent]:
    """Two hundred events in the database: some in the roll-up, some not yet, some in hours summed up before."""
    events = [random_event(number, rng) for number in range(200)]
    write(*events[:80])
    rollups.refresh(database)
    write(*events[80:150])
    with database.begin() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(40), tollgate.refresh_days(20)"))
    write(*events[150:])
    return events


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(by=some_dimensions, month=st.sampled_from(["all", "2026-11", "2026-10", "2026-01"]), data=st.data())
def test_a_total_is_the_sum_of_its_events(
    finance: Reports, known: list[UsageEvent], by: list[Dimension], month: str, data: st.DataObject
) -> None:
    """Finance closes its books on totals: none may gain or lose an event by how it is split or filtered."""
    filters = data.draw(st.lists(st.sampled_from(Dimension), max_size=2, unique=True))
    where = {name: data.draw(st.sampled_from(choices(known, name))) for name in filters}
    chosen = [one for one in known if is_in(one, month) and all(has(one, name, v) for name, v in where.items())]

    report = finance.run("spend", ask(month=month, by=[*map(str, by)], where={str(n): v for n, v in where.items()}))

    assert {name: report.total[name] for name in expected([])} == expected(chosen)
    groups: dict[tuple[object, ...], list[UsageEvent]] = defaultdict(list)
    for one in chosen:
        for group in product(*(values_of(one, dimension) for dimension in by)):
            groups[group].append(one)
    rows = {tuple(row[: len(by)]): record for row, record in zip(report.rows, report.records(), strict=True)}
    assert len(rows) == len(report.rows)
    assert {group: {n: row[n] for n in expected([])} for group, row in rows.items()} == {
        group: expected(events) for group, events in groups.items() if by
    }
    if by and Dimension.TAG not in by:
        assert sum(int(str(row["attempts"])) for row in rows.values()) == report.total["attempts"]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(Dimension), data=st.data())
def test_a_row_opens_exactly_its_events(
    finance: Reports, known: list[UsageEvent], name: Dimension, data: st.DataObject
) -> None:
    """Who picks a row sees the events that made it, no more and no fewer, page by page."""
    value = data.draw(st.sampled_from(choices(known, name)))
    seen: list[tuple[Cell, Cell]] = []
    while True:
        page = finance.run("events", ask(where={str(name): value}, limit=30, offset=len(seen)))
        seen += [(row["request_id"], row["attempt"]) for row in page.records()]
        if not page.rows:
            break
    assert len(set(seen)) == len(seen) == page.total["attempts"]
    assert set(seen) == {(str(one.request_id), one.attempt) for one in known if has(one, name, value)}


def test_tags_do_not_inflate_the_total(finance: Reports, write: Write) -> None:
    """An event with two tags was counted twice by a gateway we know: 67 % too much."""
    write(event(1, tags={"env": "prod", "app": "bot"}), event(2, tags={"env": "prod"}), event(3, tags={}))

    report = finance.run("spend", ask(by=["tag"]))

    assert {row["tag"]: row["attempts"] for row in report.records()} == {"env=prod": 2, "app=bot": 1, UNTAGGED: 1}
    assert report.total["attempts"] == 3
    assert report.total["cost_usd"] == Decimal("0.0018")
    assert any("counts each event once" in note for note in report.notes)


def choices(known: Sequence[UsageEvent], name: Dimension) -> list[str | None]:
    found = {value if value is None else str(value) for one in known for value in values_of(one, name)}
    return sorted(found, key=str)


def has(one: UsageEvent, name: Dimension, value: object) -> bool:
    return value in [found if found is None else str(found) for found in values_of(one, name)]


def is_in(one: UsageEvent, month: str) -> bool:
    return month == "all" or f"{one.occurred_at:%Y-%m}" == month


def expected(events: Sequence[UsageEvent]) -> dict[str, object]:
    known = [one.cost_nusd for one in events if one.cost_nusd is not None]
    reported = {name: [n for one in events if (n := getattr(one.usage, name)) is not None] for name in COUNTED}
    return {
        "attempts": len(events),
        "cost_usd": usd_from_nusd(sum(known)) if known or not events else None,
        "held_usd": usd_from_nusd(sum(one.held_nusd or 0 for one in events)),
        "unknown_attempts": len(events) - len(known),
        **{name: sum(counts) if counts else None for name, counts in reported.items()},
    }
