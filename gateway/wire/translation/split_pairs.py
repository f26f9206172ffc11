"""Joins the halves of a surrogate pair that come in two pieces of one text, in neutral events.

Servers that count UTF-16 units (JavaScript's) cut an emoji between two deltas: `"\\ud83d"`, then
`"\\ude00"`. Neither half is a text, but both together are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from gateway.wire.surrogates import StandIns
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finished,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
)
from gateway.wire.translation.conversation import NO_JSON

_Piece = TextPiece | RefusalPiece | ThoughtPiece | CallArguments
_Place = tuple[type[_Piece], int, int]  # its kind, its choice, its call


class SplitPairs(Struct):
    """Keeps a first half back until the next piece of its text; without one it is U+FFFD."""

    _waiting: dict[_Place, _Piece] = {}

    def joined(
        self, events: Sequence[AnswerEvent], stand_ins: StandIns | None
    ) -> Sequence[AnswerEvent]:
        """Return the events with whole pairs, of a payload that was read with these stand-ins."""
        if stand_ins is None and not self._waiting:
            return events
        return [one for event in events for one in self._joined(event, stand_ins)]

    def _joined(self, event: AnswerEvent, stand_ins: StandIns | None) -> Iterator[AnswerEvent]:
        """Yield an event with whole pairs, behind the halves that nothing completes."""
        if isinstance(event, TextPiece | RefusalPiece | ThoughtPiece | CallArguments):
            place = _place_of(event)
            yield from self._left(event)
            before = self._waiting.pop(place, None)
            text = event.text if stand_ins is None else stand_ins.halves_in(event.text)
            text = text if before is None else before.text + text
            is_proved = isinstance(event, ThoughtPiece) and event.signature
            if text and "\ud800" <= text[-1] <= "\udbff" and not is_proved:
                self._waiting[place] = msgspec.structs.replace(_bare(event), text=text[-1])
                text = text[:-1]
            event = msgspec.structs.replace(event, text=_whole(text))
            if isinstance(event, TextPiece) and event.logprobs is not NO_JSON and stand_ins:
                event = msgspec.structs.replace(event, logprobs=stand_ins.replaced(event.logprobs))
            yield event
            return
        yield from self._left(event)
        if isinstance(event, CallStarted) and stand_ins is not None:
            name, call_id = (
                _whole(stand_ins.halves_in(one)) for one in (event.name, event.call_id)
            )
            event = msgspec.structs.replace(event, name=name, call_id=call_id)
        elif isinstance(event, Failed) and stand_ins is not None:
            message = _whole(stand_ins.halves_in(event.message))
            event = msgspec.structs.replace(event, message=message)
        yield event

    def _left(self, event: AnswerEvent) -> Iterator[AnswerEvent]:
        """Yield U+FFFD for each half whose text an event ends: other content of its choice ends all
        texts except the arguments of calls, and an end ends everything.
        """
        if not self._waiting:
            return
        if isinstance(event, Finished | Failed | Ended):
            ended = [*self._waiting]
        elif isinstance(event, TextPiece | RefusalPiece | ThoughtPiece | CallStarted):
            own = None if isinstance(event, CallStarted) else _place_of(event)
            ended = [
                place
                for place in self._waiting
                if place != own and place[0] is not CallArguments and place[1] == event.choice
            ]
        else:
            return
        for place in ended:
            yield msgspec.structs.replace(self._waiting.pop(place), text="\ufffd")


def _place_of(piece: _Piece) -> _Place:
    """Return the text that a piece belongs to."""
    return type(piece), piece.choice, piece.call if isinstance(piece, CallArguments) else 0


def _bare(piece: _Piece) -> _Piece:
    """Return a piece without its other members."""
    if isinstance(piece, TextPiece):
        return msgspec.structs.replace(piece, logprobs=NO_JSON)
    return ThoughtPiece(choice=piece.choice) if isinstance(piece, ThoughtPiece) else piece


def _whole(text: str) -> str:
    """Return a text with its halves joined to pairs, and U+FFFD for each that has no other half."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
