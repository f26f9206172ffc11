"""Booking what was set aside: records that the tables could not hold when they came, and may hold
now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.domain.ledger.dead_letter import DeadLetter
from gateway.domain.ledger.written import Written

BOOKED, KNOWN = "booked when it was tried again", "was in the ledger already"


class Letters(Protocol):
    """Where they wait; `storage.ledger.dead_letters.DeadLetters` is one."""

    def waiting(self) -> list[DeadLetter]:
        """Those nobody has dealt with, in the order in which they came.

        Raises `DatabaseUnavailable`.
        """

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        """Note what became of one; False where somebody had. Raises `DatabaseUnavailable`."""


class Documents(Protocol):
    """Takes documents of events; `storage.ledger.ledger.Ledger` does."""

    def book_letter(self, letter: DeadLetter) -> Written:
        """Book its document once, out of what was leased for it. Raises `DatabaseUnavailable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """What came of one: `resolution` is None where it was refused again."""

    letter: DeadLetter
    resolution: str | None


def retry(letters: Letters, ledger: Documents, *, only: UUID | None = None) -> Iterator[Retried]:
    """Try to book each that waits, or one alone.

    Cut off in between it can be repeated: nothing is booked twice.

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
