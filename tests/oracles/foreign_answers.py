"""Answers of each upstream dialect with any content, plain and streamed, and their translations for
each caller.

A seed makes one content; an upstream's dialect writes it in both forms, so both translations have
to be equal.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.domain.operation import Operation
from gateway.wire.anthropic.request.read import read_request as read_messages
from gateway.wire.anthropic.translation.caller_writer import MessagesWriter
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader, messages_events
from gateway.wire.bedrock.answer import ConverseReader, converse_events
from gateway.wire.dialect import written
from gateway.wire.gemini.answer import GeminiReader, gemini_events
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader, ollama_events
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from gateway.wire.openai.chat_translation.reader import ChatReader, chat_events
from gateway.wire.openai.chat_translation.writer import ChatWriter
from gateway.wire.openai.request.read import read_request as read_openai
from gateway.wire.openai.responses_translation.writer import ResponsesWriter
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    AnswerReader,
    AnswerWriter,
    Started,
)
from tests.event_messages import event

PNG = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(40))).decode()
_TEXTS = ("Hi ", "ö😀", '{"a":', "\n\n", " [1] ", "a}b\\")
_ARGUMENTS: tuple[dict[str, Any], ...] = ({}, {"a": 1}, {"q": '"}{', "l": [{}, None, "😀"]})


@dataclass(kw_only=True)
class Part:
    """One part of an answer: its kind, its text or bytes, and what else its kind has."""

    kind: str  # text, thought, sealed, call, picture, refusal, or an upstream's own
    text: str = ""
    is_token: bool = False  # with its log probability, where the dialect has these
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Content:
    """The content of one answer, its end and its counts; None for a usage that is not stated."""

    parts: list[Part]
    end: str
    counts: dict[str, Any] | None
    chance: random.Random


@dataclass(frozen=True, kw_only=True)
class Target:
    """An upstream's dialect: the kinds and ends that it has, and how it writes both forms."""

    kinds: tuple[str, ...]
    ends: tuple[str, ...]
    counts: tuple[str, ...]  # by their places, those of details behind a dot
    plain: Callable[[Content], bytes]
    stream: Callable[[Content], bytes]
    reader: Callable[[], AnswerReader]
    events: Callable[[bytes], Sequence[AnswerEvent]]


def content_of(target: Target, seed: int) -> Content:
    """Return the content of a seed in the kinds that a dialect has."""
    chance = random.Random(seed)
    parts = [_part(chance, chance.choice(target.kinds), at) for at in range(chance.randrange(6))]
    counts: dict[str, Any] = {}
    for name in target.counts:
        place, _, inner = name.rpartition(".")
        if chance.random() < 0.8:
            (counts.setdefault(place, {}) if place else counts)[inner] = chance.randrange(1, 50)
    end = chance.choice((*target.ends, "word_of_tomorrow"))
    is_stated = chance.random() < 0.9
    return Content(parts=parts, end=end, counts=counts if is_stated else None, chance=chance)


def _part(chance: random.Random, kind: str, at: int) -> Part:
    """Return one part of a kind."""
    if kind == "call":
        arguments = chance.choice(_ARGUMENTS)
        return Part(kind=kind, name=f"tool_{at}", text=f"id_{at}", arguments=arguments)
    if kind == "picture":
        return Part(kind=kind, text=PNG)
    text = "".join(chance.choice(_TEXTS) for _ in range(chance.randrange(1, 4)))
    return Part(kind=kind, text=text, is_token=chance.random() < 0.3)


def pieces_of(text: str, chance: random.Random) -> list[str]:
    """Return a text in pieces."""
    at = chance.randrange(len(text) + 1)
    return [piece for piece in (text[:at], text[at:]) if piece]


def arguments_of(part: Part) -> str:
    """Return a call's arguments as compact JSON, as they are written of an object."""
    return json.dumps(part.arguments, separators=(",", ":"), ensure_ascii=False)


def tokens_of(parts: list[Part]) -> list[dict[str, Any]]:
    """Return the log probabilities of the texts that are tokens."""
    tokens = [one.text for one in parts if one.kind == "text" and one.is_token]
    return [
        {"token": one, "logprob": -0.5, "bytes": [*one.encode()], "top_logprobs": []}
        for one in tokens
    ]


def _sse(*objects: Any, named: bool = False) -> bytes:
    lines = []
    for one in objects:
        name = f"event: {one['type']}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(one)}\n\n")
    return "".join(lines).encode()


# ---- chat


def _chat_message(content: Content) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for part in content.parts:
        if part.kind == "text":
            message["content"] = (message["content"] or "") + part.text
        elif part.kind in ("thought", "refusal"):
            name = "reasoning_content" if part.kind == "thought" else "refusal"
            message[name] = message.get(name, "") + part.text
        elif part.kind == "call":
            message.setdefault("tool_calls", []).append(_chat_call(part))
        elif part.kind == "picture":
            message.setdefault("images", []).append(_chat_image(part))
        else:
            message[part.kind] = _ODD_CHAT[part.kind]
    return message


_ODD_CHAT: dict[str, Any] = {
    "audio": {"id": "a", "data": "AAAA", "transcript": "x", "expires_at": 1},
    "annotations": [{"type": "url_citation", "url_citation": {"url": "https://example.com"}}],
}


def _chat_call(part: Part) -> dict[str, Any]:
    function = {"name": part.name, "arguments": arguments_of(part)}
    return {"id": part.text, "type": "function", "function": function}


def _chat_image(part: Part) -> dict[str, Any]:
    url = f"data:image/png;base64,{part.text}"
    return {"type": "image_url", "image_url": {"url": url}}


def _chat_head(content: Content, **choice: Any) -> dict[str, Any]:
    usage = {} if content.counts is None else {"usage": _chat_usage(content.counts)}
    tokens = tokens_of(content.parts)
    logprobs = {"content": tokens, "refusal": None} if tokens else None
    choices = [{"index": 0, "logprobs": logprobs, **choice}] if choice else []
    return {"id": "c1", "created": 5, "model": "m", "choices": choices, **usage}


def _chat_usage(counts: dict[str, Any]) -> dict[str, Any]:
    total = counts.get("prompt_tokens", 0) + counts.get("completion_tokens", 0)
    return {**counts, "total_tokens": total}


def _chat_plain(content: Content) -> bytes:
    head = _chat_head(content, message=_chat_message(content), finish_reason=content.end)
    return json.dumps({**head, "object": "chat.completion"}).encode()


def _chat_stream(content: Content) -> bytes:
    bare = Content(parts=[], end="", counts=None, chance=content.chance)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    chunks: list[dict[str, Any]] = []
    calls = 0
    # A plain message has no order of its parts: thoughts, text, refusal, pictures, others, calls.
    order = ("thought", "text", "refusal", "picture", *_ODD_CHAT, "call")
    names = {"thought": "reasoning_content", "text": "content", "refusal": "refusal"}
    for part in sorted(content.parts, key=lambda one: order.index(one.kind)):
        if part.kind == "text" and part.is_token:
            token = Content(parts=[part], end="", counts=None, chance=content.chance)
            chunks += (_chat_head(bare, delta=one, finish_reason=None) for one in deltas)
            chunks.append(_chat_head(token, delta={"content": part.text}, finish_reason=None))
            deltas = []
        elif part.kind in names:
            deltas += ({names[part.kind]: one} for one in pieces_of(part.text, content.chance))
        elif part.kind == "call":
            call = _chat_call(part)
            text = call["function"].pop("arguments")
            deltas.append({"tool_calls": [{"index": calls, **call}]})
            deltas += (
                {"tool_calls": [{"index": calls, "function": {"arguments": one}}]}
                for one in pieces_of(text, content.chance)
            )
            calls += 1
        elif part.kind == "picture":
            deltas.append({"images": [_chat_image(part)]})
        else:
            deltas.append({part.kind: _ODD_CHAT[part.kind]})
    chunks += (_chat_head(bare, delta=one, finish_reason=None) for one in deltas)
    chunks.append(_chat_head(bare, delta={}, finish_reason=content.end))
    if content.counts is not None:
        chunks.append(_chat_head(content))
    return _sse(*chunks) + b"data: [DONE]\n\n"


def _chat_reader() -> ChatReader:
    asked = {"wants_usage": False, "wants_running_usage": False, "asked_running_usage": False}
    return ChatReader(chat_stream(model="assistant", collects_text=True, **asked))


def _chat_events(body: bytes) -> Sequence[AnswerEvent]:
    observed = Observed()
    return chat_events(rewrite_chat(body, observed, model="assistant"), observed)


# ---- messages


def _message_block(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"type": "text", "text": part.text, "citations": None}
    if part.kind == "cited":
        return {"type": "text", "text": part.text, "citations": [{"type": "char_location"}]}
    if part.kind == "thought":
        return {"type": "thinking", "thinking": part.text, "signature": "c2ln"}
    if part.kind == "sealed":
        return {"type": "redacted_thinking", "data": part.text}
    if part.kind == "call":
        return {"type": "tool_use", "id": part.text, "name": part.name, "input": part.arguments}
    return {"type": part.kind, "id": "s", "tool_use_id": "s", "name": "web_search", "content": []}


def _message_plain(content: Content) -> bytes:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [_message_block(part) for part in content.parts],
        "stop_reason": content.end,
        "stop_sequence": "STOP" if content.end == "stop_sequence" else None,
    }
    return json.dumps(message | _usage("usage", content.counts)).encode()


def _message_stream(content: Content) -> bytes:
    start = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}]
    for at, part in enumerate(content.parts):
        block = _message_block(part)
        deltas: list[dict[str, Any]] = []
        if part.kind in ("text", "cited"):
            deltas += (
                {"type": "text_delta", "text": one} for one in pieces_of(part.text, content.chance)
            )
            if part.kind == "cited":
                citation = block["citations"][0]
                deltas.append({"type": "citations_delta", "citation": citation})
            block |= {"text": "", "citations": None}
        elif part.kind == "thought":
            deltas += (
                {"type": "thinking_delta", "thinking": one}
                for one in pieces_of(part.text, content.chance)
            )
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            block |= {"thinking": "", "signature": ""}
        elif part.kind == "call":
            text = arguments_of(part)
            deltas += (
                {"type": "input_json_delta", "partial_json": one}
                for one in pieces_of(text, content.chance)
            )
            block["input"] = {}
        events.append({"type": "content_block_start", "index": at, "content_block": block})
        events += ({"type": "content_block_delta", "index": at, "delta": one} for one in deltas)
        events.append({"type": "content_block_stop", "index": at})
    sequence = "STOP" if content.end == "stop_sequence" else None
    end = {"stop_reason": content.end, "stop_sequence": sequence}
    last = {"type": "message_delta", "delta": end} | _usage("usage", content.counts)
    return _sse(*events, last, {"type": "message_stop"}, named=True)


def _usage(name: str, counts: dict[str, Any] | None) -> dict[str, Any]:
    return {} if counts is None else {name: counts}


# ---- Gemini


def _gemini_part(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"text": part.text}
    if part.kind == "thought":
        return {"text": part.text, "thought": True}
    if part.kind == "call":
        return {"functionCall": {"name": part.name, "args": part.arguments, "id": part.text}}
    if part.kind in ("picture", "audio"):
        media_type = "image/png" if part.kind == "picture" else "audio/wav"
        return {"inlineData": {"mimeType": media_type, "data": PNG}}
    return {part.kind: {"code": part.text}}


def _gemini_body(content: Content, parts: list[Any], *, is_last: bool) -> dict[str, Any]:
    candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
    if is_last:
        candidate["finishReason"] = content.end
    usage = _usage("usageMetadata", content.counts) if is_last else {}
    return {"candidates": [candidate], "responseId": "g1", **usage}


def _gemini_plain(content: Content) -> bytes:
    parts = [_gemini_part(part) for part in content.parts]
    return json.dumps(_gemini_body(content, parts, is_last=True)).encode()


def _gemini_stream(content: Content) -> bytes:
    pieces: list[dict[str, Any]] = []
    for part in content.parts:
        written_part = _gemini_part(part)
        if part.kind in ("text", "thought"):
            texts = pieces_of(part.text, content.chance)
            pieces += ({**written_part, "text": text} for text in texts)
        else:
            pieces.append(written_part)
    events = [_gemini_body(content, [one], is_last=False) for one in pieces]
    return _sse(*events, _gemini_body(content, [], is_last=True))


# ---- Bedrock


def _bedrock_block(part: Part) -> dict[str, Any]:
    if part.kind == "text":
        return {"text": part.text}
    if part.kind == "cited":
        citations = [{"title": "t"}]
        return {"citationsContent": {"content": [{"text": part.text}], "citations": citations}}
    if part.kind == "thought":
        text = {"text": part.text, "signature": "c2ln"}
        return {"reasoningContent": {"reasoningText": text}}
    if part.kind == "sealed":
        return {"reasoningContent": {"redactedContent": b64encode(part.text.encode()).decode()}}
    if part.kind == "call":
        use = {"toolUseId": part.text, "name": part.name, "input": part.arguments}
        return {"toolUse": use}
    if part.kind == "picture":
        return {"image": {"format": "png", "source": {"bytes": part.text}}}
    return {part.kind: {"content": [], "toolUseId": "t"}}


def _bedrock_plain(content: Content) -> bytes:
    message = {"role": "assistant", "content": [_bedrock_block(part) for part in content.parts]}
    answer = {"output": {"message": message}, "stopReason": content.end}
    return json.dumps(answer | _usage("usage", content.counts)).encode()


def _bedrock_stream(content: Content) -> bytes:
    found = [event("messageStart", {"role": "assistant"})]
    for at, part in enumerate(content.parts):
        place, block = {"contentBlockIndex": at}, _bedrock_block(part)
        deltas: list[dict[str, Any]] = []
        start: dict[str, Any] | None = None
        if part.kind in ("text", "cited"):
            deltas += ({"text": one} for one in pieces_of(part.text, content.chance))
            if part.kind == "cited":
                deltas.append({"citation": {"title": "t"}})
        elif part.kind == "thought":
            texts = pieces_of(part.text, content.chance)
            deltas += ({"reasoningContent": {"text": one}} for one in texts)
            deltas.append({"reasoningContent": {"signature": "c2ln"}})
        elif part.kind == "sealed":
            deltas.append(block)
        elif part.kind == "call":
            use = {"toolUseId": part.text, "name": part.name}
            start = {"toolUse": use}
            texts = pieces_of(arguments_of(part), content.chance)
            deltas += ({"toolUse": {"input": one}} for one in texts)
        elif part.kind == "picture":
            start = {"image": {"format": "png"}}
            halves = (part.text[:8], part.text[8:])
            deltas += ({"image": {"source": {"bytes": half}}} for half in halves)
        else:
            start = block
        if start is not None:
            found.append(event("contentBlockStart", {**place, "start": start}))
        found += (event("contentBlockDelta", {**place, "delta": one}) for one in deltas)
        found.append(event("contentBlockStop", place))
    found.append(event("messageStop", {"stopReason": content.end}))
    if content.counts is not None:
        found.append(event("metadata", {"usage": content.counts}))
    return b"".join(found)


# ---- Ollama


def _ollama_line(**members: Any) -> dict[str, Any]:
    created = "2026-11-24T10:00:00.1Z"
    return {"model": "m", "created_at": created, "done": False, **members}


def _ollama_end(content: Content) -> dict[str, Any]:
    return {"done": True, "done_reason": content.end, **(content.counts or {})}


def _ollama_plain(content: Content) -> bytes:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    for part in content.parts:
        if part.kind in ("text", "thought"):
            name = "content" if part.kind == "text" else "thinking"
            message[name] = message.get(name, "") + part.text
        elif part.kind == "call":
            call = {"function": {"name": part.name, "arguments": part.arguments}}
            message.setdefault("tool_calls", []).append(call)
        else:
            message["images"] = [PNG]
    tokens = tokens_of(content.parts)
    logprobs = {"logprobs": tokens} if tokens else {}
    return json.dumps(_ollama_line(message=message, **logprobs) | _ollama_end(content)).encode()


def _ollama_stream(content: Content) -> bytes:
    order = ("thought", "text", "images", "call")  # a plain message has none of its own
    empty = {"role": "assistant", "content": ""}
    lines: list[dict[str, Any]] = []
    for part in sorted(content.parts, key=lambda one: order.index(one.kind)):
        if part.kind in ("text", "thought"):
            name = "content" if part.kind == "text" else "thinking"
            tokens = tokens_of([part])
            texts = [part.text] if tokens else pieces_of(part.text, content.chance)
            logprobs = {"logprobs": tokens} if tokens else {}
            lines += ({"message": {**empty, name: one}, **logprobs} for one in texts)
        elif part.kind == "call":
            call = {"function": {"name": part.name, "arguments": part.arguments}}
            lines.append({"message": {**empty, "tool_calls": [call]}})
        else:
            lines.append({"message": {**empty, "images": [PNG]}})
    last = _ollama_line(message=empty) | _ollama_end(content)
    return b"".join(
        json.dumps(one).encode() + b"\n"
        for one in (*(_ollama_line(**line) for line in lines), last)
    )


TARGETS = {
    "chat": Target(
        kinds=("text", "thought", "refusal", "call", "picture", *_ODD_CHAT),
        ends=("stop", "length", "tool_calls", "content_filter"),
        counts=(
            "prompt_tokens",
            "completion_tokens",
            "prompt_tokens_details.cached_tokens",
            "completion_tokens_details.reasoning_tokens",
        ),
        plain=_chat_plain,
        stream=_chat_stream,
        reader=_chat_reader,
        events=_chat_events,
    ),
    "messages": Target(
        kinds=(
            *("text", "cited", "thought", "sealed", "call", "server_tool_use"),
            *("web_search_tool_result", "container_upload"),
        ),
        ends=("end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "pause_turn"),
        counts=(
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens_details.thinking_tokens",
        ),
        plain=_message_plain,
        stream=_message_stream,
        reader=MessagesReader,
        events=lambda body: messages_events(body, Observed()),
    ),
    "gemini": Target(
        kinds=(
            *("text", "thought", "call", "picture", "audio"),
            *("executableCode", "codeExecutionResult", "fileData"),
        ),
        ends=("STOP", "MAX_TOKENS", "SAFETY", "MALFORMED_FUNCTION_CALL", "OTHER"),
        counts=(
            *("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount"),
            "thoughtsTokenCount",
        ),
        plain=_gemini_plain,
        stream=_gemini_stream,
        reader=GeminiReader,
        events=lambda body: gemini_events(body, Observed()),
    ),
    "bedrock": Target(
        kinds=("text", "cited", "thought", "sealed", "call", "picture", "toolResult"),
        ends=("end_turn", "max_tokens", "tool_use", "content_filtered", "guardrail_intervened"),
        counts=("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens"),
        plain=_bedrock_plain,
        stream=_bedrock_stream,
        reader=ConverseReader,
        events=lambda body: converse_events(body, Observed()),
    ),
    "ollama": Target(
        kinds=("text", "thought", "call", "images"),
        ends=("stop", "length", "load"),
        counts=("prompt_eval_count", "eval_count"),
        plain=_ollama_plain,
        stream=_ollama_stream,
        reader=OllamaReader,
        events=lambda body: ollama_events(body, Observed()),
    ),
}
CALLERS = ("chat", "messages", "responses")
PAIRS = [(caller, target) for caller in CALLERS for target in TARGETS if caller != target]


def writer_for(caller: str) -> AnswerWriter:
    """Return the writer for a caller who wants the usage of a stream."""
    body: dict[str, Any] = {"model": "assistant", "stream": True}
    own = Started(answer_id="0" * 32, created_s=5)
    if caller == "messages":
        asked = json.dumps({**body, "max_tokens": 50, "messages": []}).encode()
        return MessagesWriter(read_messages(asked), own)
    if caller == "responses":
        asked = json.dumps({**body, "input": "Hi"}).encode()
        return ResponsesWriter(read_openai(Operation.RESPONSES, asked), own)
    options = {"include_usage": True}
    asked = json.dumps({**body, "messages": [], "stream_options": options}).encode()
    return ChatWriter(read_openai(Operation.CHAT, asked), own)


def translated(caller: str, target: Target, seed: int, *, step: int) -> tuple[Any, bytes]:
    """Return the plain answer of a content for a caller, and the stream, read in steps."""
    plain = target.plain(content_of(target, seed))
    answer = written(writer_for(caller).whole(target.events(plain)), lambda _: "1.0")
    sent, reader, writer = (
        target.stream(content_of(target, seed)),
        target.reader(),
        writer_for(caller),
    )
    parts = []
    for at in range(0, len(sent), step):
        parts += writer.write(reader.feed(sent[at : at + step]))
    parts += writer.write(reader.end())
    return json.loads(answer), b"".join(written(part, lambda _: "1.0") for part in parts)


def payloads(stream: bytes) -> list[dict[str, Any]]:
    """Return the objects of a caller's stream."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def assembled(caller: str, stream: bytes) -> dict[str, Any]:
    """Return a caller's stream as the plain answer that it is."""
    events = payloads(stream)
    if caller == "responses":
        whole: dict[str, Any] = events[-1]["response"]
        return whole
    return _assembled_message(events) if caller == "messages" else _assembled_chat(events)


def _assembled_message(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message of a stream."""
    message: dict[str, Any] = events[0]["message"]
    arguments: dict[int, str] = {}
    for one in events[1:]:
        delta = one.get("delta", {})
        if one["type"] == "content_block_start":
            message["content"].append(one["content_block"])
        elif one["type"] == "message_delta":
            message |= {**delta, "usage": one["usage"]}
        elif one["type"] == "content_block_delta" and delta["type"] == "input_json_delta":
            arguments[one["index"]] = arguments.get(one["index"], "") + delta["partial_json"]
        elif one["type"] == "content_block_delta":
            name = delta["type"].removesuffix("_delta")
            block = message["content"][one["index"]]
            block[name] += delta[name]
    for at, text in arguments.items():
        message["content"][at]["input"] = json.loads(text)
    return message


def _assembled_chat(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the chat completion of a stream."""
    message: dict[str, Any] = {}
    logprobs: list[Any] = []
    finish, usage = None, None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            finish = choice["finish_reason"] or finish
            logprobs += (choice["logprobs"] or {}).get("content", [])
            for name, value in choice["delta"].items():
                if name == "role" or not isinstance(value, str | list):
                    message[name] = value
                elif name == "tool_calls":
                    _add_call(message.setdefault(name, []), value[0])
                elif isinstance(value, list):
                    items = [_bare(one) for one in value]
                    message[name] = message.get(name, []) + items
                else:
                    message[name] = message.get(name, "") + value
    whole = {"message": message, "finish_reason": finish, "logprobs": logprobs or None}
    return {**chunks[0], "choices": [whole], "usage": usage}


def _add_call(calls: list[Any], piece: dict[str, Any]) -> None:
    """Add a piece of a call."""
    if piece["index"] == len(calls):
        calls.append(_bare(piece))
    else:
        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]


def _bare(item: Any) -> Any:
    """Return an item of a delta without its number."""
    if not isinstance(item, dict):
        return item
    return {name: value for name, value in item.items() if name != "index"}
