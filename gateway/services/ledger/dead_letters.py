"""Tries to book dead letters (records that the ledger refused) again, for `tollgate reconcile
retry`; no background job does this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.domain.ledger.records import DeadLetter, Written

BOOKED, KNOWN = "booked when it was tried again", "was in the ledger already"


class DeadLetterQueue(Protocol):
    """The dead letters: records that the ledger refused."""

    def waiting(self) -> list[DeadLetter]:
        """Return the unresolved dead letters, oldest first."""

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        """Record a dead letter's resolution; return False if it already had one."""


class LetterBooking(Protocol):
    """The booking of dead letters in the ledger."""

    def book_letter(self, letter: DeadLetter) -> Written:
        """Book a dead letter's document once, from the money leased for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """The result of retrying one dead letter; `resolution` is None if it was refused again."""

    letter: DeadLetter
    resolution: str | None


def retry(
    letters: DeadLetterQueue, ledger: LetterBooking, *, only: UUID | None = None
) -> Iterator[Retried]:
    """Try to book every waiting dead letter in the ledger, or only the letter `only`.

    An interrupted run can be repeated: nothing is booked twice.

    Raises `DatabaseUnavailable`.
    """
    for letter in letters.waiting():
        if only not in (None, letter.letter_id):
            continue
        written = ledger.book_letter(letter)
        resolution = None if written.dead else BOOKED if written.inserted else KNOWN
        if resolution is not None:
            letters.close(letter.letter_id, resolution=resolution)
        yield Retried(letter=letter, resolution=resolution)
