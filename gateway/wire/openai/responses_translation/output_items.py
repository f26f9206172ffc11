"""Writes neutral answer events, ordered by blocks, as the output items of a response, with the
events of each item.

An item's events must be written out before the next one is taken: they show the item as it is then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from gateway.wire.dialect import EventTooLarge
from gateway.wire.openai.request.media import OWN_THOUGHT
from gateway.wire.openai.responses_translation.sealed_thoughts import encrypted
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.translation.answer_events import (
    CallArguments,
    CallStarted,
    Picture,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
)
from gateway.wire.translation.conversation import NO_JSON

ItemPiece = TextPiece | RefusalPiece | ThoughtPiece | CallStarted | CallArguments | Picture
MAX_KEPT_CHARS = 32 * 2**20  # as of a plain answer
MAX_ITEMS = 16_384
PIECE_CHARS = 256  # about the memory of a call without its arguments
COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class _PartKind(Struct, frozen=True):
    """The events of a kind of part. `text` is the member with its text, `index` its place in the
    item's `parts`.
    """

    kind: str
    part_event: str
    text_event: str
    text: str = "text"
    parts: str = "content"
    index: str = "content_index"


_TEXT = _PartKind("output_text", "response.content_part", "response.output_text")
_REFUSAL = _PartKind("refusal", "response.content_part", "response.refusal", text="refusal")
_SUMMARY = _PartKind(
    "summary_text",
    "response.reasoning_summary_part",
    "response.reasoning_summary_text",
    parts="summary",
    index="summary_index",
)


class _OpenItem(Struct):
    """A message or a thought that is being written."""

    place: int
    item: dict[str, Any]
    kind: _PartKind | None = None  # of its open part
    texts: list[str] = []
    logprobs: list[msgspec.Raw] = []


class _OpenCall(Struct):
    """A tool call that is being written."""

    place: int
    item: dict[str, Any]
    arguments: list[str] = []


class OutputItems(Struct):
    """The output of one response. `answer_id` makes the ids of its items unique."""

    answer_id: str = ""
    items: list[dict[str, Any]] = []
    _kept_chars: int = 0
    _open: _OpenItem | _OpenCall | None = None

    def events(self, event: ItemPiece) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of the answer. Raises `EventTooLarge`: the last event has the
        whole answer again, which is kept until then.
        """
        if isinstance(event, CallStarted):
            self._kept_chars += PIECE_CHARS
        else:
            self._kept_chars += len(event.data if isinstance(event, Picture) else event.text)
        if self._kept_chars > MAX_KEPT_CHARS or len(self.items) > MAX_ITEMS:
            raise EventTooLarge(f"an answer of more than {MAX_KEPT_CHARS} letters")
        if isinstance(event, TextPiece):
            yield from self._text("message", _TEXT, event.text, logprobs=event.logprobs)
        elif isinstance(event, RefusalPiece):
            yield from self._text("message", _REFUSAL, event.text)
        elif isinstance(event, ThoughtPiece):
            yield from self._thought(event)
        elif isinstance(event, CallStarted):
            yield from self._call(event)
        elif isinstance(event, Picture):
            yield from self._picture(event)
        else:
            yield self._arguments(event)

    def close(self, status: str) -> Iterator[dict[str, Any]]:
        """Yield the events that end the open item, with its status."""
        open_item = self._open
        if open_item is None:
            return
        if isinstance(open_item, _OpenCall):
            yield _arguments_done(open_item)
        else:
            yield from self._close_part(open_item)
        if "status" in open_item.item:
            open_item.item["status"] = status
        self._open = None
        yield self._item_event("done", open_item.place)

    def _text(
        self, item_type: str, kind: _PartKind, text: str, *, logprobs: msgspec.Raw = NO_JSON
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of text in an item of this type."""
        open_item = self._open
        if not isinstance(open_item, _OpenItem) or open_item.item["type"] != item_type:
            yield from self.close(COMPLETED)
            open_item = self._new(item_type)
            yield self._item_event("added", open_item.place)
        if open_item.kind is not kind:
            yield from self._close_part(open_item)
            open_item.kind = kind
            parts = open_item.item[kind.parts]
            parts.append(_part(kind, "", []))
            yield _part_event(open_item, "added")
        pieces = [] if logprobs is NO_JSON else _decode_list(logprobs)
        open_item.texts.append(text)
        open_item.logprobs += pieces
        delta = _event(open_item, f"{kind.text_event}.delta", delta=text)
        yield delta | ({"logprobs": pieces} if kind is _TEXT else {})

    def _thought(self, event: ThoughtPiece) -> Iterator[dict[str, Any]]:
        """Yield the events of a piece of a thought. Its proof ends its item."""
        if event.text:
            yield from self._text("reasoning", _SUMMARY, event.text)
        proof = encrypted(signature=event.signature, sealed=event.sealed)
        if proof is None:
            return
        if event.sealed or self._open is None or self._open.item["type"] != "reasoning":
            yield from self.close(COMPLETED)
            yield self._item_event("added", self._new("reasoning").place)
        assert self._open is not None, "a thought is open"
        self._open.item["encrypted_content"] = proof
        yield from self.close(COMPLETED)

    def _call(self, event: CallStarted) -> Iterator[dict[str, Any]]:
        """Yield the events of a call's start."""
        yield from self.close(COMPLETED)
        place = len(self.items)
        item = {
            "id": f"fc_{self.answer_id}_{place}",
            "type": "function_call",
            "status": IN_PROGRESS,
            "arguments": "",
            "call_id": with_signature(event.call_id, event.signature),
            "name": event.name,
        }
        self.items.append(item)
        self._open = _OpenCall(place=place, item=item)
        yield self._item_event("added", place)

    def _picture(self, event: Picture) -> Iterator[dict[str, Any]]:
        """Yield the events of a picture, as the tool that draws one has them."""
        yield from self.close(COMPLETED)
        place = len(self.items)
        item = {
            "id": f"ig_{self.answer_id}_{place}",
            "type": "image_generation_call",
            "status": IN_PROGRESS,
            "result": None,
        }
        self.items.append(item)
        yield self._item_event("added", place)
        kind = "response.image_generation_call.completed"
        yield {"type": kind, "item_id": item["id"], "output_index": place}
        item |= {"status": COMPLETED, "result": event.data}
        yield self._item_event("done", place)

    def _arguments(self, event: CallArguments) -> dict[str, Any]:
        """Return the event of a piece of the open call's arguments."""
        call = self._open
        assert isinstance(call, _OpenCall), "the pieces of a call follow its start"
        call.arguments.append(event.text)
        return {
            "type": "response.function_call_arguments.delta",
            "item_id": call.item["id"],
            "output_index": call.place,
            "delta": event.text,
        }

    def _new(self, item_type: str) -> _OpenItem:
        """Begin a message or a thought."""
        place = len(self.items)
        item: dict[str, Any] = {"id": f"{OWN_THOUGHT}{self.answer_id}_{place}", "type": "reasoning"}
        item["summary"] = []
        if item_type == "message":
            item = {"id": f"msg_{self.answer_id}_{place}", "type": "message"}
            item |= {"status": IN_PROGRESS, "role": "assistant", "content": []}
        self.items.append(item)
        self._open = open_item = _OpenItem(place=place, item=item)
        return open_item

    def _close_part(self, open_item: _OpenItem) -> Iterator[dict[str, Any]]:
        """Yield the events that end the open part of an item."""
        kind = open_item.kind
        if kind is None:
            return
        text, logprobs = "".join(open_item.texts), open_item.logprobs
        done = _event(open_item, f"{kind.text_event}.done") | {kind.text: text}
        yield done | ({"logprobs": logprobs} if kind is _TEXT else {})
        open_item.item[kind.parts][-1] = _part(kind, text, logprobs)
        yield _part_event(open_item, "done")
        open_item.kind, open_item.texts, open_item.logprobs = None, [], []

    def _item_event(self, what: str, place: int) -> dict[str, Any]:
        """Return the event of an item that was added or is done."""
        return {
            "type": f"response.output_item.{what}",
            "output_index": place,
            "item": self.items[place],
        }


def _arguments_done(call: _OpenCall) -> dict[str, Any]:
    """Return the event of a call's complete arguments, and write them into its item."""
    call.item["arguments"] = "".join(call.arguments)
    return {
        "type": "response.function_call_arguments.done",
        "item_id": call.item["id"],
        "output_index": call.place,
        "name": call.item["name"],
        "arguments": call.item["arguments"],
    }


def _event(open_item: _OpenItem, event_type: str, **members: Any) -> dict[str, Any]:
    """Return an event of an item's last part."""
    kind = open_item.kind
    assert kind is not None, "a part is open"
    return {
        "type": event_type,
        "item_id": open_item.item["id"],
        "output_index": open_item.place,
        kind.index: len(open_item.item[kind.parts]) - 1,
        **members,
    }


def _part_event(open_item: _OpenItem, what: str) -> dict[str, Any]:
    """Return the event of a part that was added or is done."""
    kind = open_item.kind
    assert kind is not None, "a part is open"
    part = open_item.item[kind.parts][-1]
    return _event(open_item, f"{kind.part_event}.{what}", part=part)


def _part(kind: _PartKind, text: str, logprobs: list[msgspec.Raw]) -> dict[str, Any]:
    """Return a part with its text."""
    part: dict[str, Any] = {"type": kind.kind, kind.text: text}
    return part | ({"annotations": [], "logprobs": logprobs} if kind is _TEXT else {})
