"""Writes the events of one choice of a chat answer, as deltas or as a whole message.

A thought with a signature also stands in litellm's member `thinking_blocks`, which its clients send
back and `messages_reader` reads: Anthropic takes an earlier thought only with its signature.
Pictures stand in OpenRouter's member `images`; `omitted` names content without a form in a chat.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.wire.dialect import EventTooLarge
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.translation.answer_events import (
    CallStarted,
    ContentEvent,
    Finish,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
    add_omitted,
)
from gateway.wire.translation.conversation import NO_JSON

MAX_THOUGHT_CHARS = 32 * 2**20  # of a stream, kept until a signature: as of a plain answer

_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class ChoiceDeltas(Struct):
    """Writes one choice of a stream."""

    number: int
    _has_role: bool = False
    _has_calls: bool = False
    _thought: list[str] = []  # since the last signature
    _thought_chars: int = 0
    _blocks: int = 0
    _images: int = 0
    _omitted: list[str] = []

    def opening(self) -> dict[str, Any]:
        """Return the first piece: the role and no content yet."""
        return self._piece({"content": ""})

    def piece(self, event: ContentEvent) -> dict[str, Any] | None:
        """Return the piece for an event; None if it has nothing for a chat."""
        if isinstance(event, Finished):
            return self._piece({}, finish=finish_of(event, has_calls=self._has_calls))
        if isinstance(event, TextPiece):
            return self._piece({"content": event.text}, logprobs=event.logprobs)
        if isinstance(event, RefusalPiece):
            return self._piece({"refusal": event.text})
        if isinstance(event, ThoughtPiece):
            delta = self._thought_delta(event)
            return self._piece(delta) if delta else None
        if isinstance(event, CallStarted):
            self._has_calls = True
            return self._piece({"tool_calls": [{"index": event.call, **call_of(event)}]})
        if isinstance(event, Picture):
            images = _numbered([image_of(event)], self._images)
            self._images += 1
            return self._piece({"images": images})
        if isinstance(event, Omitted):
            is_new = add_omitted(self._omitted, event)
            return self._piece({"omitted": [self._omitted[-1]]}) if is_new else None
        arguments = {"index": event.call, "function": {"arguments": event.text}}
        return self._piece({"tool_calls": [arguments]})

    def _thought_delta(self, event: ThoughtPiece) -> dict[str, Any]:
        """Return the delta of a piece of a thought."""
        delta: dict[str, Any] = {"reasoning_content": event.text} if event.text else {}
        self._thought_chars += len(event.text)
        if self._thought_chars > MAX_THOUGHT_CHARS:
            raise EventTooLarge(f"thoughts of more than {MAX_THOUGHT_CHARS} letters")
        self._thought.append(event.text)
        blocks = _numbered(thinking_blocks(event, self._thought), self._blocks)
        self._blocks += len(blocks)
        return delta | ({"thinking_blocks": blocks} if blocks else {})

    def _piece(
        self,
        delta: dict[str, Any],
        *,
        finish: Finish | None = None,
        logprobs: msgspec.Raw = NO_JSON,
    ) -> dict[str, Any]:
        """Return a piece of the choice. The first one of each choice has the role."""
        if not self._has_role:
            delta, self._has_role = {"role": "assistant"} | delta, True
        return {
            "index": self.number,
            "delta": delta,
            "logprobs": _logprobs([logprobs] if logprobs is not NO_JSON else []),
            "finish_reason": None if finish is None else finish.value,
        }


class ChoiceMessage(Struct):
    """Writes one choice of a plain answer."""

    number: int
    _texts: list[str] = []
    _refusals: list[str] = []
    _thoughts: list[str] = []
    _thought: list[str] = []  # since the last signature
    _blocks: list[dict[str, Any]] = []
    _images: list[dict[str, Any]] = []
    _omitted: list[str] = []
    _logprobs: list[msgspec.Raw] = []
    _calls: dict[int, dict[str, Any]] = {}  # by their numbers, in the order of their starts
    _arguments: dict[int, list[str]] = {}
    _finish: Finish = Finish.STOP

    def add(self, event: ContentEvent) -> None:
        """Take in one event."""
        if isinstance(event, Finished):
            self._finish = finish_of(event, has_calls=bool(self._calls))
        elif isinstance(event, TextPiece):
            self._texts.append(event.text)
            if event.logprobs is not NO_JSON:
                self._logprobs.append(event.logprobs)
        elif isinstance(event, RefusalPiece):
            self._refusals.append(event.text)
        elif isinstance(event, ThoughtPiece):
            self._thoughts.append(event.text)
            self._thought.append(event.text)
            self._blocks += thinking_blocks(event, self._thought)
        elif isinstance(event, CallStarted):
            self._calls[event.call] = call_of(event)
        elif isinstance(event, Picture):
            self._images.append(image_of(event))
        elif isinstance(event, Omitted):
            add_omitted(self._omitted, event)
        else:
            self._arguments.setdefault(event.call, []).append(event.text)

    def choice(self) -> dict[str, Any]:
        """Return the whole choice."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._texts) if self._texts else None,
            "refusal": "".join(self._refusals) if self._refusals else None,
            "annotations": [],
        }
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        if self._blocks:
            message["thinking_blocks"] = self._blocks
        if self._images:
            message["images"] = self._images
        if self._omitted:
            message["omitted"] = self._omitted
        if self._calls:
            for number, call in self._calls.items():
                call["function"]["arguments"] = "".join(self._arguments.get(number, ()))
            message["tool_calls"] = list(self._calls.values())
        return {
            "index": self.number,
            "message": message,
            "logprobs": _logprobs(self._logprobs),
            "finish_reason": self._finish.value,
        }


def finish_of(event: Finished, *, has_calls: bool) -> Finish:
    """Return the end of a choice in a chat: one with tool calls ends with them, also if its
    provider calls that an ordinary stop.
    """
    return Finish.TOOL_CALLS if has_calls and event.finish is Finish.STOP else event.finish


def call_of(event: CallStarted) -> dict[str, Any]:
    """Return a tool call without its arguments."""
    call: dict[str, Any] = {
        "id": with_signature(event.call_id, event.signature),
        "type": "function",
        "function": {"name": event.name, "arguments": ""},
    }
    if event.signature:
        call["extra_content"] = {"google": {"thought_signature": event.signature}}
    return call


def image_of(event: Picture) -> dict[str, Any]:
    """Return a picture as OpenRouter has it."""
    url = f"data:{event.media_type};base64,{event.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _numbered(items: list[dict[str, Any]], first: int) -> list[dict[str, Any]]:
    """Return the items of a delta with their numbers: OpenAI's own helpers raise for a second list
    of objects that have no index.
    """
    return [{"index": at, **item} for at, item in enumerate(items, first)]


def thinking_blocks(event: ThoughtPiece, thought: list[str]) -> list[dict[str, Any]]:
    """Return the blocks that an event completes: `thought` has the text since the last one, and is
    emptied.
    """
    blocks: list[dict[str, Any]] = []
    if event.signature:
        text = "".join(thought)
        thought.clear()
        blocks.append({"type": "thinking", "thinking": text, "signature": event.signature})
    if event.sealed:
        blocks.append({"type": "redacted_thinking", "data": event.sealed})
    return blocks


def _logprobs(lists: list[msgspec.Raw]) -> dict[str, Any] | None:
    """Return the log probabilities of some tokens as a chat has them."""
    if not lists:
        return None
    content = lists[0] if len(lists) == 1 else [one for raw in lists for one in _decode_list(raw)]
    return {"content": content, "refusal": None}
