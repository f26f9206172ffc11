"""Writes each worker's counts of refused requests by hour to Postgres, and keeps on this machine's
disk those that Postgres does not have yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
from sqlalchemy import text

from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.storage.postgres.database import Database

_WRITE = """
INSERT INTO tollgate.refusal_counts AS known (journal_id, hour, team, project, key_id, route,
  data_class, code, rules, rule, requests)
VALUES (:journal_id, :hour, :team, :project, :key_id, :route, :data_class, :code, :rules, :rule,
  :requests)
ON CONFLICT (hour, team, project, key_id, route, data_class, code, rules, rule, journal_id)
    DO UPDATE SET requests = greatest(known.requests, excluded.requests)
"""
_KEPT = list[tuple[RefusalCountKey, int]]


class RefusalStore:
    """A store that writes a worker's counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        """Set a worker's totals of refused requests so far; a repetition changes nothing. Raises
        `DatabaseUnavailable`.
        """
        rows = [
            refused._asdict()
            | {"journal_id": journal_id, "rules": list(refused.rules), "requests": requests}
            for refused, requests in sorted(counts.items())
        ]
        with self._database.begin() as connection:
            connection.execute(text(_WRITE), rows)


class RefusalFolder:
    """One file of counts for each journal, not flushed: a kill keeps it, a power cut may not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, journal_id: UUID, counts: Mapping[RefusalCountKey, int]) -> None:
        """Replace a journal's file in one step. Raises `OSError`."""
        path = self._path(journal_id)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_bytes(msgspec.json.encode([*counts.items()]))
        new.replace(path)

    def forget(self, journal_id: UUID) -> None:
        """Remove a journal's file, if there is one."""
        self._path(journal_id).unlink(missing_ok=True)

    def left(self) -> Iterator[tuple[UUID, Mapping[RefusalCountKey, int]]]:
        """Yield the counts of each file; one that cannot be read is passed over."""
        for path in sorted(self._folder.glob("*.json")):
            with suppress(OSError, ValueError):
                yield (
                    UUID(path.stem),
                    dict(msgspec.json.decode(path.read_bytes(), type=_KEPT)),
                )

    def _path(self, journal_id: UUID) -> Path:
        """Return the file of a journal."""
        return self._folder / f"{journal_id}.json"
