"""Every report of sums, asked at random on the command line, equals a sum in Python over the
ledger's own tables: splits, filters, shares, changes, reasons, currencies, files and months.

`make report-oracle` asks many questions; the defaults of `REPORT_ORACLE_QUESTIONS` and
`REPORT_ORACLE_REQUESTS` are for every run of the tests.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli, cli_at
from tests.reports.oracle import world
from tests.reports.oracle.columns import COLUMNS, NOT_SUMS, Value, figures, share, unit_costs
from tests.reports.oracle.expected import (
    NONE,
    TIMES,
    Asked,
    Part,
    is_idle_unknown,
    rows_of,
    total,
    values,
)
from tests.reports.oracle.raw_ledger import Books, read_books
from tests.reports.oracle.reasons import AMOUNTS, reasons
from tests.reports.oracle.waiting_times import Between

__all__ = ["cli_at"]

QUESTIONS = int(os.environ.get("REPORT_ORACLE_QUESTIONS", "24"))
REQUESTS = int(os.environ.get("REPORT_ORACLE_REQUESTS", "160"))
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
SPLITS = (
    *("team", "project", "cost_centre", "key", "end_user", "tag", "tag:env", "tag:app=a", "route"),
    *("model", "provider", "deployment", "region", "destination", "outcome", "usage_source"),
    *TIMES,
)
MONTHS = ("2026-08", "2026-09", "2026-10", "last", "all", "2025-09", "1970-01", "2999-12")
NANO = Fraction(1, 10**9)
NOT_COMPARED = {"unit-costs", "latency"}
REASONS_BY = ("team", "model")
AS_CLOSED = [name for name in COLUMNS if name not in ("movers", "unit-costs")]
KINDS = {
    "latency": frozenset({"event"}),
    "spend": frozenset({"event", "adjustment", "idle"}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A random question: the words of its command, and the same for the oracle. `earlier` are those
    that it is compared with, by the beginning of the names of their columns.
    """

    report: str
    words: tuple[str, ...]
    asked: Asked
    earlier: Mapping[str, Asked]
    is_why: bool = False
    is_as_closed: bool = False


def asked_months(word: str) -> date | None:
    """Return the month of the option `--month`."""
    if word == "all":
        return None
    return date(2026, 10, 1) if word == "last" else date.fromisoformat(f"{word}-01")


def draw(rng: Random, books: Books) -> Drawn:
    """Return a random question that has an answer."""
    report = rng.choice(["spend", "spend", *COLUMNS])
    by = tuple(rng.sample(SPLITS, rng.choice([0, 1, 1, 2, 2])))
    is_as_closed = report in AS_CLOSED and rng.random() < 0.15
    is_why = report == "spend" and not is_as_closed and rng.random() < 0.3
    is_compared = report == "movers" or (
        report not in NOT_COMPARED and not is_as_closed and rng.random() < 0.3
    )
    if is_compared or is_why:
        by = tuple(name for name in by if name not in TIMES)
    asked, words = _time(rng, can_be_all=not (is_compared or is_why))
    if is_as_closed:
        asked, words = (
            Asked(month=world.CLOSED),
            ("--month", f"{world.CLOSED:%Y-%m}", "--as-closed"),
        )
    asked = replace(asked, by=by, kinds=KINDS.get(report, asked.kinds))
    if rng.random() < 0.4:
        name = rng.choice([one for one in SPLITS if "=" not in one])  # it ends at the first one
        fact = rng.choice(books.facts)
        value = rng.choice([found for found, _ in values(fact, name, asked)])
        if name != "tag" or value != NONE:
            asked = replace(asked, where={name: value})
            words += ("--where", f"{name}={value}")
    if is_why:
        asked = replace(asked, by=by or REASONS_BY, kinds=Asked().kinds)
        words += ("--by", ",".join(by)) if by else ()
        earlier = {"": before(asked, "previous")}
        words += ("--why",)
        return Drawn(report=report, words=words, asked=asked, earlier=earlier, is_why=True)
    if rng.random() < 0.25 and report not in ("movers", "latency"):
        asked = replace(asked, currency="EUR")
        words += ("--currency", "EUR")
    words += ("--by", ",".join(by))
    earlier = {}
    if report == "movers":
        earlier = {"": before(asked, "previous"), "year_": before(asked, "year")}
    elif is_compared:
        way = rng.choice(["previous", "year"])
        earlier = {"": before(asked, way)}
        words += ("--compare", way)
    return Drawn(
        report=report, words=words, asked=asked, earlier=earlier, is_as_closed=is_as_closed
    )


def _time(rng: Random, *, can_be_all: bool) -> tuple[Asked, tuple[str, ...]]:
    if rng.random() < 0.6:
        word = rng.choice([one for one in MONTHS if can_be_all or one != "all"])
        return Asked(month=asked_months(word)), ("--month", word)
    first = date(2026, 7, 20) + timedelta(days=rng.randrange(100))
    # Over by the clock of Postgres too: a range that runs is compared by its complete days.
    last = min(first + timedelta(days=rng.choice([0, 6, 29, 100])), NOW.date())
    return Asked(days=(first, last)), ("--from", f"{first}", "--to", f"{last}")


def change_names(prefix: str) -> tuple[str, str, str]:
    """Return the names of the columns of an earlier time."""
    first = f"{prefix}before_usd" if prefix else "previous_usd"
    return first, f"{prefix}change_usd", f"{prefix}change_share"


def before(asked: Asked, way: str) -> Asked:
    """Return the question on the time that an answer is compared with."""
    if asked.month is not None:
        day = asked.month
        earlier = (
            day.replace(year=day.year - 1)
            if way == "year"
            else (day - timedelta(days=1)).replace(day=1)
        )
        return replace(asked, month=earlier)
    assert asked.days is not None
    first, last = asked.days
    if way == "year":
        return replace(
            asked, days=(first.replace(year=first.year - 1), last.replace(year=last.year - 1))
        )
    return replace(asked, days=(first - (last - first) - timedelta(days=1), first - timedelta(1)))


def test_reports_equal_the_sums_of_the_raw_tables(
    cli_at: Any, database: Database, database_url: str, tmp_path: Path, rng: Random
) -> None:
    """Finance signs these figures: a second calculation must find the same ones."""
    cli: Cli = cli_at(database_url)
    cli.ok("db", "upgrade")
    cli = Cli(replace(cli.toolbox, now=lambda: NOW))
    written = world.write_and_close(database, rng, requests=REQUESTS)
    books_as_closed = read_books(database_url)
    world.write_on(database, rng, written, requests=REQUESTS)
    books = read_books(database_url)
    failures = []
    for number in range(QUESTIONS):
        drawn = draw(rng, books)
        command = ("report", drawn.report, *drawn.words)
        shown = json.loads(cli.ok(*command, "--format", "json"), parse_float=Decimal)
        try:
            if drawn.is_why:
                check_reasons(drawn, shown, books)
            else:
                check(drawn, shown, books_as_closed if drawn.is_as_closed else books)
            if number % 8 == 0:
                check_files(cli, command, shown, tmp_path)
        except AssertionError as wrong:
            failures.append(f"tollgate {' '.join(map(repr, command))}\n{wrong}")
    assert not failures, f"{len(failures)} of {QUESTIONS}:\n\n" + "\n\n".join(failures[:12])


def check_reasons(drawn: Drawn, shown: Any, books: Books) -> None:
    """Compare the reasons of a change with the oracle's."""
    by = drawn.asked.by
    assert [one["name"] for one in shown["columns"]] == [*by, *AMOUNTS]
    cells = (*by, *(one for one in REASONS_BY if one not in by))
    now, before = (
        rows_of(books, replace(one, by=cells)) for one in (drawn.asked, drawn.earlier[""])
    )
    expected = reasons(now, before, places=len(by))
    found = {tuple(row[name] for name in by): row for row in shown["rows"]}
    assert len(found) == len(shown["rows"]), "two rows have the same names"
    assert set(found) | {()} == set(expected)
    for key, row in found.items():
        _same(row, expected[key], "usd", key, is_exact=False)
    _same(shown["total"], expected[()], "usd", "total", is_exact=False)
    sizes = [abs(row["change_usd"]) for row in shown["rows"]]
    assert sizes == sorted(sizes, reverse=True)


def check(drawn: Drawn, shown: Any, books: Books) -> None:
    """Compare an answer with the oracle's."""
    rows = rows_of(books, drawn.asked)
    whole = rows.get((), [])
    unit = "eur" if drawn.asked.currency else "usd"
    names = [column["name"] for column in shown["columns"]]
    expected_names = [*drawn.asked.by, *COLUMNS[drawn.report]]
    if drawn.asked.by and "total_usd" in expected_names:
        expected_names.append("share")
    for prefix in drawn.earlier:
        expected_names += change_names(prefix)
    assert names[: len(expected_names)] == [one.replace("usd", unit) for one in expected_names]
    earlier = {prefix: rows_of(books, asked) for prefix, asked in drawn.earlier.items()}
    own = rows_of(books, drawn.asked, overlap=True) if drawn.report == "unit-costs" else {}
    now = {key: parts for key, parts in rows.items() if key or not drawn.asked.by}
    keys = {key for found in (now, *earlier.values()) for key in found if key or not drawn.asked.by}
    found = {tuple(_text(row[name]) for name in drawn.asked.by): row for row in shown["rows"]}
    assert len(found) == len(shown["rows"]), "two rows have the same names"
    if drawn.asked.by:
        assert set(found) == keys, (set(found) - keys, keys - set(found))
    unknown: dict[str, Value] = (
        {"idle_usd": None} if is_idle_unknown(books, drawn.asked, whole) else {}
    )
    # Percentiles are exact if they are read from the events.
    names_of_events = (*drawn.asked.by, *drawn.asked.where)
    is_exact = drawn.is_as_closed or any(
        name == "end_user" or name.startswith("tag") for name in names_of_events
    )
    for key, row in found.items():
        named = dict(zip(drawn.asked.by, key, strict=True))
        past = {prefix: rows.get(key, ()) for prefix, rows in earlier.items()}
        expected = _row(drawn, now.get(key, ()), past, whole, named)
        if drawn.report == "unit-costs":
            expected |= unit_costs(expected, own.get(key, ()), named)
        is_of_time = key in now
        expected |= unknown if is_of_time and "idle_usd" in expected else {}
        expected |= _rounded_shares(row, shown["total"], drawn.earlier, unit)
        _same(row, expected, unit, key, is_exact=is_exact)
    past = {prefix: rows.get((), ()) for prefix, rows in earlier.items()}
    expected = _row(drawn, whole, past, whole, {})
    if drawn.report == "unit-costs":
        expected |= unit_costs(expected, whole, {})
    expected |= unknown if "idle_usd" in expected else {}
    expected |= _rounded_shares(shown["total"], shown["total"], drawn.earlier, unit)
    _same(shown["total"], expected, unit, "total", is_exact=is_exact)
    _adds_up(shown, names, unit)


def _row(
    drawn: Drawn,
    parts: Sequence[Part],
    earlier: Mapping[str, Sequence[Part]],
    whole: Sequence[Part],
    named: Mapping[str, str],
) -> dict[str, Value]:
    """Return all figures of a row."""
    row = figures(drawn.report, parts, named)
    amount = total(parts)
    if drawn.asked.by and "total_usd" in row:
        row["share"] = share(amount, total(whole))
        if not parts and named:
            row["share"] = None
    if not parts and named:  # another time alone has this row: nothing is counted
        row |= {name: 0 for name in row if not name.endswith("share")}
    for prefix, found in earlier.items():
        previous = total(found)
        is_known = amount is not None and previous is not None
        change = amount - previous if is_known else None  # type: ignore[operator]
        cells = previous, change, share(change, previous)
        row |= dict(zip(change_names(prefix), cells, strict=True))
    return row


def _rounded_shares(
    row: Mapping[str, Any], whole: Mapping[str, Any], earlier: Mapping[str, Asked], unit: str
) -> dict[str, Value]:
    """Return the shares of an answer in another currency, of its own amounts: beside an exact
    amount below its last digit, that digit alone makes any share.
    """
    if unit == "usd":
        return {}

    parts = {"share": (row[f"total_{unit}"], whole[f"total_{unit}"])}
    for prefix in earlier:
        previous, change, changed = (one.replace("usd", unit) for one in change_names(prefix))
        parts[changed] = row[change], row[previous]
    return {
        name: share(Fraction(part), Fraction(one))
        for name, (part, one) in parts.items()
        if row.get(name) is not None
    }


def _same(
    row: Mapping[str, Any],
    expected: Mapping[str, Value],
    unit: str,
    key: object,
    *,
    is_exact: bool,
) -> None:
    wrong = {
        name: (row.get(name.replace("usd", unit), "missing"), value)
        for name, value in expected.items()
        if not _equal(row.get(name.replace("usd", unit)), value, unit, is_exact=is_exact)
    }
    shown = {
        name: (got, float(want) / 1e9 if isinstance(want, Fraction) else want)
        for name, (got, want) in wrong.items()
    }
    assert not wrong, f"{key}: shown, expected: {shown}"


def _equal(got: Any, value: Value, unit: str, *, is_exact: bool) -> bool:
    if value is None or got is None:
        return got is value
    if isinstance(value, Between):
        return value.admits(Fraction(str(got)), is_exact=is_exact)
    if isinstance(value, Fraction):
        # A converted amount is rounded so that the parts add up: one unit away, and a change of
        # two totals of two parts each, four.
        room = 4 * NANO if unit == "eur" else Fraction(0)
        return abs(Fraction(str(got)) - value * NANO) <= room
    if unit == "eur" and isinstance(value, Decimal):  # a share, or a quotient of rounded amounts
        return abs(Decimal(str(got)) - value) <= Decimal("0.000002")
    return bool(Fraction(str(got)) == Fraction(value))


def _text(cell: object) -> str:
    return str(cell)


def _adds_up(shown: Any, names: Sequence[str], unit: str) -> None:
    """Check that the rows of each amount and count add up to its total."""
    for name in names:
        is_sum = name.endswith((f"_{unit}", "_tokens", "_attempts")) or name == "attempts"
        is_sum &= "_per_" not in name and name.replace(f"_{unit}", "_usd") not in NOT_SUMS
        # An unknown amount has no change, and its earlier amount is in the change of the total.
        is_sum &= "change" not in name or all(row[name] is not None for row in shown["rows"])
        if is_sum and shown["rows"]:
            parts = [Decimal(str(row[name])) for row in shown["rows"] if row[name] is not None]
            assert sum(parts) == (shown["total"][name] or 0), f"{name} does not add up"


def check_files(cli: Cli, command: Sequence[str], shown: Any, folder: Path) -> None:
    """Compare each kind of file with the JSON of the same question."""
    import pyarrow.parquet as parquet

    names = [column["name"] for column in shown["columns"]]
    out = folder / "shown.csv"
    cli.ok(*command, "--out", str(out))
    with out.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == names
    assert [len(line) for line in lines[1:]] == [len(names)] * len(shown["rows"])
    for line, row in zip(lines[1:], shown["rows"], strict=True):
        for name, cell in zip(names, line, strict=True):
            plain = "" if row[name] is None else str(row[name])
            assert cell in (plain, f"'{plain}") or Decimal(cell) == Decimal(plain), name
    out = folder / "shown.json"
    cli.ok(*command, "--out", str(out))
    assert json.loads(out.read_text(), parse_float=Decimal)["rows"] == shown["rows"]
    out = folder / "shown.parquet"
    cli.ok(*command, "--out", str(out))
    for got, row in zip(parquet.read_table(out).to_pylist(), shown["rows"], strict=True):
        for name in names:
            is_same = got[name] == row[name] or str(got[name]) == str(row[name])
            assert is_same or Decimal(got[name]) == Decimal(row[name]), name
    cli.ok(*command, "--out", str(folder / "shown.xlsx"))
