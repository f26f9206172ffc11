"""Answers the report `token-costs`: the cost of 1,000 tokens of each kind, as charged.

It reads the priced lines of single events: no sums hold the money of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from sqlalchemy import func, select

from gateway.domain.money import round_parts
from gateway.errors import BadUsage
from gateway.reports.dimensions import UNALLOCATED
from gateway.reports.question import Question
from gateway.reports.report import Cell, Column, ColumnKind, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.aggregate import (
    ATTEMPTS,
    COST,
    MAX_ROWS,
    OF_EVENTS,
    SPENT,
    TOTAL,
    aggregate,
    facts_of_events,
)
from gateway.reports.sources.comparison import with_share
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import fact, priced_lines

COLUMNS = (
    Column(name="kind", unit="", kind=ColumnKind.TEXT),
    Column(name="tokens", unit="tokens, or calls", kind=ColumnKind.COUNT),
    Column(name="usd_per_1k_tokens", unit="USD per 1,000 tokens", kind=ColumnKind.MONEY),
    Column(name=TOTAL.name, unit=TOTAL.unit, kind=ColumnKind.MONEY),
)
NOTES = (
    OF_EVENTS,
    "The kinds are those of the receipts, and disjoint. The row unallocated is total_usd without "
    "the lines: adjustments. Kinds such as web_search count calls.",
)
_LAST_DIGIT = Decimal("1e-12")
Key = tuple[Cell, ...]  # the values of a row's dimensions
Line = tuple[str, int, Decimal]  # a kind, its tokens or calls, and their cost


def token_costs(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on the cost of each kind of tokens.

    Raises `BadUsage` for more rows than a report holds, or `DatabaseUnavailable`.
    """
    by = () if question.by is None else question.by
    base = aggregate(
        snapshot, question, (ATTEMPTS, *SPENT), name=REPORT.name, title=REPORT.title, by=by
    )
    chosen = facts_of_events(priced_lines(question.dataset), question, by=by)
    groups = [chosen.c[dimension.label] for dimension in by]
    kind = chosen.c.token_kind
    found = snapshot.rows(
        select(
            *groups,
            kind.label("kind"),
            func.coalesce(func.sum(fact("line_tokens")), 0).label("tokens"),
            func.sum(fact("line_usd")).label("usd"),
        )
        .where(kind.is_not(None))
        .group_by(*groups, kind)
        .order_by(func.sum(fact("line_usd")).desc(), kind)
        .limit(MAX_ROWS + 1)
    )
    if len(found) > MAX_ROWS:
        raise BadUsage(f"There are more than {MAX_ROWS:,} rows. Filter, or split by less.")
    lines: dict[Key, list[Line]] = {}
    for row in found:
        key = tuple(row[dimension.label] for dimension in by)
        lines.setdefault(key, []).append((row["kind"], int(row["tokens"]), row["usd"]))
    groups_of_base: Mapping[Key, Mapping[str, Cell]] = {(): base.total}
    if by:
        groups_of_base = {
            row[: len(by)]: record for row, record in zip(base.rows, base.records(), strict=True)
        }
    return with_share(
        Report(
            name=base.name,
            title=base.title,
            dataset=base.dataset,
            columns=(*(dimension.report_column for dimension in by), *COLUMNS),
            rows=tuple(
                (*key, *cells)
                for key, group in groups_of_base.items()
                for cells in _rows(
                    lines.get(key, ()), group, is_converted=question.currency is not None
                )
            ),
            total=base.total,
            complete_until=base.complete_until,
            notes=tuple(dict.fromkeys((*base.notes, *NOTES)))
            if base.total[ATTEMPTS.name]
            else base.notes,
        )
    )


def _rows(
    lines: Sequence[Line], group: Mapping[str, Cell], *, is_converted: bool
) -> Iterator[tuple[Cell, ...]]:
    """Yield the cells of each kind of a group, and of the rest of its amount, if there is any.

    Converted lines are rounded so that they add up to the group's cost.
    """
    amounts = [usd for _, _, usd in lines]
    if is_converted:
        amounts = round_parts(amounts, _amount(group[COST.name]))
    for (kind, tokens, usd), amount in zip(lines, amounts, strict=True):
        each = (usd * 1000 / tokens).quantize(_LAST_DIGIT, ROUND_HALF_EVEN) if tokens > 0 else None
        yield kind, tokens, each, amount
    rest = _amount(group[TOTAL.name]) - sum(amounts, Decimal(0))
    if rest:
        yield UNALLOCATED, None, None, rest


def _amount(cell: Cell) -> Decimal:
    """Return a cell as an amount; 0 if it is unknown."""
    return Decimal(cell) if isinstance(cell, Decimal | int) else Decimal(0)


REPORT = ReportKind(
    name="token-costs",
    title="Cost of tokens by kind",
    question="What did 1,000 tokens of each kind cost?",
    by=(),
    run=token_costs,
)
