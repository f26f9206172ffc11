"""Reads the messages of a chat into the system's text and the turns of a neutral conversation.

System and developer messages before the first turn are the conversation's system text. A later one
stays in its place, as a turn of the user that is marked as an instruction. To move it to the front
would change the whole prompt behind it, which a provider's cache then charges again; litellm
1.106.2 keeps it in its place for this reason too (`mid_conversation_system.py`, read 2026-11-24).
"""

from __future__ import annotations

import msgspec

from gateway.wire.openai.chat_translation.media_parts import document_of, picture_of, sound_of
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


def read_messages(body: RequestMembers) -> tuple[list[TextPart], list[ConversationTurn]]:
    """Return the system's text and the turns of a chat. Raises `InvalidRequest`."""
    system: list[TextPart] = []
    turns: list[ConversationTurn] = []
    results: list[ToolResult] = []
    for message in body.children("messages"):
        role = message.text("role")
        if role == "tool":
            results.append(_tool_result(message))
            message.leave_rest()
            continue
        _close(results, turns)
        if role in _SYSTEM and not turns:
            system += _texts(message)
        elif role in ("user", *_SYSTEM):
            _add(turns, message, Role.USER, _parts(message), is_instruction=role != "user")
        elif role == "assistant":
            _add(turns, message, Role.ASSISTANT, _assistant_parts(message))
        elif role == "function":  # of the API before tools; no other dialect has it
            message.leave_whole()
        else:
            raise wrong_type(
                message.path_of("role"), "write system, developer, user, assistant or tool"
            )
        message.leave_rest()
    _close(results, turns)
    return system, turns


def _close(results: list[ToolResult], turns: list[ConversationTurn]) -> None:
    """End a run of tool messages: their results are one turn."""
    if results:
        turns.append(ConversationTurn(role=Role.USER, parts=tuple(results)))
        results.clear()


def _add(
    turns: list[ConversationTurn],
    message: RequestMembers,
    role: Role,
    parts: list[Part],
    *,
    is_instruction: bool = False,
) -> None:
    """Add a turn, unless nothing of it is known."""
    name = message.text("name") or ""
    if parts:
        turns.append(
            ConversationTurn(
                role=role, parts=tuple(parts), name=name, is_instruction=is_instruction
            )
        )


def _texts(message: RequestMembers) -> list[TextPart]:
    """Return the text of a system message."""
    name = message.path_of("content")
    parts = _parts(message)
    message.leave("name")
    found = [part for part in parts if isinstance(part, TextPart)]
    if len(found) < len(parts):
        raise wrong_type(name, "a system message holds text alone")
    return found


def _parts(message: RequestMembers) -> list[Part]:
    """Return the content of a message: one text or parts."""
    if message.is_text("content"):
        return [TextPart(text=message.text("content") or "")]
    found: list[Part] = []
    for part in message.children("content"):
        read = _part(part)
        if read is None:
            part.leave_whole()
        else:
            found.append(read)
            part.leave_rest()
    return found


def _part(part: RequestMembers) -> TextPart | Media | None:
    """Return one part of a message; None for a type that no neutral value carries."""
    kind = part.text("type")
    if kind == "text":
        text = part.text("text")
        if text is None:
            raise wrong_type(part.path_of("text"), "a text is expected")
        return TextPart(text=text, cache_control=part.raw("cache_control"))
    if kind == "refusal":
        return TextPart(text=part.text("refusal") or "", is_refusal=True)
    media = _media(part, kind)
    if media is not None and part.has("cache_control"):
        return msgspec.structs.replace(media, cache_control=part.raw("cache_control"))
    return media


def _media(part: RequestMembers, kind: str | None) -> Media | None:
    """Return the picture, sound or document of a part; None for any other one."""
    media = None
    if kind == "image_url" and part.is_object("image_url"):
        picture = part.child("image_url")
        assert picture is not None, "it is an object"
        url, detail = picture.text("url"), picture.text("detail") or ""
        if url is None:
            raise wrong_type(picture.path_of("url"), "a text is expected")
        media = picture_of(url, picture.path_of("url"), detail=detail)
        picture.leave_rest()
    elif kind == "input_audio" and (sound := part.child("input_audio")) is not None:
        media = sound_of(sound)
        sound.leave_rest()
    elif kind == "file" and (file := part.child("file")) is not None:
        data, name = file.text("file_data"), file.text("filename") or ""
        if data is None:  # a stored file, by its id
            return None
        media = document_of(data, file.path_of("file_data"), name=name)
        file.leave_rest()
    return media


def _tool_result(message: RequestMembers) -> ToolResult:
    """Return the result in a tool message."""
    call_id, _ = without_signature(message.text("tool_call_id") or "")
    parts = tuple(part for part in _parts(message) if isinstance(part, TextPart | Media))
    return ToolResult(call_id=call_id, parts=parts, name=message.text("name") or "")


def _assistant_parts(message: RequestMembers) -> list[Part]:
    """Return an earlier answer of the model: its thoughts, words, refusal and calls."""
    found: list[Part] = [*_thoughts(message)]
    found += [part for part in _parts(message) if part != TextPart(text="")]
    refusal = message.text("refusal")
    if refusal:
        found.append(TextPart(text=refusal, is_refusal=True))
    for number, call in enumerate(message.children("tool_calls")):
        # A client that joins a stream's pieces keeps the index of each: openai-python, Open WebUI.
        call.drop_if("index", b"%d" % number)
        read = _tool_call(call)
        if read is None:
            call.leave_whole()
        else:
            found.append(read)
            call.leave_rest()
    message.drop_if("annotations", b"[]")
    return found


def _thoughts(message: RequestMembers) -> list[Thought]:
    """Return the thoughts beside an earlier answer, under the names in use: `reasoning_content`
    (DeepSeek, vLLM and this gateway), `reasoning` (OpenRouter, vLLM), and litellm's
    `thinking_blocks`, which have Anthropic's signatures.
    """
    found = []
    for block in message.children("thinking_blocks"):
        found.append(
            Thought(
                text=block.text("thinking") or "",
                signature=block.text("signature") or "",
                sealed=block.text("data") or "",
            )
        )
    names = ("reasoning_content", "reasoning")
    texts = [message.text(name) for name in names if message.is_text(name)]
    text = next(filter(None, texts), "")
    return found or ([Thought(text=text)] if text else [])


def _tool_call(call: RequestMembers) -> ToolCall | None:
    """Return one call of an earlier answer; None for a call of a tool that is no function."""
    kind = call.text("type") or "function"
    function = call.child("function") if kind == "function" else None
    if function is None:
        return None
    call_id, signature = without_signature(call.text("id") or "")
    return ToolCall(
        call_id=call_id,
        name=function.text("name") or "",
        arguments=function.text("arguments") or "",
        signature=_google_signature(call) or signature,
        cache_control=call.raw("cache_control"),
    )


def _google_signature(call: RequestMembers) -> str:
    """Return the signature in `extra_content.google.thought_signature`, as Google's own chat
    endpoint has it (ai.google.dev/gemini-api/docs/thought-signatures, looked up 2026-11-24).
    """
    extra = call.child("extra_content")
    google = extra.child("google") if extra is not None else None
    return (google.text("thought_signature") if google is not None else None) or ""
