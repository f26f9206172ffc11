"""A translated stream without end: the last event of a response has the whole answer again, and a
chat keeps a thought until its signature, so each of them filled the memory.
"""

from __future__ import annotations

import pytest

from gateway.domain.operation import Operation
from gateway.wire.callers import writer_for
from gateway.wire.dialect import EventTooLarge
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallStarted,
    Started,
    TextPiece,
    ThoughtPiece,
)
from tests.attacks.odd_answers import ASKED, CALL

PIECE = "a" * 2**20
MANY = 200_000


@pytest.mark.parametrize(
    ("operation", "piece", "most"),
    [
        (Operation.RESPONSES, TextPiece(text=PIECE), 33),
        (Operation.RESPONSES, ThoughtPiece(text=PIECE), 33),
        (Operation.RESPONSES, CallStarted(call=0, call_id="c", name="f"), MANY),
        (Operation.CHAT, ThoughtPiece(text=PIECE), 33),
    ],
    ids=["text", "thoughts", "calls", "thoughts of a chat"],
)
def test_what_is_kept_has_an_end(operation: Operation, piece: AnswerEvent, most: int) -> None:
    writer = writer_for(ASKED[operation], CALL)
    writer.write([Started(answer_id="x")])
    with pytest.raises(EventTooLarge):
        list(map(writer.write, [[piece]] * most))
