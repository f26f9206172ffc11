"""Writes the dated rates of display currencies to Postgres."""

from __future__ import annotations

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from gateway.domain.allocation.currency import NewRate
from gateway.errors import OperatorError
from gateway.storage.postgres.database import Database

_ADD = """
INSERT INTO tollgate.currency_rates (currency, first_day, usd_per_unit, source)
VALUES (:currency, :first_day, :usd_per_unit, :source)
"""


class CurrencyStore:
    """A store of currency rates. An entry is never changed."""

    def __init__(self, database: Database) -> None:
        """Take the database; no connection is opened yet."""
        self._database = database

    def add(self, rate: NewRate) -> None:
        """Add a rate from a day on; of several from one day the newest counts.

        Raises `OperatorError` if a closed month has a rate of this currency there.
        """
        row = {
            "currency": rate.currency,
            "first_day": rate.first_day,
            "usd_per_unit": rate.usd_per_unit,
            "source": rate.source,
        }
        try:
            with self._database.begin(reason=rate.source) as connection:
                connection.execute(text(_ADD), row)
        except IntegrityError as refused:
            cause = refused.orig
            name = cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None
            if name != "closed_months_keep_their_rates":
                raise
            raise OperatorError(
                f"A closed month has its rate of {rate.currency}, which {rate.first_day} would "
                "change. Nothing was added. Give a --from after the last closed month (tollgate "
                "report months)."
            ) from refused
