"""Declares the SQL of an attempt's cost at the other deployments that could have served it; runs no
query but the one for their prices.

Its rates travel as one JSON parameter: a search for the price of each candidate of each event
would take far longer than the join with a short list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnClause,
    ColumnElement,
    FromClause,
    Numeric,
    Subquery,
    Text,
    and_,
    bindparam,
    case,
    column,
    func,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB, aggregate_order_by

from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.reports.dimensions import Columns
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.facts import Source, events
from gateway.storage.policy.prices import price_from_row
from gateway.storage.postgres.schema.column_types import TIMESTAMPTZ

DatedRates = list[dict[str, object]]
RATES = "rates"  # the parameter of every statement over `elsewhere`
# The kinds of text, and the kind whose rate counts if a price does not list it: see
# `pricing.lines`.
_KINDS: Mapping[TokenKind, TokenKind] = {
    TokenKind.INPUT: TokenKind.INPUT,
    TokenKind.CACHED_INPUT: TokenKind.INPUT,
    TokenKind.CACHE_WRITE: TokenKind.INPUT,
    TokenKind.OUTPUT: TokenKind.OUTPUT,
    TokenKind.REASONING: TokenKind.OUTPUT,
}
_DATED = """
SELECT dated.deployment, dated.valid_from, lead(dated.valid_from) OVER later AS until,
       price.provider, price.model, price.source, price.rates
FROM finance.deployment_prices AS dated JOIN finance.prices AS price USING (price_id)
WINDOW later AS (PARTITION BY dated.deployment ORDER BY dated.valid_from)
"""
_MTOK = literal_column("0.000001", Numeric)
_NANO_DIGITS: ColumnElement[Any] = literal_column("9")
_ZERO: ColumnElement[Any] = literal_column("0", Numeric)


def elsewhere(dataset: Dataset) -> Source:
    """Return the source of single events with two more columns: `dearest_usd`, the cost of the same
    tokens at the dearest eligible deployment, and `default_usd`, at the first listed eligible one.

    Both are NULL if one of the costs is unknown. The deployment that served has its true cost.
    """
    return _ELSEWHERE[dataset]


def rates_of_deployments(snapshot: ReadSnapshot) -> DatedRates:
    """Return the standard rates of every deployment, by time and context tier, for `RATES`."""
    return [rate for row in snapshot.rows(_DATED) for rate in _rates(row)]


def _rates(row: Mapping[str, Any]) -> Iterator[dict[str, object]]:
    """Yield the rates of a dated price, one for each of its context tiers."""
    price: Price = price_from_row(row)
    tiers = sorted({one.from_input_tokens for one in price.rates if one.service_tier is None})
    for number, least in enumerate(tiers):
        steps = price.steps(least)
        listed = {kind: steps.get(kind, steps.get(other)) for kind, other in _KINDS.items()}
        yield {
            "deployment": row["deployment"],
            "starts_at": row["valid_from"].isoformat(),
            "ends_at": None if row["until"] is None else row["until"].isoformat(),
            "least_tokens": least,
            "most_tokens": tiers[number + 1] if number + 1 < len(tiers) else None,
            **{
                kind: None if one is None else str(one.usd_per_mtok) for kind, one in listed.items()
            },
        }


def _with_costs_elsewhere(rows: FromClause) -> Subquery:
    """Return the rows of a view of events with the costs at the candidates of their decisions."""
    row = rows.c
    members: tuple[ColumnClause[Any], ...] = (
        column("deployment", Text),
        column("starts_at", TIMESTAMPTZ),
        column("ends_at", TIMESTAMPTZ),
        column("least_tokens", BigInteger),
        column("most_tokens", BigInteger),
        *(column(kind, Numeric) for kind in _KINDS),
    )
    rate = (
        func.jsonb_to_recordset(bindparam(RATES, type_=JSONB))
        .table_valued(*members)
        .render_derived(name="rate", with_types=True)
    )
    candidate = (
        func.jsonb_array_elements(_candidates(row))
        .table_valued(column("one", JSONB), with_ordinality="place")
        .render_derived(name="candidate")
    )
    name = candidate.c.one["deployment"].astext
    tokens = func.coalesce(row.input_tokens, 0)
    in_force = and_(
        rate.c.deployment == name,
        rate.c.starts_at <= row.occurred_at,
        or_(rate.c.ends_at.is_(None), row.occurred_at < rate.c.ends_at),
        rate.c.least_tokens <= tokens,
        or_(rate.c.most_tokens.is_(None), tokens < rate.c.most_tokens),
    )
    usd = case((name == row.deployment, row.cost_usd), else_=_usd_at(row, rate.c))
    costs = (
        select(
            case((func.bool_and(usd.is_not(None)), func.max(usd))).label("dearest_usd"),
            func.array_agg(aggregate_order_by(usd, candidate.c.place))[1].label("default_usd"),
        )
        .select_from(candidate.outerjoin(rate, in_force))
        # A candidate with a route of its own is one that the route degrades to.
        .where(
            candidate.c.one["obstacles"] == literal_column("'[]'::jsonb"),
            not_(candidate.c.one.has_key("route")),
        )
        .lateral("cost")
    )
    is_known = and_(_is_text(row), costs.c.dearest_usd.is_not(None))
    return (
        select(
            *row,
            case((is_known, costs.c.dearest_usd), else_=null()).label("dearest_usd"),
            case((is_known, costs.c.default_usd), else_=null()).label("default_usd"),
        )
        .select_from(rows.join(costs, true()))
        .subquery("event")
    )


def _candidates(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of a decision's candidates; none in a record of another shape."""
    found = row.decision["candidates"]
    return case(
        (func.jsonb_typeof(found) == "array", found), else_=literal_column("'[]'::jsonb", JSONB)
    )


def _is_text(row: Columns) -> ColumnElement[bool]:
    """Return the condition that an attempt's cost is known, and is of text alone."""
    kinds = " && ".join(f'@.kind != "{kind}"' for kind in _KINDS)
    path: ColumnElement[Any] = literal_column(f"'$[*] ? ({kinds})'::jsonpath")
    return and_(row.cost_usd.is_not(None), not_(func.jsonb_path_exists(row.lines, path)))


def _usd_at(row: Columns, rates: Any) -> ColumnElement[Any]:
    """Return the SQL of the cost of an attempt's tokens at these rates, rounded to the
    nano-dollar; NULL if a kind of them has no rate.
    """
    cached, written = (
        func.coalesce(row[name], 0) for name in ("cached_input_tokens", "cache_write_tokens")
    )
    reasoning = func.coalesce(row.reasoning_tokens, 0)
    counts: Mapping[TokenKind, ColumnElement[Any]] = {
        TokenKind.INPUT: func.coalesce(row.input_tokens, 0) - cached - written,
        TokenKind.CACHED_INPUT: cached,
        TokenKind.CACHE_WRITE: written,
        TokenKind.OUTPUT: func.coalesce(row.output_tokens, 0) - reasoning,
        TokenKind.REASONING: reasoning,
    }
    usd_mtok: ColumnElement[Any] = _ZERO
    for kind, count in counts.items():
        usd_mtok += case((count == 0, _ZERO), else_=count * rates[kind])
    return func.round(usd_mtok * _MTOK, _NANO_DIGITS)


_ELSEWHERE = {
    dataset: replace(events(dataset), rows=_with_costs_elsewhere(events(dataset).rows))
    for dataset in Dataset
}
