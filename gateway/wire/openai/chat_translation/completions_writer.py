"""Writes neutral answer events of one choice as a completions answer for the caller, streamed or
whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from gateway.domain.request.request import RequestBody
from gateway.wire.dialect import AnswerPart
from gateway.wire.openai.answer.last_event import DONE
from gateway.wire.openai.chat_translation.usage_members import chat_usage, with_usage
from gateway.wire.openai.error import error_event
from gateway.wire.sse import EVENT_STREAM
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    Ended,
    Failed,
    Finished,
    ShownText,
    Started,
    TextPiece,
    Used,
)

_encode = msgspec.json.encode
_PREFIX = "cmpl-"


class CompletionsWriter(Struct):
    """Writes a completion's answer to one request, with a placeholder for its cost beside the
    usage.
    """

    content_type: ClassVar[str] = EVENT_STREAM
    read: RequestBody
    own: Started = Started()  # for an upstream that reports no id or time
    _started: Started = Started()
    _shown: ShownText = msgspec.field(default_factory=ShownText)

    def __post_init__(self) -> None:
        """Begin with the request's own id and time: some streams have no start."""
        self._start(self.own)

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""
        return [part for event in events for part in self._parts(event)]

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
        texts, finish = [], None
        used: Used | None = None
        for event in events:
            self._shown.add(event)
            match event:
                case Started():
                    self._start(event)
                case TextPiece():
                    texts.append(event.text)
                case Finished():
                    finish = event.finish.value
                case Used():
                    used = event
        answer = _encode(self._head() | {"choices": [_choice("".join(texts), finish)]})
        if used is None:
            return answer
        return with_usage(answer[:-1], self._usage(used), used.usage, b"}")

    def _start(self, event: Started) -> None:
        """Keep the answer's id and time."""
        self._started = event.or_else(self.own)

    def _parts(self, event: AnswerEvent) -> Iterator[AnswerPart]:
        """Yield the chunks of one event."""
        self._shown.add(event)
        match event:
            case Started():
                self._start(event)
            case TextPiece():
                yield self._chunk(_choice(event.text, None))
            case Finished():
                yield self._chunk(_choice("", event.finish.value))
            case Used() if self.read.facts.wants_usage:
                before = b"data: " + _encode(self._head() | {"choices": []})[:-1]
                yield with_usage(before, self._usage(event), event.usage, b"}\n\n")
            case Failed():
                yield error_event(event.code, event.message, is_responses=False)
            case Ended():
                yield b"data: " + DONE + b"\n\n"

    def _usage(self, used: Used) -> dict[str, Any]:
        """Return the usage of the whole answer."""
        return chat_usage(used.usage, self.read.facts, text_bytes=self._shown.size_bytes)

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        """Return one chunk with content."""
        chunk = self._head() | {"choices": [choice]}
        if self.read.facts.wants_usage:  # OpenAI's chunks have it then, null until the last
            chunk["usage"] = None
        return b"data: " + _encode(chunk) + b"\n\n"

    def _head(self) -> dict[str, Any]:
        """Return the members that an answer and each of its chunks begin with."""
        return {
            "id": _PREFIX + self._started.answer_id,
            "object": "text_completion",
            "created": self._started.created_s,
            "model": self.read.facts.model,
        }


def _choice(text: str, finish: str | None) -> dict[str, Any]:
    """Return one choice with its text and, at its end, the reason."""
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
