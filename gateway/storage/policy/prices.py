"""Stores the price book's entries, and the dated record of the prices that each deployment was
charged by, in Postgres; edits none.

Entries are never edited.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, text

from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.price_book import (
    BookEntry,
    DailyWindow,
    Dated,
    InForce,
    ModelKey,
    NewEntry,
    PriceBook,
    PriceOrigin,
)
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import Calibration
from gateway.domain.pricing.tokens import TokenKind
from gateway.storage.policy.price_list import as_served, key_of, schedule
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock

_ADD_PRICE = (
    "INSERT INTO tollgate.prices (price_id, provider, model, source, rates) VALUES (:price_id, "
    ":provider, :model, :source, CAST(:rates AS jsonb)) ON CONFLICT DO NOTHING"
)
# An older policy's price never follows a newer one's: a replica that lags behind must not revert
# the record. An entry is never dated before the latest one either, however far apart the clocks of
# two replicas are.
_DATE_PRICE = """
WITH latest AS (
    SELECT price_id, policy_version, valid_from FROM tollgate.deployment_prices
    WHERE deployment = :deployment ORDER BY valid_from DESC LIMIT 1
)
INSERT INTO tollgate.deployment_prices (deployment, price_id, policy_version, valid_from)
SELECT :deployment, :price_id, :policy_version,
       GREATEST(CAST(:at AS timestamptz), (SELECT valid_from FROM latest) + interval
         '1 microsecond')
WHERE NOT EXISTS (SELECT FROM latest WHERE price_id = :price_id OR policy_version > :policy_version)
"""
# Postgres' clock, not the caller's: entries of one transaction share a time, and later ones are
# later.
_ADD_ENTRY = """
INSERT INTO tollgate.price_entries (
    origin, provider, model, deployment, valid_from, daily_since, daily_until, price_id, source,
      author, reason, calibration
) VALUES (
    :origin, :provider, :model, :deployment, :valid_from, :daily_since, :daily_until, :price_id,
      :source, :author, :reason, CAST(:calibration AS jsonb)
)
"""
_IN_FORCE = """
SELECT d.valid_from, d.price_id, d.policy_version, p.source
FROM tollgate.deployment_prices d JOIN tollgate.prices p USING (price_id)
WHERE d.deployment = :deployment ORDER BY d.valid_from DESC LIMIT :limit
"""
_CHARGED = """
SELECT DISTINCT ON (d.deployment) d.deployment, p.provider, p.model, p.source, p.rates
FROM tollgate.deployment_prices d JOIN tollgate.prices p USING (price_id)
WHERE d.deployment = ANY(CAST(:deployments AS text[]))
ORDER BY d.deployment, d.valid_from DESC
"""
_STAMP = "SELECT count(*), max(entry_id) FROM tollgate.price_entries"
_ENTRIES = """
SELECT e.entry_id, e.origin, e.provider, e.model, e.deployment, e.valid_from, e.daily_since,
  e.daily_until,
       e.source, e.author, e.reason, e.created_at, e.calibration,
       p.price_id, p.provider AS price_provider, p.model AS price_model, p.source AS price_source,
         p.rates
FROM tollgate.price_entries e LEFT JOIN tollgate.prices p USING (price_id)
WHERE e.origin <> 'list'
   OR (e.provider, e.model) IN (SELECT * FROM unnest(CAST(:providers AS text[]), CAST(:models AS
     text[])))
ORDER BY e.entry_id
"""


@dataclass(frozen=True, slots=True)
class StoredBook:
    """The book as it was read, queried by deployment."""

    book: PriceBook

    def override(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """Return the price that `price add` set for a deployment at a moment; None if there is
        none.
        """
        return self.book.override(deployment, at)

    def calibrated(self, deployment: Deployment, *, at: datetime) -> Calibration | None:
        """Return the latest calibration of a deployment at a moment; None if there is none."""
        return self.book.calibrated(deployment, at)

    def has_listed(self, deployment: Deployment) -> bool:
        """Return True if the book has an imported list price of a deployment's model."""
        key = key_of(deployment)
        return key is not None and self.book.has_listed(key)

    def listed(self, deployment: Deployment, *, at: datetime) -> Price | None:
        """Return the imported list price of a deployment's model at a moment; None if there is
        none.
        """
        key = key_of(deployment)
        price = None if key is None else self.book.listed(key, at)
        if price is None:
            return None
        return as_served(
            price,
            provider=deployment.provider,
            base_url=deployment.base_url,
            region=deployment.region,
            model=deployment.model,
            at=at,
        )


class PriceStore:
    """A store of the book; it also records the prices of applied policies."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._read: tuple[object, StoredBook] | None = None

    def book(self, deployments: Iterable[Deployment]) -> StoredBook:
        """Return the part of the book that these deployments need. Raises `DatabaseUnavailable`.

        Entries are only ever added: while their number stays the same, the book is not read again.
        """
        keys = sorted({key for key in map(key_of, deployments) if key is not None})
        with self._database.begin() as connection:
            state = (tuple(connection.execute(text(_STAMP)).one()), tuple(keys))
            if self._read is None or self._read[0] != state:
                self._read = (state, StoredBook(_read_book(connection, keys)))
        return self._read[1]

    def entries(self, keys: Iterable[ModelKey]) -> PriceBook:
        """Return all overrides and calibrations, and the imported prices of these models of the
        list.
        """
        with self._database.begin() as connection:
            return _read_book(connection, sorted(keys))

    def add(self, entries: Iterable[NewEntry], *, author: str, reason: str) -> int:
        """Add entries in one transaction, in order; return their number."""
        with self._database.begin(reason=reason) as connection:
            return _add(connection, entries, author=author, reason=reason)

    def import_list_prices(
        self, deployments: Iterable[Deployment], *, author: str, reason: str
    ) -> int:
        """Import the list's prices of models that the book does not have yet; return the number of
        new entries.

        From then on only `price sync` changes these prices, not a replica with a newer list.
        """
        external = [deployment for deployment in deployments if not deployment.is_self_hosted]
        keys = sorted({key for key in map(key_of, external) if key is not None})
        with self._database.begin(reason=reason) as connection:
            connection.execute(text(TableLock.PRICE_ENTRIES.taken))
            known = _read_book(connection, keys)
            new = [
                NewEntry(
                    origin=PriceOrigin.LIST, provider=key.provider, model=key.model, dated=dated
                )
                for key in keys
                if not known.has_listed(key)
                for dated in schedule(key)
            ]
            return _add(connection, new, author=author, reason=reason)

    def in_force(self, deployment: str, *, limit: int) -> list[InForce]:
        """Return the latest prices that a deployment was charged by, newest first."""
        with self._database.begin() as connection:
            rows = connection.execute(text(_IN_FORCE), {"deployment": deployment, "limit": limit})
            return [
                InForce(
                    valid_from=row.valid_from,
                    price_id=row.price_id,
                    source=row.source,
                    policy_version=row.policy_version,
                )
                for row in rows
            ]

    def charged(self, deployments: Iterable[str]) -> dict[str, Price]:
        """Return the latest price that each of these deployments was charged by, if any."""
        with self._database.begin() as connection:
            rows = connection.execute(text(_CHARGED), {"deployments": list(deployments)})
            return {row.deployment: price_from_row(row._asdict()) for row in rows}

    def store_event_prices(self, prices: Iterable[Price]) -> None:
        """Record prices that no deployment of ours uses, so that receipts of demo events can
        name their source.
        """
        with self._database.begin() as connection:
            _store(connection, prices)

    def record_in_force(
        self, prices: Mapping[str, Price], *, policy_version: int, at: datetime
    ) -> None:
        """Record the price by which each deployment is charged from `at` on, if it changed; the
        price book gets no entry.
        """
        with self._database.begin() as connection:
            # Replicas pick up a policy at the same moment; only one of them writes.
            connection.execute(text(TableLock.DEPLOYMENT_PRICES.taken))
            elsewhere = (one for price in prices.values() for _, one in price.elsewhere)
            _store(connection, (*prices.values(), *elsewhere))
            for deployment, price in sorted(prices.items()):
                _date_price(connection, deployment, price, policy_version=policy_version, at=at)


def _store(connection: Connection, prices: Iterable[Price]) -> None:
    """Insert prices that are not stored yet, in the order of their ids: two transactions that add
    the same ones in different orders would deadlock.
    """
    for _, price in sorted({price.price_id: price for price in prices}.items()):
        connection.execute(text(_ADD_PRICE), price_to_row(price))


def price_to_row(price: Price) -> dict[str, str]:
    """Return the row of a price; rates are plain decimal strings."""
    rates = [rate_to_row(rate) for rate in price.rates]
    return {
        "price_id": price.price_id,
        "provider": price.provider,
        "model": price.model,
        "source": price.source,
        "rates": json.dumps(rates),
    }


def price_from_row(row: Mapping[str, Any]) -> Price:
    """Return the price of its stored row."""
    return Price(
        provider=row["provider"],
        model=row["model"],
        source=row["source"],
        rates=tuple(rate_from_row(rate) for rate in row["rates"]),
    )


def _date_price(
    connection: Connection, deployment: str, price: Price, *, policy_version: int, at: datetime
) -> None:
    """Record the price by which a deployment is charged from a moment on, unless its latest record
    has it or a newer policy.
    """
    entry = {
        "deployment": deployment,
        "price_id": price.price_id,
        "policy_version": policy_version,
        "at": at,
    }
    connection.execute(text(_DATE_PRICE), entry)


def rate_to_row(rate: Rate) -> dict[str, str | int]:
    """Return a rate as JSON. A standard rate has no `service_tier`."""
    row: dict[str, str | int] = {
        "kind": rate.kind.value,
        "usd_per_mtok": f"{rate.usd_per_mtok:f}",
        "from_input_tokens": rate.from_input_tokens,
    }
    return row if rate.service_tier is None else row | {"service_tier": rate.service_tier}


def rate_from_row(row: Mapping[str, Any]) -> Rate:
    """Return the rate that a stored JSON object states."""
    return Rate(
        kind=TokenKind(row["kind"]),
        usd_per_mtok=Decimal(row["usd_per_mtok"]),
        from_input_tokens=row["from_input_tokens"],
        service_tier=row.get("service_tier"),
    )


def entry_from_row(row: Row[*tuple[object, ...]]) -> BookEntry:
    """Return the price book's entry of a row, with its price."""
    price = None
    if row.price_id is not None:
        rates = tuple(rate_from_row(rate) for rate in row.rates)
        price = Price(
            provider=row.price_provider, model=row.price_model, source=row.price_source, rates=rates
        )
    daily = None if row.daily_since is None else DailyWindow(row.daily_since, row.daily_until)
    return BookEntry(
        entry_id=row.entry_id,
        origin=PriceOrigin(row.origin),
        provider=row.provider,
        model=row.model,
        deployment=row.deployment,
        dated=Dated(valid_from=row.valid_from, price=price, daily=daily),
        source=row.source,
        author=row.author,
        reason=row.reason,
        created_at=row.created_at,
        calibration=None if row.calibration is None else calibration_from_row(row.calibration),
    )


def calibration_to_row(measured: Calibration) -> dict[str, str | int | None]:
    """Return a calibration as JSON; decimals are plain strings."""
    cached = measured.cached_input_tok_per_s
    return {
        "model": measured.model,
        "gpu_type": measured.gpu_type,
        "gpu_count": measured.gpu_count,
        "input_tok_per_s": f"{measured.input_tok_per_s:f}",
        "cached_input_tok_per_s": None if cached is None else f"{cached:f}",
        "output_tok_per_s": f"{measured.output_tok_per_s:f}",
        "concurrency": measured.concurrency,
        "held_out_error": f"{measured.held_out_error:f}",
        "measured_on": measured.measured_on.isoformat(),
    }


def calibration_from_row(row: Mapping[str, Any]) -> Calibration:
    """Return the calibration that a stored JSON object states."""
    cached = row["cached_input_tok_per_s"]
    return Calibration(
        model=row["model"],
        gpu_type=row["gpu_type"],
        gpu_count=row["gpu_count"],
        input_tok_per_s=Decimal(row["input_tok_per_s"]),
        cached_input_tok_per_s=None if cached is None else Decimal(cached),
        output_tok_per_s=Decimal(row["output_tok_per_s"]),
        concurrency=row["concurrency"],
        held_out_error=Decimal(row["held_out_error"]),
        measured_on=date.fromisoformat(row["measured_on"]),
    )


def _read_book(connection: Connection, keys: Iterable[ModelKey]) -> PriceBook:
    """Return all overrides and calibrations, and the imported prices of these models of the
    list.
    """
    known = list(keys)
    wanted = {"providers": [key.provider for key in known], "models": [key.model for key in known]}
    return PriceBook(
        entries=tuple(entry_from_row(row) for row in connection.execute(text(_ENTRIES), wanted))
    )


def _add(connection: Connection, entries: Iterable[NewEntry], *, author: str, reason: str) -> int:
    """Insert entries into the price book, in the caller's transaction and in order; return their
    number.
    """
    added = list(entries)
    _store(connection, (one.dated.price for one in added if one.dated.price is not None))
    for entry in added:
        price, daily = entry.dated.price, entry.dated.daily
        row = {
            "origin": entry.origin.value,
            "provider": entry.provider,
            "model": entry.model,
            "deployment": entry.deployment,
            "valid_from": entry.dated.valid_from,
            "daily_since": daily and daily.since,
            "daily_until": daily and daily.until,
            "price_id": price and price.price_id,
            "source": entry.source or (price.source if price else "list"),
            "author": author,
            "reason": reason,
            "calibration": entry.calibration and json.dumps(calibration_to_row(entry.calibration)),
        }
        connection.execute(text(_ADD_ENTRY), row)
    return len(added)
