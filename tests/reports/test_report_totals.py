"""A report's total is the sum of its events, for any question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.tokens import UsageSource
from gateway.reports.dimensions import UNALLOCATED, Dimension, Split, TagKey
from gateway.reports.question import ask
from gateway.reports.report import Cell
from gateway.reports.reports import Reports
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import parts_of, random_event, values_of
from tests.storage.factories import event

COUNTED = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
SPLITS: tuple[Split, ...] = (*Dimension, TagKey("tag:env"), TagKey("tag:app=a"), TagKey("tag:'"))
some_dimensions = st.lists(st.sampled_from(SPLITS), max_size=4, unique=True)


@pytest.fixture
def known(write: Write, database: Database, rng: Random) -> list[UsageEvent]:
    """Two hundred events in the database: some in the roll-up, some not yet, some in hours summed
    up before.
    """
    events = [random_event(number, rng) for number in range(200)]
    write(*events[:80])
    rollups.refresh(database)
    write(*events[80:150])
    with database.begin() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(40), tollgate.refresh_days(20)"))
    write(*events[150:])
    return events


@settings(
    max_examples=80,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    by=some_dimensions,
    month=st.sampled_from(["all", "2026-11", "2026-10", "2026-01", "2026-10-05/2026-11-10"]),
    data=st.data(),
)
def test_a_total_is_the_sum_of_its_events(
    finance: Reports, known: list[UsageEvent], by: list[Split], month: str, data: st.DataObject
) -> None:
    """Finance closes its books on totals: none may gain or lose an event by how it is split or
    filtered.
    """
    filters = data.draw(st.lists(st.sampled_from(SPLITS), max_size=2, unique=True))
    where = {name: data.draw(st.sampled_from(choices(known, name))) for name in filters}
    chosen = [
        one
        for one in known
        if is_in(one, month) and all(has(one, name, v) for name, v in where.items())
    ]

    report = finance.run(
        "spend",
        ask(**in_words(month), by=[*map(str, by)], where={str(n): v for n, v in where.items()}),
    )

    assert {name: report.total[name] for name in expected([])} == expected(
        [(one, 1) for one in chosen]
    )
    groups: dict[tuple[object, ...], list[tuple[UsageEvent, int]]] = defaultdict(list)
    for one in chosen:
        for parts in product(*(parts_of(one, dimension) for dimension in by)):
            groups[tuple(value for value, _ in parts)].append(
                (one, prod(times for _, times in parts))
            )
    rows = {
        tuple(row[: len(by)]): record
        for row, record in zip(report.rows, report.records(), strict=True)
    }
    assert len(rows) == len(report.rows)
    assert {group: {n: row[n] for n in expected([])} for group, row in rows.items()} == {
        group: expected(events) for group, events in groups.items() if by
    }
    if by:
        for name in ("attempts", "cost_usd", "total_usd", "held_usd", *COUNTED):
            parts = [Decimal(str(row[name])) for row in rows.values() if row[name] is not None]
            assert sum(parts) == (report.total[name] or 0), name


@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(name=st.sampled_from(SPLITS), data=st.data())
def test_a_row_opens_exactly_its_events(
    finance: Reports, known: list[UsageEvent], name: Split, data: st.DataObject
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
    assert set(seen) == {
        (str(one.request_id), one.attempt) for one in known if has(one, name, value)
    }


def test_tags_do_not_inflate_the_total(finance: Reports, write: Write) -> None:
    """An event with two tags was counted twice by a gateway we know: 67 % too much."""
    write(
        event(1, tags={"env": "prod", "app": "bot"}),
        event(2, tags={"env": "prod"}),
        event(3, tags={}),
    )

    report = finance.run("spend", ask(by=["tag"]))

    assert {row["tag"]: (row["attempts"], row["cost_usd"]) for row in report.records()} == {
        "env=prod": (2, Decimal("0.0012")),
        "app=bot": (1, Decimal("0.0006")),
        UNALLOCATED: (0, Decimal(0)),
    }
    assert report.total["attempts"] == 3
    assert report.total["cost_usd"] == Decimal("0.0018")
    assert any("unallocated is the total minus" in note for note in report.notes)


def test_parts_by_tag_never_exceed_the_whole(finance: Reports, write: Write) -> None:
    """Parts of 41.56 USD of a whole of 29.01 cannot be booked: repeated counts are subtracted in
    a named row.
    """
    write(
        event(1, tags={"env": "prod", "app": "bot", "run": "7"}),
        event(2, tags={"env": "prod", "app": "bot"}),
    )

    rows = {row["tag"]: row for row in finance.run("spend", ask(by=["tag"])).records()}

    assert rows[UNALLOCATED]["cost_usd"] == Decimal("-0.0018")
    assert rows[UNALLOCATED]["attempts"] == -3
    assert rows[UNALLOCATED]["unknown_share"] is None
    assert sum(Decimal(str(row["cost_usd"])) for row in rows.values()) == Decimal("0.0012")


@pytest.mark.parametrize("by", ["tag", "tag,key"])  # sums of days; the events themselves
@pytest.mark.parametrize("name", ["overview", "latency"])
def test_counts_by_tag_add_up_beside_figures_that_cannot(
    finance: Reports, write: Write, name: str, by: str
) -> None:
    """One column that is no sum made all others overlap: 5 attempts by tag of 3 in the total."""
    write(
        event(1, team="a", tags={"env": "prod", "app": "bot"}, ttft_s=1.0),
        event(2, team="b", tags={"env": "prod"}, ttft_s=2.0),
        event(3, team="c", tags={}, ttft_s=4.0),
    )

    report = finance.run(name, ask(by=by.split(",")))

    rows = {row["tag"]: row for row in report.records()}
    assert {tag: row["attempts"] for tag, row in rows.items()} == {
        "env=prod": 2,
        "app=bot": 1,
        UNALLOCATED: 0,
    }
    assert report.total["attempts"] == 3
    if name == "overview":
        assert [rows[tag]["teams"] for tag in ("env=prod", "app=bot", UNALLOCATED)] == [2, 1, 1]
    else:
        assert rows[UNALLOCATED]["ttft_p50_s"] == 4.0
        assert rows[UNALLOCATED]["error_share"] is None


def test_sums_of_some_sources_by_tag_add_up(finance: Reports, write: Write) -> None:
    """An amount of derived usage is in the rest by tag as all others are."""
    write(
        event(1, tags={"env": "prod", "app": "bot"}, usage_source=UsageSource.DERIVED),
        event(2, tags={"env": "prod"}),
    )
    report = finance.run("meter-quality", ask(by=["tag"]))
    rows = {
        row["tag"]: (row["final_attempts"], row["running_attempts"]) for row in report.records()
    }
    assert rows == {"env=prod": (1, 1), "app=bot": (0, 1), UNALLOCATED: (0, -1)}


def choices(known: Sequence[UsageEvent], name: Split) -> list[str | None]:
    found = {
        value if value is None else str(value) for one in known for value in values_of(one, name)
    }
    return sorted(found, key=str)


def has(one: UsageEvent, name: Split, value: object) -> bool:
    return value in [found if found is None else str(found) for found in values_of(one, name)]


def is_in(one: UsageEvent, month: str) -> bool:
    first, _, last = month.partition("/")
    if last:
        return first <= f"{one.occurred_at:%Y-%m-%d}" <= last
    return month == "all" or f"{one.occurred_at:%Y-%m}" == month


def in_words(month: str) -> dict[str, str]:
    first, _, last = month.partition("/")
    return {"first": first, "last": last} if last else {"month": month}


def expected(parts: Sequence[tuple[UsageEvent, int]]) -> dict[str, object]:
    known = [one.cost_nusd * times for one, times in parts if one.cost_nusd is not None]
    reported = {
        name: [n * times for one, times in parts if (n := getattr(one.usage, name)) is not None]
        for name in COUNTED
    }
    return {
        "attempts": sum(times for _, times in parts),
        "cost_usd": usd_from_nusd(sum(known)) if known or not parts else None,
        "held_usd": usd_from_nusd(sum((one.held_nusd or 0) * times for one, times in parts)),
        "unknown_attempts": sum(times for one, times in parts if one.cost_nusd is None),
        **{name: sum(counts) if counts else None for name, counts in reported.items()},
    }
