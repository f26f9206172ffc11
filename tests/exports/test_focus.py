"""The export `focus`: its sums are the reports', its columns the standard's."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import defaultdict
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet, types

from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind
from gateway.reports.exports.focus.columns import COLUMNS, FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.exports.rows import ADJUSTMENTS as EXPORTED_ADJUSTMENTS
from gateway.reports.exports.rows import EVENTS as EXPORTED_EVENTS
from gateway.reports.question import Question, ask
from gateway.reports.report import ColumnKind
from gateway.reports.reports import Reports
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import apply, centre
from tests.cli.conftest import Cli
from tests.exports.ledger_of_every_kind import fill
from tests.reports.random_events import TEAMS
from tests.storage.factories import event

REFERENCE = Path(__file__).parents[2] / "docs/reference/focus.md"
V1_2 = focus_export(FocusVersion.V1_2, is_billed_elsewhere=False)
ADDING_UP = ("usage", "adjustment")


def rows(opened: Reports, question: Question, since: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of an export by column."""
    names = [column.name for column in V1_2.columns]
    with opened.export_ledger(V1_2, question, since=since) as export:
        return [dict(zip(names, row, strict=True)) for row in export.export.rows]


def total(found: list[dict[str, Any]], *kinds: str) -> Decimal:
    """Return the effective cost of some kinds of rows."""
    return sum((row["EffectiveCost"] for row in found if row["x_LineKind"] in kinds), Decimal(0))


@pytest.fixture
def filled(database: Database) -> Database:
    """A ledger with every kind of row."""
    fill(database, count=120, rng=Random(20))
    return database


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    time=st.sampled_from(
        [
            {"month": "2026-11"},
            {"month": "2026-10"},
            {"month": "all"},
            {"first": "2026-10-20", "last": "2026-11-20"},
        ]
    ),
    where=st.dictionaries(
        st.sampled_from(["team", "model", "tag:env", "destination", "provider"]),
        st.sampled_from([None, "payments", "m-1", "prod", "self-hosted", "openai", "=SUM(A1)"]),
        max_size=2,
    ),
)
def test_usage_and_adjustments_are_the_total_of_the_report(
    filled: Database, finance: Reports, time: dict[str, str], where: dict[str, str | None]
) -> None:
    """Finance compares the warehouse with the report: to the nano-dollar, for any question."""
    asked = ask(**time, where=where, limit=None)  # type: ignore[arg-type]  # texts by name
    reported = finance.run("spend", asked).total
    found = rows(finance, asked)
    assert total(found, *ADDING_UP) == (reported["total_usd"] or 0)
    assert total(found, "adjustment") == reported["adjustments_usd"]


@pytest.mark.parametrize("share", ["0.7", "0.333333333", "0.5"])
def test_each_cost_centre_has_what_the_report_says(
    database: Database, finance: Reports, rng: Random, share: str
) -> None:
    """The export booked all of a shared team on one cost centre; exactly, with any shares."""
    first, second = Decimal(share), Decimal(rng.randrange(1, 10**8)) / 10**9
    parts = {"CC-1": first, "CC-9": second, "CC-2": 1 - first - second}
    largest = min(parts, key=lambda name: (-parts[name], name))
    centres = {
        team: tuple(centre(name, str(part)) for name, part in parts.items())
        for team in TEAMS
        if rng.random() < 0.7 or team == TEAMS[0]
    }
    apply(database, centres, at=datetime(2026, 9, 1, tzinfo=UTC))
    fill(database, count=120, rng=rng)
    Ledger(database).write([event(500 + n, team=TEAMS[0], cost_centre=largest) for n in range(3)])
    asked = ask(month="2026-11", by=["cost_centre"], limit=None)
    reported = {
        str(row["cost_centre"]): row["total_usd"] or Decimal(0)
        for row in finance.run("spend", asked).records()
    }
    found = [row for row in rows(finance, asked) if row["x_LineKind"] in ADDING_UP]
    exported: dict[str, Decimal] = defaultdict(Decimal)
    for row in found:
        exported[row["BillingAccountId"]] += row["EffectiveCost"]
    assert {name: usd for name, usd in reported.items() if usd} == {
        name: usd for name, usd in exported.items() if usd
    }
    assert exported["CC-9"] > 0
    key = ("cost_usd", EXPORTED_EVENTS), ("amount_usd", EXPORTED_ADJUSTMENTS)
    for name in parts:
        of_one = ask(month="2026-11", where={"cost_centre": name}, limit=None)
        assert total(rows(finance, of_one), *ADDING_UP) == reported.get(name, 0)
        both = Decimal(0)
        for column, kind in key:
            place = [one.name for one in kind.columns].index(column)
            with finance.export_ledger(kind, of_one) as opened:
                facts = list(opened.export.rows)
            both += sum((row[place] or Decimal(0) for row in facts), Decimal(0))
            assert opened.expected in (None, len(facts))
        assert both == reported.get(name, 0)


def test_quantities_are_shared_as_the_money_is(database: Database, finance: Reports) -> None:
    """A row whose money is 30 % of its quantity at its rate looks like a discount."""
    apply(
        database,
        {"payments": (centre("CC-1", "0.7"), centre("CC-9", "0.3"))},
        at=datetime(2026, 9, 1, tzinfo=UTC),
    )
    line = Line(kind=TokenKind.INPUT, tokens=1000, usd_per_mtok=Decimal(2), cost_nusd=2_000_000)
    Ledger(database).write([event(1, cost_centre="CC-1", lines=(line,), cost_nusd=2_000_000)])
    names = ("BillingAccountId", "PricingQuantity", "ContractedCost", "EffectiveCost", "x_Attempts")
    found = [tuple(row[name] for name in names) for row in rows(finance, ask(month="2026-11"))]
    assert found == [
        ("CC-1", 700, Decimal("0.0014"), Decimal("0.0014"), 1),
        ("CC-9", 300, Decimal("0.0006"), Decimal("0.0006"), 0),
    ]


def test_idle_gpu_time_has_rows_of_its_own(filled: Database, finance: Reports) -> None:
    """A bill's parts add up to it, and the shares of one bill to 1."""
    asked = ask(first="2026-11-20", last="2026-11-21", limit=None)
    found = rows(finance, asked)
    gpu = finance.run("gpu", asked).total
    for kind in ("empty", "underfilled", "variance"):
        assert total(found, kind) == (gpu[f"{kind}_usd"] or 0)
    shares: dict[tuple[object, str], Decimal] = defaultdict(Decimal)
    for row in found:
        if row["x_AllocatedMethodDetails"]:
            (element,) = json.loads(row["x_AllocatedMethodDetails"], parse_float=Decimal)[
                "Elements"
            ]
            key = row["ChargePeriodStart"], row["x_AllocatedResourceId"]
            shares[key] += Decimal(element["AllocatedRatio"])
    assert len(shares) == 2
    assert all(abs(share - 1) < Decimal("1e-9") for share in shares.values())
    assert total(rows(finance, ask(month="2026-11", where={"team": "payments"})), "empty") == 0


def test_credits_and_later_corrections_are_named_as_such(
    filled: Database, finance: Reports
) -> None:
    """FOCUS has words for them, and tools filter by these."""
    found = rows(finance, ask(month="2026-11", limit=None))
    kinds = {(row["x_LineKind"], row["ChargeCategory"]) for row in found}
    assert {
        ("usage", "Usage"),
        ("adjustment", "Adjustment"),
        ("adjustment", "Credit"),
        ("empty", "Usage"),
    } <= kinds
    credits = [row for row in found if row["ChargeCategory"] == "Credit"]
    assert all(row["EffectiveCost"] < 0 for row in credits)


def test_an_incremental_export_adds_what_came_since(database: Database, finance: Reports) -> None:
    """All exports from watermark to watermark together are the whole."""
    fill(database, count=20, rng=Random(3))
    with finance.export_ledger(V1_2, ask(limit=None), since="0") as first:
        list(first.export.rows)
    Ledger(database).write([event(900)])
    found = rows(finance, ask(limit=None), since=first.watermark)
    assert total(found, *ADDING_UP) == Decimal("0.0006")
    assert {row["x_LineKind"] for row in found} == {"usage"}


def test_the_command_writes_both_versions(filled: Database, cli: Cli, tmp_path: Path) -> None:
    """1.3 names the allocation columns, which 1.2 has as columns of ours."""
    out = tmp_path / "focus.parquet"
    cli.ok("export", "focus", "--month", "2026-11", "--out", str(out))
    schema = parquet.read_schema(out)
    assert schema.names == [column.name for column in V1_2.columns]
    for field in schema:
        if re.search("Cost$|Quantity$|UnitPrice$", field.name):
            assert types.is_decimal(field.type), field
        if re.search("Period(Start|End)$", field.name):
            assert types.is_timestamp(field.type), field
    text = cli.ok(
        *("export", "focus", "--month", "2026-11", "--focus-version", "1.3"),
        *("--billed-elsewhere", "--out", "-"),
    )
    found = list(csv.DictReader(StringIO(text)))
    assert {"AllocatedMethodId", "HostProviderName"} <= set(found[0])
    assert "x_AllocatedMethodId" not in found[0]
    assert {row["BilledCost"] for row in found} == {"0.0"}
    assert len(found) == parquet.read_metadata(out).num_rows


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_each_kind_of_text_file_follows_the_formats_of_focus(
    filled: Database, cli: Cli, tmp_path: Path, suffix: str
) -> None:
    """The specification's Date/Time Format has no milliseconds, and a column of whole quantities
    without a decimal point was taken for integers; the Parquet file was right all along.
    """
    out, binary = tmp_path / f"focus{suffix}", tmp_path / "focus.parquet"
    for path in (out, binary):
        cli.ok("export", "focus", "--month", "2026-11", "--out", str(path))
    text = (gzip.decompress(out.read_bytes()) if suffix == ".csv.gz" else out.read_bytes()).decode()
    found = list(csv.DictReader(StringIO(text)))
    exact = parquet.read_table(binary).to_pylist()
    assert len(found) == len(exact) > 0
    kinds = {column.name: column.kind for column in V1_2.columns}
    for written, read in zip(found, exact, strict=True):
        for name, kind in kinds.items():
            cell, value = written[name], read[name]
            if value is None:
                assert cell == "", name
            elif kind is ColumnKind.TIME:
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", cell), name
                assert datetime.fromisoformat(cell) == value.replace(microsecond=0), name
            elif isinstance(value, Decimal):
                assert abs(Decimal(cell) - value) <= Decimal("1e-18"), name
                assert re.fullmatch(r"-?\d+\.\d+", cell), name


def test_the_reference_page_has_every_column() -> None:
    """A column without a meaning will be misread."""
    lines = [
        f"| `{column.report_column(FocusVersion.V1_2).name}` | {column.meaning} |"
        for column in COLUMNS
    ]
    page = REFERENCE.read_text(encoding="utf-8").partition("## Columns")[2].partition("## ")[0]
    table = [line for line in page.splitlines() if line.startswith("| `")]
    assert table == lines, "\n".join(lines)
