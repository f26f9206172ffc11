"""Writes neutral answer events as a chat answer for the caller, streamed or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct

from gateway.domain.request.request import RequestBody
from gateway.wire.dialect import AnswerPart
from gateway.wire.sse import EVENT_STREAM
from gateway.wire.translation.answer_events import AnswerEvent


class ChatWriter(Struct):
    """Writes a chat's answer to one request, with room for its cost beside the usage."""

    content_type: ClassVar[str] = EVENT_STREAM
    read: RequestBody

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""
        raise NotImplementedError

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
        raise NotImplementedError
