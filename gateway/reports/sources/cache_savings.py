"""Declares the SQL of an event's saving by cached tokens against the uncached price; runs no query.

It is `pricing.cache_saving_nusd` in SQL, so that a report need not read each event's lines into
Python. A test compares the report with the sum of the receipts.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Numeric,
    Select,
    TableValuedAlias,
    Text,
    case,
    cast,
    column,
    func,
    literal_column,
    null,
    select,
)

from gateway.domain.pricing.pricing import STANDARD_TIERS
from gateway.domain.pricing.tokens import CACHE_KINDS, TokenKind
from gateway.reports.dimensions import Columns
from gateway.storage.postgres.schema.other_views import prices

_NUSD_PER_USD_OF_MTOK = literal_column("1000", Numeric)  # a rate of 1 USD costs 1,000 nUSD a token
_USD_PER_NUSD = literal_column("0.000000001", Numeric)
_ZERO = literal_column("0", Numeric)


def cache_saving_usd(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of how much less a row's cached tokens cost than at the rate of plain input;
    negative if the surcharge of cache writes is larger.

    NULL if the cost, the cached tokens or the rate of plain input is unknown.
    """
    is_known = row.cost_usd.is_not(None) & row.cached_input_tokens.is_not(None)
    has_cached = (row.cached_input_tokens > 0) | (row.cache_write_tokens > 0)
    return case(
        (is_known & has_cached, _saving_nusd(row).scalar_subquery() * _USD_PER_NUSD),
        (is_known, _ZERO),
        else_=null(),
    )


def _saving_nusd(row: Columns) -> Select[Any]:
    """Return the SELECT of an event's saving in nano-dollars: each line rounded once, half-even."""
    line = _members(row.lines, "line")
    plain = cast(line.c.tokens, Numeric) * _input_usd_per_mtok(row) * _NUSD_PER_USD_OF_MTOK
    saved = func.sum(_half_even(plain) - line.c.cost_nusd)
    # A price without a rate for cached tokens charges them as plain input: nothing is saved.
    return (
        select(case((func.count() == 0, _ZERO), else_=saved))
        .select_from(line)
        .where(line.c.kind.in_(sorted(CACHE_KINDS)))
        .correlate(row.lines.table)
    )


def _input_usd_per_mtok(row: Columns) -> ColumnElement[Any]:
    """Return the SQL of an event's rate of plain input: that of its own line, or of its stored
    price if the whole prompt was cached.
    """
    line = _members(row.lines, "plain_line")
    charged = select(line.c.usd_per_mtok).where(line.c.kind == TokenKind.INPUT)
    rate = _members(prices.c.rates, "rate")
    tier = func.lower(func.nullif(row.service_tier, ""))
    own_tier = case((tier.in_(sorted(STANDARD_TIERS)), null()), else_=tier)
    listed = (
        select(rate.c.usd_per_mtok)
        .select_from(prices.join(rate, literal_column("true")))
        .where(
            prices.c.price_id == row.price_id,
            rate.c.kind == TokenKind.INPUT,
            rate.c.service_tier.is_not_distinct_from(own_tier),
            rate.c.from_input_tokens <= row.input_tokens,
        )
        .order_by(rate.c.from_input_tokens.desc())
        .limit(1)
    )
    event = row.lines.table
    return func.coalesce(
        charged.select_from(line).correlate(event).scalar_subquery(),
        listed.correlate(event).scalar_subquery(),
    )


def _members(documents: ColumnElement[object], name: str) -> TableValuedAlias:
    """Return the SQL relation of a JSON list of priced lines or of rates."""
    members = (
        column("kind", Text),
        column("tokens", Numeric),
        column("usd_per_mtok", Numeric),
        column("cost_nusd", Numeric),
        column("service_tier", Text),
        column("from_input_tokens", BigInteger),
    )
    relation = func.jsonb_to_recordset(documents).table_valued(*members, name=name)
    return relation.render_derived(with_types=True)


def _half_even(amount: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the SQL of an amount of at least 0, rounded half-even: `round` alone rounds a half
    up.
    """
    whole = func.floor(amount)
    is_even_half = (amount - whole == literal_column("0.5", Numeric)) & (whole % 2 == 0)
    return case((is_even_half, whole), else_=func.round(amount))
