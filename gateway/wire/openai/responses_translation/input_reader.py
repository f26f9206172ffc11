"""Reads the input of a request of `/v1/responses` into the system's text and neutral turns.

Items of the model next to one another (its thoughts, words and calls) are one turn, and so are the
outputs of tools. System and developer messages are read as those of a chat (`messages_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.wire.openai.chat_translation.media_parts import document_of, picture_of, sound_of
from gateway.wire.openai.responses_translation.sealed_thoughts import thought_of
from gateway.wire.openai.tool_call_ids import without_signature
from gateway.wire.translation.conversation import (
    ConversationTurn,
    Media,
    Part,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolResult,
)
from gateway.wire.translation.request_members import RequestMembers, wrong_type

_SYSTEM = ("system", "developer")


class InputReader:
    """The reader of the items of one input, in order."""

    def __init__(self) -> None:
        """Start without any turn."""
        self.system: list[TextPart] = []
        self.turns: list[ConversationTurn] = []
        self._open: tuple[str, list[Part]] | None = None  # a run of items of one kind

    def read(self, body: RequestMembers) -> None:
        """Read the member `input`. Raises `InvalidRequest`."""
        if body.is_text("input"):
            text = TextPart(text=body.text("input") or "")
            self.turns.append(ConversationTurn(role=Role.USER, parts=(text,)))
            return
        for item in body.children("input"):
            self._read_item(item)
            item.leave_rest()
        self._close()

    def _read_item(self, item: RequestMembers) -> None:
        """Read one item; one of a type that no neutral value carries is left whole."""
        for name in ("id", "status"):  # of an answer that is sent back
            item.raw(name)
        kind = item.text("type") or "message"
        if kind == "message":
            self._read_message(item)
        elif (read := _ITEMS.get(kind)) is not None:
            self._add(*read(item))
        else:
            item.leave_whole()

    def _read_message(self, item: RequestMembers) -> None:
        """Read a message of any role."""
        role, path = item.text("role"), item.path_of("content")
        parts = _content(item, "content")
        if role == "assistant":
            self._add("model", parts)
            return
        if role not in ("user", *_SYSTEM):
            raise wrong_type(item.path_of("role"), "write user, system, developer or assistant")
        self._close()
        if role in _SYSTEM and not self.turns:
            texts = [part for part in parts if isinstance(part, TextPart)]
            if len(texts) < len(parts):
                raise wrong_type(path, "a system message holds text alone")
            self.system += texts
        elif parts:
            turn = ConversationTurn(
                role=Role.USER, parts=tuple(parts), is_instruction=role != "user"
            )
            self.turns.append(turn)

    def _add(self, kind: str, parts: list[Part]) -> None:
        """Add parts to the run of items of one kind."""
        if self._open is None or self._open[0] != kind:
            self._close()
            self._open = (kind, [])
        assert self._open is not None, "a run was opened"
        self._open[1].extend(parts)

    def _close(self) -> None:
        """End a run of items: it is one turn."""
        if self._open is not None and self._open[1]:
            role = Role.ASSISTANT if self._open[0] == "model" else Role.USER
            self.turns.append(ConversationTurn(role=role, parts=tuple(self._open[1])))
        self._open = None


def _content(holder: RequestMembers, name: str) -> list[Part]:
    """Return the content of a message or of a tool's output: one text or parts."""
    if holder.is_text(name):
        return [TextPart(text=holder.text(name) or "")]
    found: list[Part] = []
    for part in holder.children(name):
        read = _part(part)
        if read is None:
            part.leave_whole()
        else:
            found.append(read)
            part.leave_rest()
    return found


def _part(part: RequestMembers) -> TextPart | Media | None:
    """Return one part; None for one that no neutral value carries, such as a stored file."""
    kind = part.text("type")
    if kind in ("input_text", "output_text", "text"):
        for name in ("annotations", "logprobs"):  # of an answer that is sent back
            part.raw(name)
        text = part.text("text")
        if text is None:
            raise wrong_type(part.path_of("text"), "a text is expected")
        return TextPart(text=text, cache_control=part.raw("cache_control"))
    if kind == "refusal":
        return TextPart(text=part.text("refusal") or "", is_refusal=True)
    if kind == "input_image" and (url := part.text("image_url")) is not None:
        detail = part.text("detail") or ""
        return picture_of(url, part.path_of("image_url"), detail=detail)
    if kind == "input_file" and (file := _file(part)) is not None:
        return file
    if kind == "input_audio" and (sound := part.child("input_audio")) is not None:
        media = sound_of(sound)
        sound.leave_rest()
        return media
    return None


def _file(part: RequestMembers) -> Media | None:
    """Return a document by its bytes or its address; None for a stored one."""
    data, url, name = part.text("file_data"), part.text("file_url"), part.text("filename") or ""
    if data is not None:
        return document_of(data, part.path_of("file_data"), name=name)
    return None if url is None else Media(kind="document", url=url, name=name)


def _call(item: RequestMembers) -> tuple[str, list[Part]]:
    """Return an earlier call of a function."""
    call_id, signature = without_signature(item.text("call_id") or "")
    call = ToolCall(
        call_id=call_id,
        name=item.text("name") or "",
        arguments=item.text("arguments") or "",
        signature=signature,
    )
    return "model", [call]


def _call_output(item: RequestMembers) -> tuple[str, list[Part]]:
    """Return the output of an earlier call."""
    call_id, _ = without_signature(item.text("call_id") or "")
    parts = tuple(part for part in _content(item, "output") if isinstance(part, TextPart | Media))
    return "tools", [ToolResult(call_id=call_id, parts=parts)]


def _reasoning(item: RequestMembers) -> tuple[str, list[Part]]:
    """Return an earlier thought. A provider's own encryption is left: no other one reads it."""
    texts: list[str] = []
    for name in ("summary", "content"):
        for part in item.children(name):
            texts.append(part.text("text") or "")
            part.raw("type")
            part.leave_rest()
    text = "\n\n".join(texts)
    if item.is_text("encrypted_content"):
        sealed = item.peek_text("encrypted_content")
        if (thought := thought_of(text, sealed)) is not None:
            item.raw("encrypted_content")
            return "model", [thought]
    return "model", [Thought(text=text)] if text else []


_ITEMS: Mapping[str, Callable[[RequestMembers], tuple[str, list[Part]]]] = {
    "function_call": _call,
    "function_call_output": _call_output,
    "reasoning": _reasoning,
}
