"""Ledger section 2, bullet 9: an exception in one step of the stop skipped the writer's last write
and the journal's end.

The tests cannot run on the audited commit, which has no `stop` function to call.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from gateway.services.request.abandoned import AbandonedAnswers
from gateway.services.request.refusals import Refusals
from gateway.serving.worker import Worker
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.postgres.database import Database
from tests.attacks.test_supervisor_lets_no_loop_die import serving


class Broken:
    """A part whose end fails."""

    async def close(self) -> None:
        raise ZeroDivisionError("a step of the stop")


def with_broken_steps(parts: Worker) -> Worker:
    """Return the same parts, except that two of them cannot end."""
    return replace(
        parts,
        dispatch=replace(parts.dispatch, abandoned=cast(AbandonedAnswers, Broken())),
        admission_parts=replace(parts.admission_parts, refusals=cast(Refusals, Broken())),
    )


async def test_a_step_that_fails_skips_no_later_one(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The journal is drained and removed, so leases and claims are free at once instead of at
    the next start.
    """
    with pytest.raises(ZeroDivisionError):
        async with serving(database_url, tmp_path, stopped_as=with_broken_steps):
            pass
    (journal,) = JournalTable(database).all()
    assert journal.state == "drained"
    assert not any((tmp_path / "journal").glob("*-*")), "nothing is left for the next start"
