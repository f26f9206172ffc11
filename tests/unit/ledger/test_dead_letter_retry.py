"""Retrying dead letters: in their order, and resolved only once they are booked."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from gateway.domain.ledger.records import DeadLetter, Written
from gateway.services.ledger.dead_letters import BOOKED, KNOWN, retry
from tests.factories import NOW

LETTERS = [
    DeadLetter(
        letter_id=UUID(int=n), journal_id=None, recorded_at=NOW, error="refused", document=document
    )
    for n, document in enumerate((b"new", b"dead", b"known", b"conflict"))
]
WRITTEN = {
    b"new": Written(inserted=1),
    b"dead": Written(dead=1),
    b"known": Written(known=1),
    b"conflict": Written(conflicts=1),
}


@dataclass
class Desk:
    """Letters and the ledger; `steps` records the calls to either."""

    steps: list[tuple[str, object]] = field(default_factory=list)

    def waiting(self) -> list[DeadLetter]:
        return LETTERS

    def close(self, letter_id: UUID, *, resolution: str) -> bool:
        self.steps.append((resolution, letter_id.int))
        return True

    def book_letter(self, letter: DeadLetter) -> Written:
        self.steps.append(("write", letter.document))
        return WRITTEN[letter.document]


def test_a_retry_books_first_and_a_second_refusal_stays() -> None:
    """Cut off between the two it is tried once more, and is known then: the other way round it
    would be lost.
    """
    desk = Desk()
    tried = list(retry(desk, desk))
    assert [one.resolution for one in tried] == [BOOKED, None, KNOWN, KNOWN]
    assert desk.steps == [
        ("write", b"new"),
        (BOOKED, 0),
        ("write", b"dead"),
        ("write", b"known"),
        (KNOWN, 2),
        ("write", b"conflict"),
        (KNOWN, 3),
    ]


def test_one_alone_is_tried_alone() -> None:
    """Whoever names one has looked at that one."""
    desk = Desk()
    assert [one.letter for one in retry(desk, desk, only=UUID(int=2))] == [LETTERS[2]]
    assert desk.steps == [("write", b"known"), (KNOWN, 2)]
