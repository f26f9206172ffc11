"""The windows and slots that all workers share: one question, one round trip, one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import psycopg

from gateway.domain.budgets.limits import LimitAnswer, LimitAsk
from gateway.errors import DatabaseUnavailable
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.sessions import Sessions

# A second is far beyond what any request waits for. Nothing here outlives a crash, so no commit
# waits for the disk.
LIMIT_S = 1.0
_PREPARE = "SET statement_timeout = '1s'; SET lock_timeout = '1s'; SET synchronous_commit = off"
_EXCHANGE = "SELECT tollgate.exchange_units(%s, %s, %s::jsonb)::text"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LimitAnswer)


class LimitWindows:
    """One worker's connection to the windows."""

    def __init__(self, database: Database) -> None:
        """Nothing is opened before the first exchange."""
        self._sessions = Sessions(database, prepare=_PREPARE, limit_s=LIMIT_S)

    def exchange(self, worker: UUID, number: int, asks: Sequence[LimitAsk]) -> LimitAnswer:
        """Ask for all limits of a worker at once; the same number again gives the same answer and
        takes nothing.

        One call at a time. Raises `DatabaseUnavailable`: then it is not known whether it was done.
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
        """Give the connection back. A later exchange opens it again."""
        self._sessions.close()
