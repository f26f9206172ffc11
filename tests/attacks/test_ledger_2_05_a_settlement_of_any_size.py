"""Ledger 2, bullet 5: a usage report of thousands of digits did not fit in its intent's
reservation.
"""

from __future__ import annotations

from pathlib import Path

from gateway.domain.pricing.tokens import MAX_STORED_COUNT, TokenUsage
from gateway.storage.ledger.documents import decode_event
from gateway.storage.ledger.event_journal import OwnJournal
from tests.journal.factories import a_journal
from tests.storage.factories import event
from tests.storage.ledger.test_event_journal import intent


async def test_counts_of_thousands_of_digits_are_written_down_cut(tmp_path: Path) -> None:
    """The journal promises that a settlement never fails, but `RecordTooLarge` escaped after the
    event was made.
    """
    own = OwnJournal(a_journal(tmp_path / "journal", segment_bytes=512 * 1024, max_bytes=2**20))
    names = TokenUsage.__struct_fields__
    reported = TokenUsage(
        **{name: 10**4000 if at % 2 else -(10**4000) for at, name in enumerate(names)}
    )
    await own.intend(intent())
    document = own.settle(event(reported=reported, is_suspect=True))
    kept = decode_event(document).reported
    assert kept == TokenUsage(
        **{name: MAX_STORED_COUNT if at % 2 else -MAX_STORED_COUNT for at, name in enumerate(names)}
    )
    own.journal.close(is_drained=False)
