"""Ledger 1.11: one odd entry in the journal root prevented the adoption of all left journals,
and locked them.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from gateway.storage.journal import layout
from gateway.storage.ledger.event_journal import LeftJournals, open_own


@pytest.fixture
def left(tmp_path: Path) -> UUID:
    """Return the id of a journal whose worker is gone."""
    made = open_own(
        tmp_path,
        max_bytes=32 * 2**20,
        syncs=False,
        on_failed_sync=lambda error: None,
        on_synced=lambda seconds: None,
    )
    made.journal.close(is_drained=False)
    return made.journal_id


@pytest.mark.parametrize("first", [True, False])
def test_a_file_named_like_a_journal_keeps_no_other_from_being_adopted(
    tmp_path: Path, left: UUID, first: bool
) -> None:
    """The odd file comes before or after the good journal. It is reported once, and the good
    journal is adopted at once.
    """
    odd = tmp_path / str(UUID(int=0 if first else 2**128 - 1))
    odd.write_bytes(b"")
    journals = LeftJournals(tmp_path)
    with capture_logs() as logs:
        assert [journal.journal_id for journal in journals.adopt()] == [left]
        assert journals.adopt() == []
    logged = [line for line in logs if line["event"] == "journal_not_adopted"]
    assert [line["path"] for line in logged] == [str(odd)]


def test_a_journal_that_cannot_be_read_is_let_go(tmp_path: Path, left: UUID) -> None:
    """The process that failed on it kept its lock open, so even a removed or repaired journal
    looked in use.
    """
    bad = tmp_path / str(UUID(int=1))
    (bad / "spare-1.segment").mkdir(parents=True)  # a folder in place of a file
    journals = LeftJournals(tmp_path)
    assert [journal.journal_id for journal in journals.adopt()] == [left]
    lock = layout.take_lock(bad)
    assert lock is not None, "nobody holds it"


def test_a_root_that_cannot_be_opened_fails_no_round_of_the_writer(tmp_path: Path) -> None:
    """The gateway's own journal is already open, and its events must be written."""
    (tmp_path / ".lock").mkdir()
    with capture_logs() as logs:
        assert LeftJournals(tmp_path).adopt() == []
    assert [line["event"] for line in logs] == ["journal_not_adopted"]
