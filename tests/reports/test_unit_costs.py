"""The cost of one request, answer, task, session and end user, and of 1,000 tokens of a kind."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from random import Random

import pytest
from sqlalchemy import text

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind
from gateway.reports.dimensions import UNALLOCATED, Dimension, Split, TagKey
from gateway.reports.question import ask
from gateway.reports.report import Cell
from gateway.reports.reports import Reports
from gateway.reports.sources.aggregate import OF_EVENTS
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.random_events import parts_of, random_event
from tests.reports.test_report_contents import UNKNOWN
from tests.storage.factories import event

USD = 1_000_000_000
SPLITS: tuple[tuple[Split, ...], ...] = (
    (),
    (Dimension.TEAM,),
    (Dimension.MODEL, Dimension.DAY),
    (Dimension.DEPLOYMENT,),
    (Dimension.END_USER,),
    (Dimension.KEY,),
    (Dimension.TAG,),
    (TagKey("tag:task"),),
    (Dimension.USAGE_SOURCE,),
)


@pytest.fixture
def known(write: Write, database: Database, rng: Random) -> list[UsageEvent]:
    """Events of all kinds, half of them summed."""
    events = [with_task(random_event(number, rng), rng) for number in range(120)]
    write(*events[:70])
    rollups.refresh(database)
    with database.begin() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(400), tollgate.refresh_days(200)"))
    write(*events[70:])
    return events


def with_task(one: UsageEvent, rng: Random) -> UsageEvent:
    """Return an event of a task, a session, both or neither, that failed now and then."""
    names = {"task": rng.choice([None, "t-1", "t-2"]), "session": rng.choice([None, "s-1"])}
    tags = {**one.tags, **{name: value for name, value in names.items() if value is not None}}
    outcome = rng.choice([Outcome.OK, Outcome.OK, Outcome.UPSTREAM_CUT])
    attempt = rng.choice([1, 1, 2])
    return replace_event(one, tags=tags, outcome=outcome, attempt=attempt)


def replace_event(one: UsageEvent, **changes: object) -> UsageEvent:
    """Return an event with other fields."""
    return event(0, **{name: getattr(one, name) for name in one.__struct_fields__} | changes)


def test_each_row_is_the_quotient_of_its_events(finance: Reports, known: list[UsageEvent]) -> None:
    """Computed again from the events alone, for each source that the figures come from."""
    for by in SPLITS:
        report = finance.run("unit-costs", ask(by=[str(one) for one in by]))
        groups: dict[tuple[object, ...], list[tuple[UsageEvent, int]]] = {}
        for one in known:
            for key, times in keys_of(one, by):
                groups.setdefault(key, []).append((one, times))
        rows = {
            tuple(row[dimension.report_column.name] for dimension in by): row
            for row in report.records()
        }
        for key, row in rows.items():
            is_difference = by == (Dimension.TAG,) and key == (UNALLOCATED,)
            assert figures(row) == expected(groups[key], is_difference=is_difference), (by, key)
        assert rows.keys() == ({key for key, parts in groups.items() if parts} if by else set())
        assert figures(report.total) == expected([(one, 1) for one in known]), by
        for name in ("requests", "answers", "attempts", "total_usd") if by else ():
            parts = [Decimal(str(row[name] or 0)) for row in rows.values()]
            assert sum(parts) == report.total[name], (by, name)


def keys_of(one: UsageEvent, by: tuple[Split, ...]) -> list[tuple[tuple[object, ...], int]]:
    """The rows that an event is in, and how often it counts there."""
    found: list[tuple[tuple[object, ...], int]] = [((), 1)]
    for dimension in by:
        found = [
            ((*key, value), times * more)
            for key, times in found
            for value, more in parts_of(one, dimension)
        ]
    return found


NAMES = (
    "requests",
    "answers",
    "usd_per_request",
    "usd_per_answer",
    "end_users",
    "tasks",
    "sessions",
)
EACH = ("end_user_usd", "task_usd", "usd_per_end_user", "usd_per_task", "usd_per_session")


def figures(row: object) -> dict[str, Cell]:
    """The figures that are computed again."""
    assert isinstance(row, dict)
    return {name: row[name] for name in (*NAMES, *EACH)}


def expected(
    parts: list[tuple[UsageEvent, int]], *, is_difference: bool = False
) -> dict[str, Cell]:
    """The same figures, from events."""
    usd = amount(parts)
    requests = sum(times for one, times in parts if one.attempt == 1)
    answers = sum(times for one, times in parts if one.outcome is Outcome.OK)
    # Different ones cannot be subtracted: in `unallocated` are those of events without a tag.
    own = [(one, times) for one, times in parts if times > 0]
    owned = {
        "end_user": [(one, one.end_user) for one, _ in own],
        "task": [(one, one.tags.get("task")) for one, _ in own],
        "session": [(one, one.tags.get("session")) for one, _ in own],
    }
    found: dict[str, Cell] = {
        "requests": requests,
        "answers": answers,
        "usd_per_request": each(usd, requests),
        "usd_per_answer": each(usd, answers),
    }
    for name, pairs in owned.items():
        count = len({value for _, value in pairs if value is not None})
        spent = amount((one, 1) for one, value in pairs if value is not None)
        found |= {
            f"{name}s": count,
            f"{name}_usd": spent,
            f"usd_per_{name}": each(spent, count),
        }
    if is_difference:
        found |= dict.fromkeys([name for name in found if name.startswith("usd_per_")])
    return {name: found[name] for name in (*NAMES, *EACH)}


def amount(parts: Iterable[tuple[UsageEvent, int]]) -> Decimal | None:
    """The known cost of some events; None if there are events and none is known."""
    listed = list(parts)
    costs = [one.cost_nusd * times for one, times in listed if one.cost_nusd is not None]
    return usd_from_nusd(sum(costs)) if costs or not listed else None


def each(usd: Decimal | None, count: int) -> Decimal | None:
    """The cost of one."""
    return None if usd is None or count <= 0 else (usd / count).quantize(Decimal("1e-12"))


def test_a_month_by_team_reads_sums_alone(finance: Reports, known: list[UsageEvent]) -> None:
    """The note names the reports that read single events: a reader waits for those."""
    assert known
    for by, is_from_events in (("team", False), ("deployment", False), ("tag:app", True)):
        notes = finance.run("unit-costs", ask(month="2026-11", by=[by])).notes
        assert notes.count(OF_EVENTS) == is_from_events, by


def test_the_kinds_and_the_rest_add_up(finance: Reports, write: Write, database: Database) -> None:
    """The cost of a kind is the sum of its lines; an adjustment belongs to none."""
    lines = (
        Line(kind=TokenKind.INPUT, tokens=400, usd_per_mtok=Decimal("2.5"), cost_nusd=1_000_000),
        Line(kind=TokenKind.OUTPUT, tokens=3, usd_per_mtok=Decimal(10), cost_nusd=30_000),
    )
    write(
        event(1, lines=lines, cost_nusd=1_030_000),
        event(2, lines=lines[:1], cost_nusd=1_000_000, team="search", tags={"a": "1", "b": "2"}),
        event(3, lines=(), cost_nusd=0, team="search", tags={}),
        event(4, **UNKNOWN),
    )
    report = finance.run("token-costs", ask())
    assert [row[:4] for row in report.rows] == [
        ("input", 800, Decimal("0.0025"), Decimal("0.002")),
        ("output", 3, Decimal("0.01"), Decimal("0.00003")),
    ]
    assert report.total["total_usd"] == Decimal("0.00203")
    for by in ("team", "tag", "day"):
        split = finance.run("token-costs", ask(by=[by]))
        whole = sum((Decimal(str(row["total_usd"])) for row in split.records()), Decimal(0))
        assert whole == split.total["total_usd"] == Decimal("0.00203"), by
    assert report.notes.count(OF_EVENTS) == 1
