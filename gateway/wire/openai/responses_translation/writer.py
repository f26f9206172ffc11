"""Writes neutral answer events as the answer of `/v1/responses`, streamed or whole.

A stream that fails ends with two events. For the `error` in the first one, openai-python and
openai-node raise. Codex ignores it and waits for the second one, `response.failed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from gateway.domain.providers.table import OPENAI_TIERS
from gateway.domain.request.request import RequestBody
from gateway.wire.dialect import AnswerPart
from gateway.wire.openai.chat_translation.usage_members import responses_usage, with_usage
from gateway.wire.openai.error import error_body, responses_error
from gateway.wire.openai.responses_translation.output_items import (
    COMPLETED,
    IN_PROGRESS,
    INCOMPLETE,
    OutputItems,
)
from gateway.wire.openai.responses_translation.response_object import repeated_members
from gateway.wire.sse import EVENT_STREAM
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Started,
    Used,
    add_omitted,
)
from gateway.wire.translation.block_order import BlockOrder
from gateway.wire.translation.call_ids import CallIds

_REASONS = {Finish.LENGTH: "max_output_tokens", Finish.CONTENT_FILTER: "content_filter"}
_PREFIX = "resp_"

_encode = msgspec.json.encode


class ResponsesWriter(Struct):
    """Writes the answer to one request, with a placeholder for its cost beside the usage."""

    content_type: ClassVar[str] = EVENT_STREAM
    read: RequestBody
    own: Started = Started()  # for an upstream that reports no id or time
    _started: Started = Started()
    _output: OutputItems = msgspec.field(default_factory=OutputItems)
    _order: BlockOrder = msgspec.field(default_factory=BlockOrder)
    _ids: CallIds = msgspec.field(default_factory=CallIds)
    _reason: str | None = None  # the answer is incomplete for it
    _used: Used | None = None
    _omitted: list[str] = []
    _repeated: dict[str, Any] = {}
    _number: int = 0  # of the next event

    def __post_init__(self) -> None:
        """Begin with the request's own id and time: some streams have no start."""
        self._start(self.own)

    def _start(self, event: Started) -> None:
        """Keep the answer's id and time."""
        self._started = event.or_else(self.own)
        self._output.answer_id = self._started.answer_id

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""
        return [part for event in self._ordered(events) for part in self._parts(event)]

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
        for event in self._ordered(events):
            if isinstance(event, Failed):
                return error_body(event.code, event.message)
            for _ in self._named_events(event):
                pass
        return self._last(b"", self._response(self._status), b"")

    def _ordered(self, events: Sequence[AnswerEvent]) -> Iterator[AnswerEvent]:
        """Yield the events in the order of a response's items, with ids that tell calls apart."""
        for event in events:
            for one in self._ids.events(event, read=self.read, own=self.own):
                yield from self._order.events(one)

    @property
    def _status(self) -> str:
        return COMPLETED if self._reason is None else INCOMPLETE

    def _parts(self, event: AnswerEvent) -> Iterator[AnswerPart]:
        """Yield the named events of one neutral event."""
        for named in self._named_events(event):
            yield self._named(named)
        if isinstance(event, Ended):
            kind = f"response.{self._status}"
            opening = self._named({"type": kind, "response": {}}).removesuffix(b"{}}\n\n")
            yield self._last(opening, self._response(self._status), b"}\n\n")
        elif isinstance(event, Failed):
            yield self._named(responses_error(event.code, event.message))
            failed = {"code": "server_error", "message": event.message}
            for _ in self._output.close(INCOMPLETE):
                pass  # the answer has the text so far; no item of it was done
            response = self._response("failed") | {"error": failed, "usage": None}
            yield self._named({"type": "response.failed", "response": response})

    def _named_events(self, event: AnswerEvent) -> Iterator[dict[str, Any]]:
        """Yield the events of one neutral event, except the last one of the answer."""
        if isinstance(event, Started):
            self._start(event)
            self._repeated = repeated_members(self.read)
            response = self._response(IN_PROGRESS) | {"usage": None}
            for kind in ("response.created", "response.in_progress"):
                yield {"type": kind, "response": response}
        elif isinstance(event, Used):
            self._used = event
        elif isinstance(event, Omitted):
            add_omitted(self._omitted, event)
        elif isinstance(event, Finished):
            self._reason = _REASONS.get(event.finish)
            yield from self._output.close(self._status)
        elif not isinstance(event, Ended | Failed):
            yield from self._output.events(event)

    def _named(self, event: dict[str, Any]) -> bytes:
        """Return one event with its name and number."""
        kind: str = event["type"]
        numbered = {"type": kind, "sequence_number": self._number, **event}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(numbered) + b"\n\n"

    def _last(self, opening: bytes, response: dict[str, Any], closing: bytes) -> AnswerPart:
        """Return the complete response object with its usage, and a placeholder for the cost."""
        usage = responses_usage(self._used.usage) if self._used is not None else None
        if self._used is None or usage is None:
            return opening + _encode(response | {"usage": None}) + closing
        before = opening + _encode(response)[:-1]
        return with_usage(before, usage, self._used.usage, b"}" + closing)

    def _response(self, status: str) -> dict[str, Any]:
        """Return the response object as it is now, without its usage."""
        answer_id, created_s = self._started.answer_id, self._started.created_s
        tier = self._used.service_tier if self._used is not None else None
        return {
            "id": answer_id if answer_id.startswith(_PREFIX) else _PREFIX + answer_id,
            "object": "response",
            "created_at": created_s,
            "completed_at": created_s if status == COMPLETED else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": self._reason} if status == INCOMPLETE else None,
            "model": self.read.facts.model,
            "output": self._output.items,
            "service_tier": tier if tier in OPENAI_TIERS else "default",
            **self._repeated,
            **({"omitted": self._omitted} if self._omitted else {}),
        }
