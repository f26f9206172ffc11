"""Explains the change of spending against an earlier time by volume and price: by team and model,
or by any other split that is not one of time.

Volume and price are told apart for each team and model of a row, and added up: so the parts of a
row do not depend on the mix of its models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from sqlalchemy import func

from gateway.domain.money import format_amount
from gateway.reports.dimensions import Dimension, Split
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.aggregate import (
    ADJUSTMENTS,
    ATTEMPTS,
    COST,
    TOTAL,
    Measure,
    aggregate,
)
from gateway.reports.sources.comparison import note_on, require_comparable
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import fact
from gateway.reports.sources.notes import read_now

BY: tuple[Split, ...] = (Dimension.TEAM, Dimension.MODEL)
# With the cost centres of a team each token is shared as its money is: a part of the money without
# its tokens would have no price.
TOKENS = Measure(
    name="borne_tokens",
    unit="tokens",
    kind=ColumnKind.SHARE,
    value=func.sum(fact("borne_tokens")),
    known=func.sum(fact("total_known")),
)
MEASURES = (ATTEMPTS, TOKENS, COST, ADJUSTMENTS, TOTAL)
AMOUNTS = ("previous_usd", "total_usd", "change_usd", "volume_usd", "price_usd", "other_usd")
CHANGES = ("change_usd", "volume_usd", "price_usd", "other_usd")
COLUMNS = tuple(Column(name=name, unit="USD", kind=ColumnKind.MONEY) for name in AMOUNTS)
NOTES = (
    "change_usd = volume_usd + price_usd + other_usd. volume_usd is the change of tokens at the "
    "earlier cost per token; what a team newly uses, or no longer uses, is volume. price_usd is "
    "the change of the cost per token at the present tokens: other prices, and another mix of "
    "input, cached and output tokens. other_usd is adjustments, and costs that are not known.",
)
_NANO = Decimal("0.000000001")
Parts = dict[str, Decimal | None]
Names = tuple[str, ...]  # the values of a row's dimensions
Explained = tuple[Names, Parts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The spending of one team on one model in a time. None is unknown."""

    tokens: Decimal | None = Decimal(0)
    cost_usd: Decimal | None = Decimal(0)
    total_usd: Decimal | None = Decimal(0)


NOTHING = Spending()


def why(snapshot: ReadSnapshot, question: Question, *, name: str) -> Report:
    """Return the report on the change of spending, the largest change first.

    Raises `BadUsage` for a split by time or if no time is earlier, or `DatabaseUnavailable`.
    """
    by = question.by or BY
    require_comparable(by)
    cells = (*by, *(one for one in BY if one not in by))

    def answer(asked: Question, split: tuple[Split, ...]) -> Report:
        return aggregate(snapshot, asked, MEASURES, name=name, title="", by=split)

    found = question.comparison(read_now(snapshot))
    before = _spending(answer(question.about(found.before), cells), cells)
    of_now = answer(question.about(found.now), cells)
    now = _spending(of_now, cells)
    whole, of_whole = now, of_now
    if found.is_part:
        of_whole = answer(question, by)
        whole = _spending(of_whole, by)
    rows = _rows(whole, now, before, places=len(by))
    total = {
        column: sum((parts[column] or Decimal(0) for _, parts in rows), Decimal(0))
        for column in AMOUNTS
    }
    return Report(
        name=name,
        title="Why spending changed",
        dataset=question.dataset,
        columns=(*(dimension.report_column for dimension in by), *COLUMNS),
        rows=tuple((*names, *(parts[column] for column in AMOUNTS)) for names, parts in rows),
        total=total,
        complete_until=of_whole.complete_until,
        notes=(
            *_driver(rows, by, question.currency or "USD"),
            *NOTES,
            note_on(found, "previous_usd", "change_usd"),
            *of_whole.notes,
        ),
        comparison=found,
    )


def _spending(report: Report, by: Sequence[Split]) -> dict[Names, Spending]:
    """Return the rows of a report by their names."""
    names = [dimension.report_column.name for dimension in by]
    return {
        tuple(str(row[name]) for name in names): Spending(
            tokens=row[TOKENS.name],  # type: ignore[arg-type]  # counts and shares of them
            cost_usd=row[COST.name],  # type: ignore[arg-type]  # an amount
            total_usd=row[TOTAL.name],  # type: ignore[arg-type]
        )
        for row in report.records()
    }


def _rows(
    whole: Mapping[Names, Spending],
    now: Mapping[Names, Spending],
    before: Mapping[Names, Spending],
    *,
    places: int,
) -> list[Explained]:
    """Return the rows of the report, the largest change first: each has the names in the first
    `places`, and the sums of its teams and models.
    """
    shown, earlier = (_totals(found, places) for found in (whole, before))
    changes: dict[Names, dict[str, Decimal]] = {}
    for cell in now.keys() | before.keys():
        row = changes.setdefault(cell[:places], dict.fromkeys(CHANGES, Decimal(0)))
        for name, part in explained(before.get(cell, NOTHING), now.get(cell, NOTHING)).items():
            row[name] += part
    rows: list[Explained] = [
        (
            names,
            {
                "previous_usd": earlier.get(names, Decimal(0)),
                "total_usd": shown.get(names, Decimal(0)),
                **changes.get(names, dict.fromkeys(CHANGES, Decimal(0))),
            },
        )
        for names in shown | earlier | changes
    ]
    return sorted(rows, key=lambda one: (-abs(_amount(one[1], "change_usd")), one[0]))


def _totals(found: Mapping[Names, Spending], places: int) -> dict[Names, Decimal | None]:
    """Return the known amounts of the names in the first places; None if none of them is known."""
    totals: dict[Names, Decimal | None] = {}
    for cell, spent in found.items():
        so_far = totals.get(cell[:places])
        known = [one for one in (so_far, spent.total_usd) if one is not None]
        totals[cell[:places]] = sum(known, Decimal(0)) if known else None
    return totals


def explained(before: Spending, now: Spending) -> dict[str, Decimal]:
    """Return the change of one team on one model. Its parts are exact: price is the rest of it."""
    change = (now.total_usd or Decimal(0)) - (before.total_usd or Decimal(0))
    volume = price = Decimal(0)
    if now.cost_usd is not None and before.cost_usd is not None:
        of_cost = now.cost_usd - before.cost_usd
        if before.tokens and now.tokens:
            more = now.tokens - before.tokens
            volume = (before.cost_usd * more / before.tokens).quantize(_NANO, ROUND_HALF_EVEN)
        else:
            volume = of_cost
        price = of_cost - volume
    return {
        "change_usd": change,
        "volume_usd": volume,
        "price_usd": price,
        "other_usd": change - volume - price,
    }


def _driver(rows: Sequence[Explained], by: Sequence[Split], currency: str) -> tuple[str, ...]:
    """Return the sentence on the largest change; empty if nothing changed."""
    if not rows or not rows[0][1]["change_usd"]:
        return ()
    names, parts = rows[0]
    whose = ", ".join(
        f"{one.value.replace('_', ' ')} {name}" for one, name in zip(by, names, strict=True)
    )
    change = _amount(parts, "change_usd")
    cause = max(
        ("volume_usd", "price_usd", "other_usd"), key=lambda name: abs(_amount(parts, name))
    )
    direction = "more" if change > 0 else "less"
    return (
        f"The largest change: {whose}, {format_amount(abs(change), currency)} "
        f"{direction}, mostly by {cause.removesuffix('_usd')}.",
    )


def _amount(parts: Mapping[str, Cell], name: str) -> Decimal:
    """Return an amount of a row, 0 for one that is unknown."""
    return Decimal(str(parts[name] or 0))
