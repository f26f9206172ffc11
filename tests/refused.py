"""Refused requests as a gateway counts and writes them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from gateway.services.request.refusals import Refusals
from gateway.storage.budgets.refusals import RefusalFolder, RefusalStore
from gateway.storage.postgres.database import Database
from tests.fakes import FakeClock


def refuse(
    database: Database,
    at: datetime,
    *,
    team: str,
    code: str,
    times: int,
    rules: Sequence[str] = (),
    data_class: str = "internal",
    project: str = "",
    key_id: str = "",
) -> None:
    """Count requests of a team on route `assistant` that were refused at a moment."""
    clock = FakeClock()
    clock.advance((at - clock.now()).total_seconds())
    with tempfile.TemporaryDirectory(prefix="tollgate-refused-") as folder:
        refusals = Refusals(
            RefusalStore(database), clock, journal_id=uuid4(), files=RefusalFolder(Path(folder))
        )
        for _ in range(times):
            refusals.note(
                team,
                code,
                rules=tuple(rules),
                route="assistant",
                data_class=data_class,
                project=project,
                key_id=key_id,
            )
        asyncio.run(refusals.write())
