"""Declares the SQL of an event's saving by cached tokens against the uncached price; runs no query.

It is `pricing.cache_saving_nusd` in SQL, so that a report need not read each event's lines into
Python. A test compares the report with the sum of the receipts.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnClause,
    ColumnElement,
    FromClause,
    Numeric,
    ScalarSelect,
    Subquery,
    TableValuedAlias,
    Text,
    case,
    column,
    func,
    literal_column,
    null,
    select,
    true,
)

from gateway.domain.pricing.pricing import STANDARD_TIERS
from gateway.domain.pricing.tokens import UNCACHED_KINDS, TokenKind
from gateway.reports.dimensions import Columns
from gateway.storage.postgres.schema.finance_views import prices

_NUSD_PER_USD_OF_MTOK = literal_column("1000", Numeric)  # a rate of 1 USD costs 1,000 nUSD a token
_USD_PER_NUSD = literal_column("0.000000001", Numeric)
_KIND, _RATE = column("kind", Text), column("usd_per_mtok", Numeric)
_ZERO: ColumnElement[Any] = literal_column("0", Numeric)
_CACHED_KINDS = {
    uncached: sorted(kind for kind, plain in UNCACHED_KINDS.items() if plain is uncached)
    for uncached in UNCACHED_KINDS.values()
}


def with_cache_savings(events: FromClause) -> Subquery:
    """Return the rows of a view of events with one more column, `cache_saving_usd`: how much less
    the cached tokens cost than uncached ones. It is negative if the surcharge of cache writes is
    larger.

    NULL if the cost, the cached tokens or the rate of uncached ones is unknown.
    """
    row = events.c
    is_known = row.cost_usd.is_not(None) & row.cached_input_tokens.is_not(None)
    cached = _cached_lines(row, is_known=is_known)
    uncached = _uncached_nusd(row, cached)
    # A price without a rate for cached tokens charges them as plain input: nothing is saved.
    saving_nusd = case(
        (cached.c.cost_nusd.is_(None), _ZERO),
        else_=_half_even(uncached.c.nusd) - cached.c.cost_nusd,
    )
    saving_usd = case((is_known, saving_nusd * _USD_PER_NUSD), else_=null())
    return (
        select(*row, saving_usd.label("cache_saving_usd"))
        .select_from(events.join(cached, true()).join(uncached, true()))
        .subquery("event")
    )


def _cached_lines(row: Columns, *, is_known: ColumnElement[bool]) -> FromClause:
    """Return the relation of the cost of an event's cached tokens, NULL without any, and for each
    uncached kind of its cached tokens and the rate that it was charged by.
    """
    has_cached = (row.cached_input_tokens > 0) | (row.cache_write_tokens > 0)
    # Reading the lines is the report's largest cost; most events of some teams cache nothing.
    lines = case((is_known & has_cached, row.lines))
    line = _members(lines, _KIND, _RATE, column("tokens", Numeric), column("cost_nusd", Numeric))
    is_cached = line.c.kind.in_(sorted(UNCACHED_KINDS))
    found = [func.sum(line.c.cost_nusd).filter(is_cached).label("cost_nusd")]
    for uncached, cached in _CACHED_KINDS.items():
        found += [
            func.sum(line.c.tokens).filter(line.c.kind.in_(cached)).label(f"{uncached}_tokens"),
            func.max(line.c.usd_per_mtok).filter(line.c.kind == uncached).label(f"{uncached}_rate"),
        ]
    return select(*found).select_from(line).lateral("cached")


def _uncached_nusd(row: Columns, cached: FromClause) -> FromClause:
    """Return the relation of the exact price of an event's cached tokens at the rates of uncached
    ones.
    """
    nusd = _ZERO
    for kind in _CACHED_KINDS:
        tokens = cached.c[f"{kind}_tokens"]
        rate = func.coalesce(cached.c[f"{kind}_rate"], _listed_usd_per_mtok(row, kind))
        nusd += case((tokens > 0, tokens * rate * _NUSD_PER_USD_OF_MTOK), else_=_ZERO)
    # OFFSET: else Postgres would compute the amount again wherever its rounding names it.
    return (
        select(nusd.label("nusd"))
        .correlate(cached, row.price_id.table)
        .offset(literal_column("0"))
        .lateral("uncached")
    )


def _listed_usd_per_mtok(row: Columns, kind: TokenKind) -> ScalarSelect[Any]:
    """Return the SQL of the rate of a kind in an event's stored price: a prompt that was cached as
    a whole has no line of its own.
    """
    tier_and_step = column("service_tier", Text), column("from_input_tokens", BigInteger)
    rate = _members(prices.c.rates, _KIND, _RATE, *tier_and_step)
    tier = func.lower(func.nullif(row.service_tier, ""))
    own_tier = case((tier.in_(sorted(STANDARD_TIERS)), null()), else_=tier)
    return (
        select(rate.c.usd_per_mtok)
        .select_from(prices.join(rate, true()))
        .where(
            prices.c.price_id == row.price_id,
            rate.c.kind == kind,
            rate.c.service_tier.is_not_distinct_from(own_tier),
            rate.c.from_input_tokens <= row.input_tokens,
        )
        .order_by(rate.c.from_input_tokens.desc())
        .limit(literal_column("1"))
        .correlate(row.price_id.table)
        .scalar_subquery()
    )


def _members(documents: ColumnElement[Any], *members: ColumnClause[Any]) -> TableValuedAlias:
    """Return the SQL relation of a JSON list of priced lines or of rates, with these members."""
    relation = func.jsonb_to_recordset(documents).table_valued(*members)
    return relation.render_derived(with_types=True)


def _half_even(amount: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL of an amount of at least 0, rounded half-even: `round` alone rounds a half
    up.
    """
    whole = func.floor(amount)
    is_even_half = (amount - whole == literal_column("0.5", Numeric)) & (whole % 2 == 0)
    return case((is_even_half, whole), else_=func.round(amount))
