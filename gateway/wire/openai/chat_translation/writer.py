"""Writes neutral answer events as a chat answer for the caller, streamed or whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from gateway.domain.providers.table import OPENAI_TIERS
from gateway.domain.request.request import RequestBody
from gateway.wire.dialect import AnswerPart, UnpricedPart
from gateway.wire.openai.answer.last_event import DONE
from gateway.wire.openai.chat_translation.choice_writer import ChoiceDeltas, ChoiceMessage
from gateway.wire.openai.chat_translation.usage_members import chat_usage, with_usage
from gateway.wire.openai.error import error_body, error_event
from gateway.wire.sse import EVENT_STREAM
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    Ended,
    Failed,
    ShownText,
    Started,
    Used,
)
from gateway.wire.translation.call_ids import CallIds

_encode = msgspec.json.encode
_PREFIX = "chatcmpl-"


class ChatWriter(Struct):
    """Writes a chat's answer to one request, with a placeholder for its cost beside the usage."""

    content_type: ClassVar[str] = EVENT_STREAM
    read: RequestBody
    own: Started = Started()  # for an upstream that reports no id or time
    _started: Started = Started()
    _choices: dict[int, ChoiceDeltas] = {}
    _ids: CallIds = msgspec.field(default_factory=CallIds)
    _shown: ShownText = msgspec.field(default_factory=ShownText)

    def __post_init__(self) -> None:
        """Begin with the request's own id and time: some streams have no start."""
        self._started = self.own

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""
        return [part for event in self._told_apart(events) for part in self._parts(event)]

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
        used: Used | None = None
        messages: dict[int, ChoiceMessage] = {}
        for event in self._told_apart(events):
            if isinstance(event, Failed):
                return error_body(event.code, event.message)
            if isinstance(event, Started):
                self._started = event.or_else(self.own)
            elif isinstance(event, Used):
                used = event
            elif not isinstance(event, Ended):
                number = event.choice
                messages.setdefault(number, ChoiceMessage(number=number)).add(event)
        choices = [message.choice() for _, message in sorted(messages.items())]
        head = self._head("chat.completion", used) | {"choices": choices}
        return _encode(head) if used is None else self._priced(head, used, around=(b"", b""))

    def _told_apart(self, events: Sequence[AnswerEvent]) -> Iterator[AnswerEvent]:
        """Yield the events with ids that tell calls apart."""
        for event in events:
            self._shown.add(event)
            yield from self._ids.events(event, read=self.read, own=self.own)

    def _parts(self, event: AnswerEvent) -> Iterator[AnswerPart]:
        """Yield the chunks of one event."""
        if isinstance(event, Started):
            self._started = event.or_else(self.own)
            yield self._chunk([self._choice(0).opening()])
        elif isinstance(event, Used):
            if self.read.facts.wants_usage:
                head = self._head("chat.completion.chunk", event) | {"choices": []}
                yield self._priced(head, event, around=(b"data: ", b"\n\n"))
        elif isinstance(event, Failed):
            yield error_event(event.code, event.message, is_responses=False)
        elif isinstance(event, Ended):
            yield b"data: " + DONE + b"\n\n"
        else:
            choice = self._choice(event.choice).piece(event)
            if choice is not None:
                yield self._chunk([choice])

    def _choice(self, number: int) -> ChoiceDeltas:
        """Return the writer of one choice."""
        return self._choices.setdefault(number, ChoiceDeltas(number=number))

    def _chunk(self, choices: list[dict[str, Any]]) -> bytes:
        """Return one chunk with content."""
        chunk = self._head("chat.completion.chunk", None) | {"choices": choices}
        if self.read.facts.wants_usage:  # OpenAI's chunks have it then, null until the last
            chunk["usage"] = None
        return b"data: " + _encode(chunk) + b"\n\n"

    def _head(self, kind: str, used: Used | None) -> dict[str, Any]:
        """Return the members that an answer and each of its chunks begin with."""
        answer_id = self._started.answer_id
        head: dict[str, Any] = {
            "id": answer_id if answer_id.startswith(_PREFIX) else _PREFIX + answer_id,
            "object": kind,
            "created": self._started.created_s,
            "model": self.read.facts.model,
        }
        if used is not None and used.service_tier in OPENAI_TIERS:
            head["service_tier"] = used.service_tier
        return head

    def _priced(
        self, head: dict[str, Any], used: Used, *, around: tuple[bytes, bytes]
    ) -> UnpricedPart:
        """Return an answer or a chunk with its usage as the last member, and a placeholder for the
        cost in it.

        `around` are the bytes before and after it in the stream.
        """
        usage = chat_usage(used.usage, self.read.facts, text_bytes=self._shown.size_bytes)
        return with_usage(around[0] + _encode(head)[:-1], usage, used.usage, b"}" + around[1])
