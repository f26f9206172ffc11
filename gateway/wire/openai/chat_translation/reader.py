"""Reads an upstream's chat answer, streamed or whole, into neutral answer events."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.wire.dialect import AnswerPart
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import ChatStream
from gateway.wire.translation.answer_events import AnswerEvent


class ChatReader(Struct):
    """Reads a chat's stream by way of `ChatStream`, which records usage, end and text."""

    stream: ChatStream

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""
        return self.stream.observed

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        raise NotImplementedError

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        raise NotImplementedError


def chat_events(answer: AnswerPart, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole chat answer, which `observed` has metered."""
    raise NotImplementedError
