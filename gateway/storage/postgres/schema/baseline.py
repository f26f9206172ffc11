"""Refuses a database of an earlier revision than the baseline, which cannot be upgraded.

Apart from `migrations`, whose Alembic a serving process does not load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlalchemy import text

from gateway.errors import BadUsage
from gateway.storage.postgres.database import Database

BASELINE = "20261129_1000"  # the id of `migrations/versions/2026-11-29-1000_baseline.py`
LAST_WITH_STEPS = "d92c3ad7"  # the last commit with the 48 steps that the baseline replaces
_DATED = re.compile(r"\d{8}_\d{4}")  # an id is a moment, so ids have the order of their revisions


def refuse_older(revisions: Iterable[str]) -> None:
    """Raise `BadUsage` if one of a database's revisions is older than the baseline."""
    for revision in revisions:
        if _DATED.fullmatch(revision) and revision < BASELINE:
            raise BadUsage(
                f"This database is at revision {revision}, which is older than {BASELINE}, the "
                "first one that this Tollgate can upgrade. Nothing was changed. Upgrade it with "
                f"commit {LAST_WITH_STEPS} (tollgate db upgrade), then with this version; or "
                "export what you need from it and begin a new database."
            )


def require_baseline(database: Database) -> None:
    """Raise `BadUsage` if the database is older than the baseline."""
    with database.begin() as connection:
        found = connection.execute(text("SELECT version_num FROM tollgate.alembic_version"))
        refuse_older(found.scalars())
