"""The windows and slots that all workers share: one question, one round trip, one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import msgspec
import psycopg

from gateway.domain.limits import Answer, Ask
from gateway.errors import DatabaseUnavailable
from gateway.storage.database import Database
from gateway.storage.writing import Session

# A second is far beyond what any request waits for. Nothing here outlives a crash, so no commit waits for the disk.
_PREPARE = "SET statement_timeout = '1s'; SET lock_timeout = '1s'; SET synchronous_commit = off"
_EXCHANGE = "SELECT tollgate.exchange_units(%s, %s, %s::jsonb)::text"

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Answer)


class LimitWindows:
    """One worker's connection to the windows, kept between exchanges and replaced when it breaks.

    Without a transaction block: the server commits with its answer, and no row stays locked while a worker is busy.
    """

    def __init__(self, database: Database) -> None:
        """Nothing is opened before the first exchange."""
        self._database = database
        self._session: Session | None = None

    def exchange(self, worker: UUID, number: int, asks: Sequence[Ask]) -> Answer:
        """Ask for all limits of a worker at once; the same number again gives the same answer and takes nothing.

        One call at a time. Raises `DatabaseUnavailable`: then it is not known whether it was done.
        """
        question = (worker, number, _encoder.encode(asks).decode())
        try:
            with self._database.explained():
                return self._ask_again_where_lost(question)
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"Postgres does not count limits now: {error} ({error.sqlstate}).") from error

    def interrupt(self) -> None:
        """Make an exchange that hangs in another thread fail."""
        session = self._session
        if session is not None:
            session.interrupt()

    def close(self) -> None:
        """Give the connection back. A later exchange opens it again."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _ask_again_where_lost(self, question: tuple[UUID, int, str]) -> Answer:
        session = self._session
        if session is not None:
            try:
                return self._ask(session, question)
            except psycopg.OperationalError:
                # A server that was restarted since is not worth an error: once more, on a new connection.
                if session.is_interrupted or not session.connection.closed:
                    raise
        return self._ask(self._opened(), question)

    def _ask(self, session: Session, question: tuple[UUID, int, str]) -> Answer:
        try:
            row = session.connection.execute(_EXCHANGE, question).fetchone()
        except psycopg.Error:
            if session.connection.closed or session.is_interrupted:
                self.close()
            raise
        assert row is not None, "a function has a result"
        return _decoder.decode(row[0])

    def _opened(self) -> Session:
        session = Session(self._database)
        session.connection.autocommit = True
        session.connection.execute(_PREPARE)
        self._session = session
        return session
