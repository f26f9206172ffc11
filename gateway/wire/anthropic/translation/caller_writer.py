"""Writes neutral answer events as Anthropic's messages for the caller, streamed or whole.

Clients know no other events than these, so no event of ours is added; the cost stands in the last
usage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

import msgspec
from msgspec import Struct

from gateway.domain.request.request import RequestBody
from gateway.wire.anthropic.error import error_body, error_event
from gateway.wire.anthropic.translation.caller_content import Content, call_block, text_block
from gateway.wire.anthropic.translation.caller_usage import (
    delta_usage,
    first_usage,
    messages_usage,
)
from gateway.wire.dialect import AnswerPart, UnpricedPart
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.sse import EVENT_STREAM
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    ShownText,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
    add_omitted,
)
from gateway.wire.translation.block_order import BlockOrder
from gateway.wire.translation.call_ids import CallIds

_encode = msgspec.json.encode
_PREFIX = "msg_"
_WORDS = {
    Finish.STOP: "end_turn",
    Finish.LENGTH: "max_tokens",
    Finish.TOOL_CALLS: "tool_use",
    Finish.CONTENT_FILTER: "refusal",
}
# Anthropic's own words, also from another provider of its models (anthropic 2.13.0,
# types/stop_reason.py, 2026-11-24).
_LEGAL = frozenset(
    {
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
    }
)


class _Blocks(Struct):
    """The content blocks of a stream: the last one is open if it has a kind."""

    count: int = 0
    kind: str = ""

    def begin(self, kind: str, **members: Any) -> Iterator[bytes]:
        """Yield the events that make a new block of this kind the open one."""
        yield from self.end()
        block = {"type": kind, **members}
        yield _event("content_block_start", index=self.count, content_block=block)
        self.count, self.kind = self.count + 1, kind

    def delta(self, kind: str, **members: str) -> bytes:
        """Return the event of a piece of the open block."""
        delta = {"type": kind, **members}
        return _event("content_block_delta", index=self.count - 1, delta=delta)

    def end(self) -> Iterator[bytes]:
        """Yield the event that ends the open block, if one is open."""
        if self.kind:
            yield _event("content_block_stop", index=self.count - 1)
        self.kind = ""


class MessagesWriter(Struct):
    """Writes the answer to one messages request, with a placeholder for its cost in the usage."""

    content_type: ClassVar[str] = EVENT_STREAM
    read: RequestBody
    own: Started = Started()  # for an upstream that reports no id
    _blocks: _Blocks = msgspec.field(default_factory=_Blocks)
    _order: BlockOrder = msgspec.field(default_factory=BlockOrder)
    _ids: CallIds = msgspec.field(default_factory=CallIds)
    _finished: Finished | None = None
    _used: Used | None = None
    _omitted: list[str] = []
    _shown: ShownText = msgspec.field(default_factory=ShownText)

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""
        return [part for event in self._ordered(events) for part in self._parts(event)]

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
        content, answer_id = Content(), ""
        for event in self._ordered(events):
            if isinstance(event, Failed):
                return error_body(event.code, event.message, request_id=self._request_id)
            if isinstance(event, Started):
                answer_id = event.answer_id
            elif isinstance(event, Finished):
                self._finished = self._finished or event
            elif isinstance(event, Used):
                self._used = event
            elif not isinstance(event, Ended | Picture | Omitted):
                content.add(event)
        message = {
            **self._head(answer_id),
            "content": content.blocks(),
            **self._ending(),
        }
        return self._priced(_encode(message)[:-1], b"}")

    def _ordered(self, events: Sequence[AnswerEvent]) -> Iterator[AnswerEvent]:
        """Yield the events in the order of a message's blocks, with ids that tell calls apart."""
        for event in events:
            if isinstance(event, Picture):  # a message has no form for one of the model
                event = Omitted(name=event.media_type, choice=event.choice)
            for told in self._ids.events(event, read=self.read, own=self.own):
                for one in self._order.events(told):
                    self._shown.add(one)
                    if isinstance(one, Omitted):
                        add_omitted(self._omitted, one)
                    yield one

    def _parts(self, event: AnswerEvent) -> Iterator[AnswerPart]:
        """Yield the events of one neutral event."""
        if isinstance(event, Started):
            yield self._start(event)
        elif isinstance(event, Used):
            self._used = event
        elif isinstance(event, Failed):
            yield error_event(event.code, event.message, request_id=self._request_id)
        elif isinstance(event, Ended):
            yield from self._blocks.end()
            yield self._last_delta()
            yield _event("message_stop")
        elif not isinstance(event, Picture | Omitted):
            yield from self._content(event)

    def _content(
        self,
        event: TextPiece | RefusalPiece | ThoughtPiece | CallStarted | CallArguments | Finished,
    ) -> Iterator[bytes]:
        """Yield the events of a piece of content."""
        if isinstance(event, Finished):
            self._finished = self._finished or event
        elif isinstance(event, TextPiece | RefusalPiece):
            if event.text:
                yield from self._begin("text", **text_block(""))
                yield self._blocks.delta("text_delta", text=event.text)
        elif isinstance(event, ThoughtPiece):
            yield from self._thought(event)
        elif isinstance(event, CallStarted):
            call_id = with_signature(event.call_id, event.signature)
            yield from self._blocks.begin("tool_use", **call_block(call_id, event.name, {}))
        elif event.text:
            yield self._blocks.delta("input_json_delta", partial_json=event.text)

    def _thought(self, event: ThoughtPiece) -> Iterator[bytes]:
        """Yield the events of a piece of a thought. Its proof ends its block."""
        if event.sealed:
            yield from self._blocks.begin("redacted_thinking", data=event.sealed)
            yield from self._blocks.end()
            return
        if event.text or event.signature:
            yield from self._begin("thinking", thinking="", signature="")
        if event.text:
            yield self._blocks.delta("thinking_delta", thinking=event.text)
        if event.signature:
            yield self._blocks.delta("signature_delta", signature=event.signature)
            yield from self._blocks.end()

    def _begin(self, kind: str, **members: Any) -> Iterator[bytes]:
        """Yield the events that make a block of this kind the open one, if it is not."""
        if self._blocks.kind != kind:
            yield from self._blocks.begin(kind, **members)

    def _start(self, event: Started) -> bytes:
        """Return `message_start` with the known usage of the prompt."""
        message = {
            **self._head(event.answer_id),
            "content": [],
            **_end(None, None),
            "usage": first_usage(event.usage, self.read.facts),
        }
        return _event("message_start", message=message)

    def _last_delta(self) -> AnswerPart:
        """Return `message_delta` with the end, the usage and a placeholder for the cost."""
        delta = self._ending()
        before = b"event: message_delta\ndata: " + _encode(
            {"type": "message_delta", "delta": delta}
        )
        return self._priced(before[:-1], b"}\n\n", is_delta=True)

    def _priced(self, before: bytes, after: bytes, *, is_delta: bool = False) -> AnswerPart:
        """Return an object with the usage as its last member; `before` ends with the member before
        it, and `after` begins with the object's end.
        """
        used = self._used
        write = delta_usage if is_delta else messages_usage
        usage = write(used, self.read.facts, text_bytes=self._shown.size_bytes)
        if used is None:
            return before + b',"usage":' + _encode(usage) + after
        content = before + b',"usage":' + _encode(usage)
        place = len(content) - 1
        return UnpricedPart(used.usage, content + after, place, place, b',"cost_usd":')

    def _head(self, answer_id: str) -> dict[str, Any]:
        """Return the members that a message begins with."""
        answer_id = answer_id or self.own.answer_id
        return {
            "id": answer_id if answer_id.startswith(_PREFIX) else _PREFIX + answer_id,
            "type": "message",
            "role": "assistant",
            "model": self.read.facts.model,
        }

    def _ending(self) -> dict[str, Any]:
        """Return the members of the answer's end, with the names of content that it has not."""
        omitted = {"omitted": self._omitted} if self._omitted else {}
        return _end(self._stop_reason, self._stop_sequence) | omitted

    @property
    def _request_id(self) -> str | None:
        """Return the id of the gateway's own request, which its own start has without hyphens."""
        return str(UUID(self.own.answer_id)) if self.own.answer_id else None

    @property
    def _stop_reason(self) -> str | None:
        """Return Anthropic's word for the answer's end."""
        finished = self._finished
        if finished is None:
            return None
        if finished.stop_sequence is not None:
            return "stop_sequence"
        is_legal = finished.native in _LEGAL and (
            finished.finish is not Finish.TOOL_CALLS or finished.native != "end_turn"
        )
        return finished.native if is_legal else _WORDS[finished.finish]

    @property
    def _stop_sequence(self) -> str | None:
        """Return the caller's stop sequence that was met, None if unknown."""
        return self._finished.stop_sequence if self._finished is not None else None


def _end(stop_reason: str | None, stop_sequence: str | None) -> dict[str, Any]:
    """Return the members of a message's end, all that Anthropic's schema requires."""
    return {
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "stop_details": None,
        "container": None,
    }


def _event(name: str, **members: Any) -> bytes:
    """Return one named event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode({"type": name, **members}))
