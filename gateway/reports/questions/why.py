"""Explains the change of spending against an earlier time: by team and model, and for each by
volume and price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from gateway.domain.money import format_amount
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.sources.aggregate import (
    ADJUSTMENTS,
    ATTEMPTS,
    COST,
    TOTAL,
    aggregate,
    token_sum,
)
from gateway.reports.sources.comparison import note_on
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import read_now

BY = (Dimension.TEAM, Dimension.MODEL)
TOKENS = token_sum("total_tokens")
MEASURES = (ATTEMPTS, TOKENS, COST, ADJUSTMENTS, TOTAL)
AMOUNTS = ("previous_usd", "total_usd", "change_usd", "volume_usd", "price_usd", "other_usd")
COLUMNS = (
    *(dimension.report_column for dimension in BY),
    *(Column(name=name, unit="USD", kind=ColumnKind.MONEY) for name in AMOUNTS),
)
NOTES = (
    "change_usd = volume_usd + price_usd + other_usd. volume_usd is the change of tokens at the "
    "earlier cost per token; what a team newly uses, or no longer uses, is volume. price_usd is "
    "the change of the cost per token at the present tokens: other prices, and another mix of "
    "input, cached and output tokens. other_usd is adjustments, and costs that are not known.",
)
_NANO = Decimal("0.000000001")
Parts = dict[str, Decimal | None]
Explained = tuple[tuple[str, str], Parts]  # of a team and a model


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """The spending of one team on one model in a time. None is unknown."""

    tokens: int | None = 0
    cost_usd: Decimal | None = Decimal(0)
    total_usd: Decimal | None = Decimal(0)


NOTHING = Spending()


def why(snapshot: ReadSnapshot, question: Question, *, name: str) -> Report:
    """Return the report on the change of spending, the largest change first.

    Raises `BadUsage` if the question has no earlier time, or `DatabaseUnavailable`.
    """
    found = question.comparison(read_now(snapshot))
    now, before = (
        _by_pair(snapshot, question.about(one), name) for one in (found.now, found.before)
    )
    whole = _by_pair(snapshot, question, name) if found.is_part else now
    shown, spent, spent_before = _spending(whole), _spending(now), _spending(before)
    pairs: list[Explained] = [
        (
            pair,
            explained(spent_before.get(pair, NOTHING), spent.get(pair, NOTHING))
            | {"total_usd": shown.get(pair, NOTHING).total_usd},
        )
        for pair in shown | spent_before
    ]
    pairs.sort(key=lambda one: (-abs(_amount(one[1], "change_usd")), one[0]))
    total = {
        column: sum((parts[column] or Decimal(0) for _, parts in pairs), Decimal(0))
        for column in AMOUNTS
    }
    return Report(
        name=name,
        title="Why spending changed",
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple((*pair, *(parts[column] for column in AMOUNTS)) for pair, parts in pairs),
        total=total,
        complete_until=whole.complete_until,
        notes=(
            *_driver(pairs, question.currency or "USD"),
            *NOTES,
            note_on(found, "previous_usd", "change_usd"),
            *whole.notes,
        ),
        comparison=found,
    )


def _by_pair(snapshot: ReadSnapshot, question: Question, name: str) -> Report:
    """Return the spending of a time by team and model."""
    return aggregate(snapshot, question, MEASURES, name=name, title="", by=BY)


def _spending(report: Report) -> dict[tuple[str, str], Spending]:
    """Return the rows of a report by team and model."""
    return {
        (str(row["team"]), str(row["model"])): Spending(
            tokens=row[TOKENS.name],  # type: ignore[arg-type]  # a count
            cost_usd=row[COST.name],  # type: ignore[arg-type]  # an amount
            total_usd=row[TOTAL.name],  # type: ignore[arg-type]
        )
        for row in report.records()
    }


def explained(before: Spending, now: Spending) -> Parts:
    """Return the amounts of a row. The parts of a change are exact: price is the rest of it."""
    change = (now.total_usd or Decimal(0)) - (before.total_usd or Decimal(0))
    volume = price = Decimal(0)
    if now.cost_usd is not None and before.cost_usd is not None:
        of_cost = now.cost_usd - before.cost_usd
        if before.tokens and now.tokens:
            more = Decimal(now.tokens - before.tokens)
            volume = (before.cost_usd * more / before.tokens).quantize(_NANO, ROUND_HALF_EVEN)
        else:
            volume = of_cost
        price = of_cost - volume
    return {
        "previous_usd": before.total_usd,
        "total_usd": now.total_usd,
        "change_usd": change,
        "volume_usd": volume,
        "price_usd": price,
        "other_usd": change - volume - price,
    }


def _driver(pairs: Sequence[Explained], currency: str) -> tuple[str, ...]:
    """Return the sentence on the largest change; empty if nothing changed."""
    if not pairs or not pairs[0][1]["change_usd"]:
        return ()
    (team, model), parts = pairs[0]
    change = _amount(parts, "change_usd")
    cause = max(
        ("volume_usd", "price_usd", "other_usd"), key=lambda name: abs(_amount(parts, name))
    )
    direction = "more" if change > 0 else "less"
    return (
        f"The largest change: team {team}, model {model}, {format_amount(abs(change), currency)} "
        f"{direction}, mostly by {cause.removesuffix('_usd')}.",
    )


def _amount(parts: Mapping[str, Cell], name: str) -> Decimal:
    """Return an amount of a row, 0 for one that is unknown."""
    return Decimal(str(parts[name] or 0))
