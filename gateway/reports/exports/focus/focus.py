"""Reads the charges of the export `focus`: usage by day and kind of token, adjustments one by one,
and the idle time of own GPUs by day.

Usage and adjustments are split by the cost centres of their team, as in the reports; their amounts
add up to `total_usd` of the reports, for each cost centre too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Numeric,
    Select,
    Text,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
    true,
    union_all,
)

from gateway.reports.dimensions import utc_day
from gateway.reports.exports.export import ExportKind, Rows
from gateway.reports.exports.focus.charge import Charge, LineKind
from gateway.reports.exports.focus.columns import FocusVersion, cells_of, columns_of
from gateway.reports.exports.rows import BATCH
from gateway.reports.exports.watermark import Watermark
from gateway.reports.question import Question
from gateway.reports.sources.allocated_rows import with_shares
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.gpu_days import foreign_filters, gpu_days
from gateway.storage.postgres.schema import finance_views

SHARE_DIGITS = 12
NOTES = (
    "Usage and adjustments add up to total_usd of the reports. Attempts whose cost is unknown have "
    "no row; an adjustment settles them later.",
    "A team with several cost centres has a row for each, with its share of the money and of the "
    "quantity; x_Attempts counts in the row of the largest one.",
    "Idle GPU time (empty, underfilled, variance) is in exports of a month or of days, not in "
    "those with --since or filtered by anything but deployment and day.",
)
Bills = Mapping[tuple[str, date], Decimal]
_NUSD = literal_column("0.000000001", Numeric)
_GROUPS = (
    *("day", "posted_period", "cost_centre", "team", "project", "deployment", "provider", "model"),
    *("region", "is_self_hosted", "data_class", "service_tier", "usage_source", "price_id", "tags"),
)
_OF_LINE = ("token_kind", "usd_per_million")


def focus_export(version: FocusVersion, *, is_billed_elsewhere: bool) -> ExportKind:
    """Return the export of FOCUS in a version; `is_billed_elsewhere` makes every `BilledCost` 0."""

    def rows(snapshot: ReadSnapshot, question: Question, since: Watermark | None) -> Rows:
        for charge in _charges(snapshot, question, since):
            yield cells_of(charge, is_billed_elsewhere=is_billed_elsewhere)

    return ExportKind(
        name="focus",
        title=f"Charges in FOCUS {version}",
        columns=columns_of(version),
        rows=rows,
        expected=lambda _, __: None,
        notes=NOTES,
    )


def _charges(
    snapshot: ReadSnapshot, question: Question, since: Watermark | None
) -> Iterator[Charge]:
    """Yield usage, then adjustments, then idle GPU time, each in a stable order."""
    has_gpus = since is None and not foreign_filters(question)
    days = [] if not has_gpus else snapshot.rows(_gpu_days(question))
    bills = {(row["deployment"], row["day"]): row["bill_usd"] for row in days if row["bill_usd"]}
    for row in snapshot.each(_usage(question, since), batch=BATCH):
        yield _with_share(_usage_charge(row), bills)
    for row in snapshot.each(_adjustments(question, since), batch=BATCH):
        yield _with_share(_adjustment_charge(row), bills)
    for row in days:
        for charge in _gpu_charges(row):
            yield _with_share(charge, bills)


def _conditions(
    row: Any, question: Question, since: Watermark | None
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions of a question and a watermark on events or adjustments."""
    return (*question.conditions(row), *(() if since is None else (since.is_after(row),)))


def _usage(question: Question, since: Watermark | None) -> Select[Any]:
    """Return the SELECT of the sums of priced lines by day, price and kind of token.

    An event's cost is the sum of its lines. A cost that they lack has a row without a kind.
    """
    events = with_shares(finance_views.usage_events.alias("event"))
    event = events.c
    line = (
        func.jsonb_to_recordset(event.lines)
        .table_valued(
            column("kind", Text),
            column("tokens", Numeric),
            column("usd_per_mtok", Numeric),
            column("cost_nusd", Numeric),
        )
        .render_derived(name="priced", with_types=True)
    )
    listed = select(
        line.c.kind.label("token_kind"),
        line.c.usd_per_mtok.label("usd_per_million"),
        line.c.tokens.label("count"),
        (line.c.cost_nusd * _NUSD).label("amount_usd"),
    ).select_from(line)
    in_lines = select(func.coalesce(func.sum(line.c.cost_nusd * _NUSD), 0)).select_from(line)
    rest = event.cost_usd - in_lines.correlate(events).scalar_subquery()
    unlisted = (
        select(
            *(cast(null(), kind) for kind in (Text, Numeric)),
            literal_column("1", Numeric).label("count"),  # an attempt, whose kinds are not known
            rest.label("amount_usd"),
        )
        .where(rest != 0)
        .correlate(events)
    )
    part = union_all(listed, unlisted).lateral("part")
    groups = [
        (utc_day(event.occurred_at) if name == "day" else event[name]).label(name)
        for name in _GROUPS
    ]
    of_line = [part.c[name] for name in _OF_LINE]
    return (
        select(
            *groups,
            *of_line,
            # Quantities are shared as the money is, so that each row is its quantity at its rate.
            func.sum(part.c["count"] * event.share).label("count"),
            func.sum(part.c.amount_usd * event.share).label("amount_usd"),
            cast(func.count().filter(event.is_own), BigInteger).label("attempts"),
        )
        .select_from(events.join(part, true()))
        .where(event.cost_usd.is_not(None), *_conditions(event, question, since))
        .group_by(*groups, *of_line)
        .order_by(*(literal_column(name) for name in (*_GROUPS, *_OF_LINE)))
    )


def _adjustments(question: Question, since: Watermark | None) -> Select[Any]:
    """Return the SELECT of the adjustments and their shares, in the order of booking."""
    row = with_shares(finance_views.adjustments.alias("event")).c
    amount_usd = (row.amount_usd * row.share).label("amount_usd")
    return (
        select(
            *(one for one in row if one.name != amount_usd.name),
            amount_usd,
            utc_day(row.occurred_at).label("day"),
        )
        .where(*_conditions(row, question, since))
        .order_by(row.created_at, row.adjustment_id, row.cost_centre)
    )


def _gpu_days(question: Question) -> Select[Any]:
    """Return the SELECT of the GPU cost by day and deployment."""
    days = gpu_days(question).c
    return select(*days).order_by(days.day, days.deployment)


def _usage_charge(row: Row) -> Charge:
    """Return the charge of one sum of lines."""
    return Charge(
        line_kind=LineKind.USAGE,
        **{name: row[name] for name in (*_GROUPS, *_OF_LINE, "count", "amount_usd", "attempts")},
    )


def _adjustment_charge(row: Row) -> Charge:
    """Return the charge of one adjustment."""
    same = (
        *("day", "posted_period", "cost_centre", "team", "project", "deployment", "provider"),
        *("model", "region", "data_class", "usage_source", "tags", "amount_usd", "reason"),
    )
    return Charge(
        line_kind=LineKind.ADJUSTMENT,
        is_self_hosted=bool(row["is_self_hosted"]),
        adjustment_id=str(row["adjustment_id"]),
        adjustment_kind=row["kind"],
        request_id=None if row["request_id"] is None else str(row["request_id"]),
        booked_at=row["created_at"],
        **{name: row[name] for name in same},
    )


def _gpu_charges(row: Row) -> Iterator[Charge]:
    """Yield the parts of a day's GPU bill that no request paid for."""
    for kind in (LineKind.EMPTY, LineKind.UNDERFILLED, LineKind.VARIANCE):
        amount_usd = row[f"{kind.value}_usd"]
        if not amount_usd:  # unknown, or none
            continue
        rate = row["usd_per_gpu_hour"]
        yield Charge(
            line_kind=kind,
            day=row["day"],
            posted_period=row["day"].replace(day=1),
            amount_usd=amount_usd,
            deployment=row["deployment"],
            is_self_hosted=True,
            count=round(amount_usd / rate, SHARE_DIGITS) if rate else row["gpu_hours"],
        )


def _with_share(charge: Charge, bills: Bills) -> Charge:
    """Return a charge with its share of the GPU bill of its day and deployment, if that is
    known.
    """
    bill_usd = bills.get((charge.deployment or "", charge.day))
    if bill_usd is None or not charge.is_self_hosted:
        return charge
    return replace(charge, allocated_share=round(charge.amount_usd / bill_usd, SHARE_DIGITS))
