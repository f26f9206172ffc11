"""Exchanges one worker's asks for the rate windows and slots that all workers share, in one round
trip and one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import psycopg

from gateway.domain.budgets.limits import LimitAnswer, LimitAsk
from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.sessions import Sessions

# Seconds; far longer than any request waits. This data need not survive a crash, so no commit waits
# for the disk.
LIMIT_S = 1.0
_PREPARE = "SET statement_timeout = '1s'; SET lock_timeout = '1s'; SET synchronous_commit = off"
_EXCHANGE = "SELECT tollgate.exchange_units(%s, %s, %s::jsonb)::text"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LimitAnswer)


class LimitWindows:
    """One worker's connection to the shared windows."""

    def __init__(self, database: Database) -> None:
        """Take the database; the first exchange opens the connection."""
        self._sessions = Sessions(database, prepare=_PREPARE, limit_s=LIMIT_S)

    def exchange(self, worker: UUID, number: int, asks: Sequence[LimitAsk]) -> LimitAnswer:
        """Take from the shared limits, as far as they allow, all that a worker asks for at once;
        the same number again gives the same answer and takes nothing.

        Only one call may run at a time. Raises `DatabaseUnavailable` if the outcome is unknown.
        """
        try:
            ((answer,),) = self._sessions.rows(
                _EXCHANGE, (worker, number, _encoder.encode(asks).decode())
            )
        except psycopg.Error as error:
            raise DatabaseUnavailable(
                f"Postgres does not count limits now: {error} ({error.sqlstate})."
            ) from error
        return _decoder.decode(answer)

    def close(self) -> None:
        """Close the connection. A later exchange opens it again."""
        self._sessions.close()
