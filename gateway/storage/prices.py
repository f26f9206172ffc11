"""Prices: the built-in list, and the dated record of which price a deployment had when. Never edited."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from importlib.metadata import version

from genai_prices import types as genai
from genai_prices.data_snapshot import get_snapshot
from sqlalchemy import Connection, text

from gateway.domain.pricing import Price, Rate
from gateway.domain.tokens import TokenKind
from gateway.storage.database import Database

# Which provider of the built-in list a provider of ours is; `openai_compatible` is found by its URL.
_LISTED_AS = {"openai": "openai"}
# Writes to a cache are charged at the rate of the five-minute cache: a request cannot ask for another through us.
_KINDS = {
    "input_mtok": TokenKind.INPUT,
    "cache_read_mtok": TokenKind.CACHED_INPUT,
    "cache_write_mtok": TokenKind.CACHE_WRITE,
    "output_mtok": TokenKind.OUTPUT,
    "output_reasoning_mtok": TokenKind.REASONING,
}
# Charged for every request beside the tokens: a price per token alone would be too low.
_PER_REQUEST = ("requests_kcount",)

_ADD_PRICE = (
    "INSERT INTO tollgate.prices (price_id, provider, model, source, rates) "
    "VALUES (:price_id, :provider, :model, :source, CAST(:rates AS jsonb)) ON CONFLICT DO NOTHING"
)
# An older policy's price never follows a newer one's: a replica that lags behind must not turn the record back.
# Never before the latest entry either, however far apart the clocks of two replicas are.
_DATE_PRICE = """
WITH latest AS (
    SELECT price_id, policy_version, valid_from FROM tollgate.deployment_prices
    WHERE deployment = :deployment ORDER BY valid_from DESC LIMIT 1
)
INSERT INTO tollgate.deployment_prices (deployment, price_id, policy_version, valid_from)
SELECT :deployment, :price_id, :policy_version,
       GREATEST(CAST(:at AS timestamptz), (SELECT valid_from FROM latest) + interval '1 microsecond')
WHERE NOT EXISTS (SELECT FROM latest WHERE price_id = :price_id OR policy_version > :policy_version)
"""


def builtin_price(*, provider: str, model: str, base_url: str, at: datetime) -> Price | None:
    """Return the bundled list price of a model at a moment, or None where the list cannot say what it costs.

    None also where requests cost extra or everything is listed at zero: an admin then declares the price.
    Some prices depend on the hour or start at a date: ask again, what comes back then is another price.
    Never uses the network.
    """
    found = _listed(provider, model, base_url)
    if found is None:
        return None
    listed_provider, listed_model = found
    listed = listed_model.get_prices(at)
    rates = tuple(_rates(listed))
    is_whole = any(r.kind is TokenKind.INPUT for r in rates) and not any(getattr(listed, k) for k in _PER_REQUEST)
    if not is_whole or not any(rate.usd_per_mtok for rate in rates):
        return None
    source = f"genai-prices {version('genai-prices')}"
    return Price(provider=listed_provider.id, model=model, source=source, rates=rates)


class PriceStore:
    """Records prices as policies bring them in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, prices: Iterable[Price]) -> None:
        """Record prices that no deployment of ours uses, so that receipts of demo events can name their source."""
        with self._database.begin() as connection:
            for price in sorted(prices, key=lambda price: price.price_id):
                connection.execute(text(_ADD_PRICE), price_to_row(price))

    def ensure(self, prices: Mapping[str, Price], *, policy_version: int, at: datetime) -> None:
        """Record the price of each deployment from `at` on, unless its latest entry says so already."""
        with self._database.begin() as connection:
            # Replicas pick up a policy at the same moment; one of them writes.
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('tollgate.deployment_prices'))"))
            for deployment, price in sorted(prices.items()):
                connection.execute(text(_ADD_PRICE), price_to_row(price))
                _date_price(connection, deployment, price, policy_version=policy_version, at=at)


def price_to_row(price: Price) -> dict[str, str]:
    """Return the row of a price; rates are plain decimal strings."""
    rates = [
        {"kind": str(r.kind), "usd_per_mtok": f"{r.usd_per_mtok:f}", "from_input_tokens": r.from_input_tokens}
        for r in price.rates
    ]
    return {
        "price_id": price.price_id,
        "provider": price.provider,
        "model": price.model,
        "source": price.source,
        "rates": json.dumps(rates),
    }


def _date_price(connection: Connection, deployment: str, price: Price, *, policy_version: int, at: datetime) -> None:
    entry = {"deployment": deployment, "price_id": price.price_id, "policy_version": policy_version, "at": at}
    connection.execute(text(_DATE_PRICE), entry)


def _listed(provider: str, model: str, base_url: str) -> tuple[genai.Provider, genai.ModelInfo] | None:
    by_url = base_url if provider == "openai_compatible" else None
    by_name = _LISTED_AS.get(provider)
    if by_url is None and by_name is None:
        return None
    try:
        return get_snapshot().find_provider_model(model, None, by_name, by_url)
    except LookupError:
        return None


def _rates(listed: genai.ModelPrice) -> Iterable[Rate]:
    for key, kind in _KINDS.items():
        value = getattr(listed, key)
        if isinstance(value, genai.TieredPrices):
            yield Rate(kind=kind, usd_per_mtok=value.base)
            # Theirs applies above `start`, ours from a number on.
            yield from (Rate(kind=kind, usd_per_mtok=t.price, from_input_tokens=t.start + 1) for t in value.tiers)
        elif isinstance(value, Decimal):
            yield Rate(kind=kind, usd_per_mtok=value)
