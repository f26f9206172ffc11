"""Joins the pieces of an answer to the content blocks of a whole message."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.wire.members import MalformedJson, require_object
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.translation.answer_events import (
    CallArguments,
    CallStarted,
    RefusalPiece,
    TextPiece,
    ThoughtPiece,
)

# Anthropic's page advises to wrap arguments that are no JSON, such as those that a maximum cut, in
# an object (docs.claude.com, fine-grained tool streaming, 2026-11-24); the name is not verified.
_NO_JSON = "INVALID_JSON"


class _Joined(Struct):
    """One block so far: its kind and texts. A thought ends with its signature."""

    kind: str
    texts: list[str] = []
    signature: str = ""
    call_id: str = ""
    name: str = ""


class Content:
    """The content of a whole message."""

    def __init__(self) -> None:
        """Start without any block."""
        self._blocks: list[_Joined] = []

    def add(
        self, event: TextPiece | RefusalPiece | ThoughtPiece | CallStarted | CallArguments
    ) -> None:
        """Add one piece. The pieces of a call follow its start."""
        if isinstance(event, TextPiece | RefusalPiece):
            if event.text:
                self._open("text").texts.append(event.text)
        elif isinstance(event, ThoughtPiece):
            self._add_thought(event)
        elif isinstance(event, CallStarted):
            call_id = with_signature(event.call_id, event.signature)
            self._blocks.append(_Joined("tool_use", call_id=call_id, name=event.name))
        else:
            self._blocks[-1].texts.append(event.text)

    def blocks(self) -> list[dict[str, Any]]:
        """Return all blocks as Anthropic writes them."""
        return [_written(block) for block in self._blocks]

    def _add_thought(self, event: ThoughtPiece) -> None:
        """Add a piece of a thought, or a sealed one."""
        if event.sealed:
            self._blocks.append(_Joined("redacted_thinking", [event.sealed]))
        elif event.text or event.signature:
            thought = self._open("thinking")
            thought.texts.append(event.text)
            thought.signature = event.signature

    def _open(self, kind: str) -> _Joined:
        """Return the last block if it is of this kind and goes on, else a new one."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or last.kind != kind or last.signature:
            last = _Joined(kind)
            self._blocks.append(last)
        return last


def _written(block: _Joined) -> dict[str, Any]:
    """Return one block as Anthropic writes it."""
    text = "".join(block.texts)
    if block.kind == "thinking":
        return {"type": "thinking", "thinking": text, "signature": block.signature}
    if block.kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": text}
    if block.kind == "tool_use":
        return {"type": "tool_use", **call_block(block.call_id, block.name, _input(text))}
    return {"type": "text", **text_block(text)}


def text_block(text: str) -> dict[str, Any]:
    """Return the members of a block of text, all that Anthropic's schema requires."""
    return {"text": text, "citations": None}


def call_block(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """Return the members of a block of a call, which is the model's own and no program's."""
    return {"id": call_id, "name": name, "input": arguments, "caller": {"type": "direct"}}


def _input(arguments: str) -> Any:
    """Return the arguments of a call as an object."""
    if not arguments:
        return {}
    try:
        require_object(arguments.encode())
    except MalformedJson:
        return {_NO_JSON: arguments}
    return msgspec.Raw(arguments.encode())
