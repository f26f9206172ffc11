"""Shows a report's money in another currency: finds its rates, rounds its converted amounts so that
they add up, and names its columns after the currency.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

from sqlalchemy import Date, FromClause, column, func, select

from gateway.domain.calendar_months import next_month
from gateway.domain.money import nusd_from_usd, round_parts, usd_from_nusd
from gateway.errors import OperatorError
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.storage.postgres.schema import finance_views

_RATE = finance_views.currency_rates.c
_MOST_SOURCES, _MOST_OF_MONTH = 20, 5  # in a note
_USD = re.compile(r"(?<![a-z])usd(?![a-z])")  # a part of a column's name
_SPENT = {"total_usd": ("cost_usd", "adjustments_usd")}


def require_rates(
    snapshot: ReadSnapshot, chosen: FromClause, currency: str, *, closed_at: datetime | None = None
) -> None:
    """Raise `OperatorError` unless every chosen fact has a rate on its day, and there is one. A
    closed version, with the moment of its close, has only the rates of then.
    """
    unrated = select(func.min(column("unrated_day", Date)).label("day")).select_from(chosen)
    day = snapshot.row(unrated)["day"]
    if day is not None or not _rates(snapshot, currency):
        place, first = ("", "DAY") if day is None else (f" on {day}", day)
        if closed_at is not None:
            raise OperatorError(
                f"There was no rate of {currency}{place} when this version was closed, at "
                f"{closed_at:%Y-%m-%d %H:%M} UTC. Without --as-closed, later rates count."
            )
        raise OperatorError(
            f"There is no rate of {currency}{place}. Add it: tollgate currency add {currency} "
            f"--usd-per-unit X --from {first} --source S"
        )


def _rates(snapshot: ReadSnapshot, currency: str) -> Sequence[Row]:
    """Return the rates of a currency, oldest first."""
    return snapshot.rows(
        select(_RATE.first_day, _RATE.next_day, _RATE.usd_per_unit, _RATE.source)
        .where(_RATE.currency == currency)
        .order_by(_RATE.first_day)
    )


def rounded(report: Report, *, sums: Mapping[str, Sequence[str]] = _SPENT) -> Report:
    """Return a converted report with its amounts rounded to nine decimals, so that the rows of a
    column add up to its total. `sums` are the columns that are the sum of others, in the order in
    which they are added up. A column without a total has rates.
    """
    total, rows = dict(report.total), [list(row) for row in report.rows]
    places = {one.name: at for at, one in enumerate(report.columns)}
    for one in report.columns:
        if one.kind is ColumnKind.MONEY:
            _round_column(one.name, places[one.name], total, rows)
    for whole, parts in sums.items():
        if {whole, *parts} <= places.keys():
            total[whole] = _sum_of_parts(total, whole, parts=parts)
            for row in rows:
                amounts = {name: row[places[name]] for name in (whole, *parts)}
                row[places[whole]] = _sum_of_parts(amounts, whole, parts=parts)
    return replace(report, total=total, rows=tuple(tuple(row) for row in rows))


def _round_column(name: str, place: int, total: dict[str, Cell], rows: list[list[Cell]]) -> None:
    """Round the amounts of one column in place; those that are unknown stay so."""
    whole = Decimal(0)
    if total.get(name) is not None:
        total[name] = whole = usd_from_nusd(nusd_from_usd(Decimal(str(total[name]))))
    known = [row for row in rows if row[place] is not None]
    if name not in total:
        for row in known:
            row[place] = usd_from_nusd(nusd_from_usd(Decimal(str(row[place]))))
        return
    parts = round_parts([Decimal(str(row[place])) for row in known], whole)
    for row, part in zip(known, parts, strict=True):
        row[place] = part


def _sum_of_parts(amounts: Mapping[str, Cell], whole: str, *, parts: Sequence[str]) -> Cell:
    """Return the sum of the parts of an amount; None if it is unknown."""
    if amounts[whole] is None:
        return None
    return sum((Decimal(str(amounts[name] or 0)) for name in parts), Decimal(0))


def in_currency(snapshot: ReadSnapshot, report: Report, currency: str) -> Report:
    """Return a report whose money is in a currency, with its columns named after it, and the rates
    with their sources in a note.
    """

    def named(text: str) -> str:
        return _USD.sub(currency.lower(), text)

    def renamed(one: Column) -> Column:
        return replace(one, name=named(one.name), unit=named(one.unit.replace("USD", currency)))

    return replace(
        report,
        columns=tuple(map(renamed, report.columns)),
        total={named(name): cell for name, cell in report.total.items()},
        notes=(*map(named, report.notes), rate_note(snapshot, currency)),
    )


def rate_note(snapshot: ReadSnapshot, currency: str) -> str:
    """Return the note with the rates of a currency and their sources, the newest of many."""
    return _sources(_rates(snapshot, currency), currency, most=_MOST_SOURCES)


def rate_note_of_month(snapshot: ReadSnapshot, currency: str, month: date) -> str:
    """Return the note with the rates that counted in a month, the newest of many."""
    rates = [
        one
        for one in _rates(snapshot, currency)
        if one["first_day"] < next_month(month)
        and (one["next_day"] is None or one["next_day"] > month)
    ]
    return _sources(rates, currency, most=_MOST_OF_MONTH)


def _sources(rates: Sequence[Row], currency: str, *, most: int) -> str:
    """Return the note with some rates and their sources, the newest of many."""
    shown = [
        f"from {one['first_day']}: 1 {currency} = {one['usd_per_unit']:f} USD ({one['source']})"
        for one in rates[-most:]
    ]
    more = f"; {len(rates) - len(shown)} earlier ones" if len(rates) > len(shown) else ""
    return (
        f"rate_source: {'; '.join(shown)}{more}. Each line is converted at the rate of its day; "
        "the ledger is in USD."
    )
