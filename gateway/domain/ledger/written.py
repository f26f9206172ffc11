"""The result of writing a batch of documents to the ledger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Every document of a batch is in exactly one of these counts.

    `known` were there already. `conflicts` were there with other content, for the first time: an
    operator should look. `dead` cannot be booked and became dead letters.
    """

    inserted: int = 0
    known: int = 0
    conflicts: int = 0
    dead: int = 0

    def __add__(self, other: Written) -> Written:
        """Add the counts of another part of the batch."""
        return Written(
            inserted=self.inserted + other.inserted,
            known=self.known + other.known,
            conflicts=self.conflicts + other.conflicts,
            dead=self.dead + other.dead,
        )
