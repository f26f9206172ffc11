"""Records probes of engines and their tokens in Postgres, so that no attempt is charged for them;
sends no probe.

The engines' counters include these tokens.
"""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from gateway.domain.deployments.engine_counters import Tokens
from gateway.storage.postgres.database import Database

_SENT = (
    "INSERT INTO tollgate.engine_probes (probe_id, deployment, sent_at) VALUES (:probe_id, "
    ":deployment, :at)"
)
_ENDED = """
UPDATE tollgate.engine_probes SET ended_at = :at, prompt_tokens = :prompt, generation_tokens =
  :generation
WHERE probe_id = :probe_id
"""


class EngineProbeNotes:
    """A store that records each probe before it is sent, and its tokens when they are known."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def sent(self, probe_id: UUID, deployment: str, *, at: datetime) -> None:
        """Record that a probe is about to be sent. Raises `DatabaseUnavailable`."""
        with self._database.begin() as connection:
            connection.execute(
                text(_SENT), {"probe_id": probe_id, "deployment": deployment, "at": at}
            )

    def ended(self, probe_id: UUID, made: Tokens | None, *, at: datetime) -> None:
        """Record the probe's end and its tokens; None means unknown tokens. Raises
        `DatabaseUnavailable`.
        """
        figures = {
            "prompt": None if made is None else made.prompt,
            "generation": None if made is None else made.generation,
        }
        with self._database.begin() as connection:
            connection.execute(text(_ENDED), {"probe_id": probe_id, "at": at, **figures})
