"""Ledger 1.11: one odd entry below the journal root kept all left journals from being adopted, and
locked them.
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
    """A journal whose worker is gone."""
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
    """It comes before or after the good one; it is reported once, and the good one is adopted at
    the first try.
    """
    odd = tmp_path / str(UUID(int=0 if first else 2**128 - 1))
    odd.write_bytes(b"")
    journals = LeftJournals(tmp_path)
    with capture_logs() as logs:
        assert [journal.journal_id for journal in journals.adopt()] == [left]
        assert journals.adopt() == []
    said = [line for line in logs if line["event"] == "journal_not_adopted"]
    assert [line["path"] for line in said] == [str(odd)]


def test_a_journal_that_cannot_be_read_is_let_go(tmp_path: Path, left: UUID) -> None:
    """Its lock stayed open in the process that had failed on it: removed or fixed, it still looked
    held.
    """
    bad = tmp_path / str(UUID(int=1))
    (bad / "spare-1.segment").mkdir(parents=True)  # in place of a file
    journals = LeftJournals(tmp_path)
    assert [journal.journal_id for journal in journals.adopt()] == [left]
    lock = layout.take_lock(bad)
    assert lock is not None, "nobody holds it"


def test_a_root_that_cannot_be_opened_fails_no_round_of_the_writer(tmp_path: Path) -> None:
    """Our own journal is open already, and its events must be written."""
    (tmp_path / ".lock").mkdir()
    with capture_logs() as logs:
        assert LeftJournals(tmp_path).adopt() == []
    assert [line["event"] for line in logs] == ["journal_not_adopted"]
