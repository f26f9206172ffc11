"""applied + empty + underfilled + variance = bill in each hour, over random usage, uptime and
bills; the view in Postgres and the arithmetic in the domain agree to the nano-dollar.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from gateway.domain.deployments.engine_sample import MILLISECOND, UpSpan
from gateway.domain.deployments.gpu_bills import (
    HOUR_MS,
    BillLine,
    HourFacts,
    pieces_of,
    split_hour,
    union,
)
from gateway.domain.deployments.imported_bills import BillFile
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.money import nusd_from_usd, usd_from_nusd
from gateway.domain.pricing.tokens import UsageSource
from gateway.errors import BadUsage
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.deployments.gpu_bills import GpuBillStore
from gateway.storage.ledger import rollups
from gateway.storage.postgres.database import Database
from tests.reports.conftest import Write
from tests.reports.test_recent_receipt import adjust
from tests.storage.factories import event, request_id

BEGIN = datetime(2026, 11, 30, 18, tzinfo=UTC)
HOURS = 12  # over the turn of a month
FILE = BillFile(name="bill.csv", sha256="0" * 64)
ZERO = Decimal(0)
Hour = tuple[str, datetime]


def line(number: int = 2, *, begin: float, end: float, **changes: Any) -> BillLine:
    """A line of a bill between two hours after `BEGIN`."""
    fields: dict[str, Any] = {
        "deployment": "a",
        "gpu_ms": 2 * HOUR_MS,
        "amount_nusd": 6 * 10**9,
        "invoice_id": "INV-1",
    } | changes
    return BillLine(
        number=number,
        begin=BEGIN + timedelta(hours=begin),
        end=BEGIN + timedelta(hours=end),
        **fields,
    )


def own(number: int, at: datetime, **changes: Any) -> UsageEvent:
    """An attempt at an engine of our own."""
    fields = {"deployment": "a", "provider": "vllm", "is_self_hosted": True}
    return event(number, at=at, **fields | changes)


def up_for(
    connection: psycopg.Connection[Any], deployment: str, hour: datetime, *, version: int, rate: Any
) -> None:
    """An hour's uptime at a rate, as the watch stores it; a rate of None is no gpu block."""
    billed_ms = 600_000 * version
    nusd = None if rate is None else int(2 * billed_ms * rate * 10**9) // HOUR_MS
    connection.execute(
        "INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count, "
        "usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd) "
        "VALUES (%s, %s, %s, 'H200', %s, %s, 'seen', %s, %s, %s, %s)",
        (
            deployment,
            hour,
            version,
            None if rate is None else 2,
            rate,
            *[billed_ms] * 3,
            nusd,
        ),
    )


def view(url: str, name: str = "gpu_cost") -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        return connection.execute(f"SELECT * FROM finance.{name}").fetchall()


def random_events(rng: Random) -> list[UsageEvent]:
    """Attempts of three teams in most of the hours; some fail, some end in the next hour."""
    found = []
    for number in range(160):
        at = BEGIN + timedelta(milliseconds=rng.randrange(HOURS * HOUR_MS))
        if at.hour == 21:
            continue
        found.append(
            own(
                number,
                at,
                deployment=rng.choice("ab"),
                team=rng.choice(["payments", "search", "ops"]),
                started_at=at + timedelta(milliseconds=rng.randrange(400_000)),
                duration_s=rng.choice([None, 0.0, rng.random() * 900]),
                usage_source=rng.choice([UsageSource.PROVIDER, UsageSource.NONE]),
                cost_nusd=rng.randrange(3 * 10**8),
            )
        )
    return found


def random_bills(rng: Random) -> list[list[BillLine]]:
    """Three imports whose lines overlap each other, with credits and odd seconds."""
    return [
        [
            line(
                number,
                begin=(begin := rng.randrange(HOURS * 3600)) / 3600,
                end=(begin + rng.randrange(1, 4 * 3600)) / 3600,
                deployment=rng.choice("ab"),
                gpu_ms=rng.randrange(9 * HOUR_MS),
                amount_nusd=rng.randrange(-(10**9), 10**10),
                invoice_id=rng.choice(["X", "Y", f"Z{bill}"]),
            )
            for number in range(2, 6)
        ]
        for bill in range(3)
    ]


def busy_ms(events: list[UsageEvent]) -> int:
    """The time of an hour in which one of its attempts was in flight, from the earliest on."""
    spans = []
    for one in events:
        hour = one.occurred_at.replace(minute=0, second=0, microsecond=0)
        begin = (one.started_at - hour) // MILLISECOND
        if one.usage_source is not UsageSource.NONE:
            spans.append((begin, min(begin + round((one.duration_s or 0) * 1000), HOUR_MS)))
    total = until = 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, until), 0)
        until = max(until, end)
    return total


def expected(
    events: list[UsageEvent], up: list[dict[str, Any]], pieces: list[dict[str, Any]]
) -> Any:
    """The split of one hour, from its events, its uptime and its pieces of bills."""
    rates = {row["usd_per_gpu_hour"] for row in up}
    estimated = [row["bill_nusd"] for row in up]
    present = union(UpSpan(begin=row["starts_at"], end=row["ends_at"]) for row in pieces)
    estimated_gpu_ms = sum(row["billed_ms"] * (row["gpu_count"] or 0) for row in up)
    return split_hour(
        HourFacts(
            attempts=len(events),
            applied_nusd=sum(one.cost_nusd or 0 for one in events),
            estimate_nusd=sum(estimated) if up and None not in estimated else None,
            imported_nusd=sum(row["amount_nusd"] for row in pieces) if pieces else None,
            gpu_ms=sum(row["gpu_ms"] for row in pieces) if pieces else estimated_gpu_ms,
            usd_per_gpu_hour=rates.pop() if len(rates) == 1 else None,
            present_ms=sum((span.end - span.begin) // MILLISECOND for span in present)
            if pieces
            else sum(row["billed_ms"] for row in up),
            busy_ms=busy_ms(events),
        )
    )


def grouped(rows: Any, key: Any) -> dict[Hour, list[Any]]:
    found: dict[Hour, list[Any]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


@pytest.mark.parametrize("is_summed", [False, True], ids=["raw events", "roll-up"])
def test_any_usage_and_bills_add_up(
    finance: Reports,
    write: Write,
    database: Database,
    database_url: str,
    rng: Random,
    is_summed: bool,
) -> None:
    """The view is what finance books; the domain is what can be read and proven."""
    events = random_events(rng)
    write(*events)
    with psycopg.connect(database_url) as connection:
        for hour in range(HOURS):
            for deployment in "ab":
                for version in range(1, rng.randrange(4)):
                    rate = rng.choice([Decimal(3), Decimal("0.333333333333"), None])
                    at = BEGIN + timedelta(hours=hour)
                    up_for(connection, deployment, at, version=version, rate=rate)
    store = GpuBillStore(database)
    for bill in random_bills(rng):
        store.add(FILE, bill)
    if is_summed:
        rollups.refresh(database)

    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        up = grouped(
            connection.execute("SELECT * FROM tollgate.gpu_hours").fetchall(),
            lambda row: (row["deployment"], row["hour"]),
        )
        pieces = grouped(
            connection.execute(
                "SELECT * FROM tollgate.gpu_bill_hours WHERE replaced_by IS NULL"
            ).fetchall(),
            lambda row: (row["deployment"], row["hour"]),
        )
    charged = grouped(
        events,
        lambda one: (
            one.deployment,
            one.occurred_at.replace(minute=0, second=0, microsecond=0),
        ),
    )
    rows = {(row["deployment"], row["hour"]): row for row in view(database_url)}
    assert set(rows) == set(up) | set(pieces) | set(charged)
    for hour, row in rows.items():
        found = expected(charged[hour], up[hour], pieces[hour])
        names = ("bill", "applied", "empty", "underfilled", "variance")
        amounts = {name: row[f"{name}_usd"] for name in names}
        if found is None:
            assert [amounts[name] for name in names if name != "applied"] == [None] * 4
            continue
        assert amounts == {name: usd_from_nusd(getattr(found, f"{name}_nusd")) for name in names}
        assert row["idle_usd"] == row["empty_usd"] + row["underfilled_usd"]
    for month in ("2026-11", "2026-12", "all"):
        whole = finance.run("gpu", ask(month=month)).total
        lines = finance.run("gpu-bill", ask(month=month))
        parts = [whole[f"{name}_usd"] for name in ("applied", "empty", "underfilled", "variance")]
        assert sum(parts) == whole["bill_usd"] == lines.total["amount_usd"]
        assert sum(row["amount_usd"] for row in lines.records()) == whole["bill_usd"]


def test_the_newest_bill_of_each_second_counts(
    database: Database, database_url: str, rng: Random
) -> None:
    """Second by second: the newest import that covers it, unless its invoice came again."""
    store = GpuBillStore(database)
    bills = random_bills(rng)
    ids = [store.add(FILE, bill).import_id for bill in bills]
    owner: dict[tuple[str, int, int], Any] = {}  # of each second of each line
    for import_id, bill in zip(ids, bills, strict=True):
        again = {(one.deployment, one.invoice_id) for one in bill}
        covered = {
            (one.deployment, second)
            for one in bill
            for second in range(
                int((one.begin - BEGIN).total_seconds()), int((one.end - BEGIN).total_seconds())
            )
        }
        owner = {
            key: value
            for key, value in owner.items()
            if (value.deployment, value.invoice_id) not in again
            and (value.deployment, key[2]) not in covered
        }
        for one in bill:
            seconds = range(
                int((one.begin - BEGIN).total_seconds()), int((one.end - BEGIN).total_seconds())
            )
            owner |= {(str(import_id), one.number, second): one for second in seconds}
    kept: dict[tuple[str, int], int] = defaultdict(int)
    for import_id, number, _ in owner:
        kept[import_id, number] += 1
    with psycopg.connect(database_url) as connection:
        found = connection.execute(
            "SELECT import_id::text, line, sum(extract(epoch FROM ends_at - starts_at))::int "
            "FROM tollgate.gpu_bill_hours WHERE replaced_by IS NULL GROUP BY 1, 2"
        ).fetchall()
    assert {(import_id, number): seconds for import_id, number, seconds in found} == kept
    newest = [row for row in view(database_url, "gpu_bills") if row["import_id"] == ids[-1]]
    assert all(row["counted_usd"] == row["amount_usd"] for row in newest)


def test_the_same_bill_twice_counts_once(database: Database, database_url: str) -> None:
    """A file that was imported twice must not double a month's cost; its history stays."""
    store = GpuBillStore(database)
    lines = [line(begin=0, end=3), line(3, begin=3, end=4, invoice_id="INV-2")]
    first, again = store.add(FILE, lines), store.add(FILE, lines)
    assert (first.rows, first.duplicates, first.hours) == (2, 0, 4)
    assert (again.import_id, again.rows, again.duplicates) == (first.import_id, 2, 2)
    assert again.amount_usd == first.amount_usd == 12
    dearer = store.add(FILE, [line(begin=0, end=3, amount_nusd=9 * 10**9)])
    assert dearer.duplicates == 0
    assert sorted(row["bill_usd"] for row in view(database_url)) == [3, 3, 3, 6]
    bills = {(row["import_id"], row["line"]): row for row in view(database_url, "gpu_bills")}
    assert {key: row["counted_usd"] for key, row in bills.items()} == {
        (first.import_id, 2): 0,
        (first.import_id, 3): 6,
        (dearer.import_id, 2): 9,
    }


def test_a_corrected_invoice_replaces_all_of_its_lines(
    database: Database, database_url: str
) -> None:
    """A correction that moves the hours must not leave the old ones billed."""
    store = GpuBillStore(database)
    store.add(FILE, [line(begin=0, end=2), line(3, begin=5, end=6)])
    (effect,) = store.preview([line(begin=8, end=9)])
    assert (effect.replaced_usd, effect.amount_usd, effect.estimated_usd) == (12, 6, None)
    store.add(FILE, [line(begin=8, end=9)])
    assert [row["hour"] for row in view(database_url)] == [BEGIN + timedelta(hours=8)]


def test_invoices_that_meet_within_an_hour_both_count(
    database: Database, database_url: str
) -> None:
    """One invoice ends at half past, the next begins there: the hour has both halves."""
    store = GpuBillStore(database)
    store.add(FILE, [line(begin=0, end=0.5, amount_nusd=10**9)])
    store.add(FILE, [line(begin=0.5, end=1, amount_nusd=2 * 10**9, invoice_id="INV-2")])
    (row,) = view(database_url)
    assert (row["bill_usd"], row["empty_usd"]) == (3, 3)


def test_an_hour_without_an_event_is_wholly_empty(
    finance: Reports, write: Write, database: Database, database_url: str
) -> None:
    """No gateway watched it: the invoice says that the machine was there all the same."""
    write(own(1, BEGIN, cost_nusd=10**9, duration_s=1800.0, started_at=BEGIN))
    with psycopg.connect(database_url) as connection:
        up_for(connection, "a", BEGIN, version=6, rate=Decimal(3))
    GpuBillStore(database).add(
        FILE, [line(begin=0, end=2, gpu_ms=4 * HOUR_MS, amount_nusd=14 * 10**9)]
    )
    first, second = sorted(view(database_url), key=lambda row: row["hour"])
    assert (second["bill_usd"], second["empty_usd"], second["variance_usd"]) == (7, 7, 0)
    assert (first["estimated_usd"], first["imported_usd"]) == (6, 7)
    assert (first["empty_usd"], first["underfilled_usd"]) == (Decimal("2.5"), Decimal("2.5"))
    assert (first["applied_usd"], first["variance_usd"]) == (1, 1)
    report = finance.run("gpu-bill", ask())
    assert [tuple(row.values())[1:4] for row in report.records()] == [
        ("applied", "payments", 1),
        ("empty", None, Decimal("9.5")),
        ("underfilled", None, Decimal("2.5")),
        ("variance", None, 1),
    ]
    assert sum(row["share"] for row in report.records()) == pytest.approx(1, abs=Decimal("1E-5"))


def test_a_correction_belongs_to_the_team_of_its_attempt(
    finance: Reports, write: Write, database: Database, database_url: str
) -> None:
    """An attempt that is settled later was the work of a team."""
    write(own(1, BEGIN, team="search", cost_nusd=10**9))
    GpuBillStore(database).add(FILE, [line(begin=0, end=1)])
    changes = {"amount_nusd": 10**9, "kind": "resolution", "settles": False}
    adjust(database_url, request_id(1, BEGIN), attempt=1, **changes)
    rows = finance.run("gpu-bill", ask()).records()
    applied = {row["team"]: row["amount_usd"] for row in rows if row["line"] == "applied"}
    assert sum(applied.values()) == finance.run("gpu", ask()).total["applied_usd"] == 2


def test_a_credit_larger_than_the_charge_is_variance(database: Database, database_url: str) -> None:
    """Idle is never negative: money that came back is shown as what it is."""
    GpuBillStore(database).add(FILE, [line(begin=0, end=1, amount_nusd=-5)])
    (row,) = view(database_url)
    assert (row["empty_usd"], nusd_from_usd(row["variance_usd"])) == (0, -5)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM tollgate.gpu_bill_hours",
        "TRUNCATE tollgate.gpu_bill_hours",
        "UPDATE tollgate.gpu_bill_hours SET amount_nusd = 0, replaced_by = import_id",
        "UPDATE tollgate.gpu_bill_lines SET amount_nusd = 0",
        "DELETE FROM tollgate.gpu_bill_imports",
    ],
)
def test_not_even_the_owner_changes_an_imported_bill(
    database: Database, database_url: str, change: str
) -> None:
    """A bill that could be edited proves nothing."""
    GpuBillStore(database).add(FILE, [line(begin=0, end=1)])
    with (
        psycopg.connect(database_url) as connection,
        pytest.raises(psycopg.errors.RestrictViolation),
    ):
        connection.execute(change)


def test_pieces_of_a_long_line_are_its_hours() -> None:
    """The test's own picture of a line agrees with the spread."""
    assert len(pieces_of(line(begin=0.5, end=3.25))) == 4


def test_a_bill_belongs_to_no_team(finance: Reports) -> None:
    """A filter that does nothing would give one team the bill of all."""
    with pytest.raises(BadUsage, match="cannot be filtered by team"):
        finance.run("gpu-bill", ask(where={"team": "payments"}))
    assert finance.run("gpu-bill", ask(demo=True)).rows == ()
