"""Recorded transcripts of all dialects: their events, and what each event says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fake_upstream.transcripts import GOLDEN, transcript

Usage = tuple[int, int] | None
CASES = (
    "openai/chat-stream",
    "openai/chat-stream-tools",
    "openai/responses-stream",
    "vllm/chat-stream",
    "deepseek/chat-stream",
    "groq/chat-stream",
    "anthropic/messages-stream-thinking",
    "anthropic/chat-stream-tools",
    "gemini/chat-stream",
    "bedrock/chat-stream-tools",
    "ollama/native-chat-stream",
    "triton/generate-stream",
)
PATHS = {
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
}
# Those that say their usage all along; those that are told to stop when a caller leaves; those
# whose end is the end of the body.
RUNNING = frozenset({"vllm", "gemini", "triton"})
ENGINES = frozenset({"vllm", "ollama", "triton"})
ENDLESS = frozenset({"gemini", "triton"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A transcript, with each event's usage: (input, output), None without any."""

    case: str
    path: str
    request: dict[str, Any]
    events: tuple[bytes, ...]
    usage: tuple[Usage, ...]
    # Usage in a member of one provider's own, which may be read and need not be.
    hints: tuple[bool, ...]
    has_done: tuple[bool, ...]
    has_text: tuple[bool, ...]  # something that was generated, which can be counted

    @property
    def length(self) -> int:
        return sum(map(len, self.events))

    @property
    def folder(self) -> str:
        """The provider's folder."""
        return self.case.partition("/")[0]

    @property
    def is_running(self) -> bool:
        """Return True if usage is reported all along, not only at the end."""
        return self.folder in RUNNING

    @property
    def is_engine(self) -> bool:
        """Return True if the upstream is left at once when its caller has left."""
        return self.folder in ENGINES

    @property
    def events_of_usage(self) -> int:
        """Return how many events there are up to the final usage."""
        return len(self.events) - (self.folder == "vllm")  # its last one is `[DONE]`

    def whole_events(self, first_bytes: int) -> int:
        """How many events are complete within so many bytes."""
        count = 0
        for event in self.events:
            first_bytes -= len(event)
            if first_bytes < 0:
                break
            count += 1
        return count

    def body(self, route: str, cut: int) -> bytes:
        """The caller's request. It says after how many bytes the upstream is to cut."""
        request = {**self.request, "model": route}
        if self.path == PATHS["responses"]:
            return json.dumps({**request, "user": str(cut)}).encode()
        if "prompt" in request:  # in the text, since not each dialect has a member for it
            return json.dumps({**request, "prompt": f"#{cut} {request['prompt']}"}).encode()
        first, *others = request["messages"]
        first = {**first, "content": f"#{cut} {first['content']}"}
        return json.dumps({**request, "messages": [first, *others]}).encode()


def read(case: str) -> Recorded:
    """One recorded case."""
    folder = GOLDEN / case
    operation = json.loads((folder / "case.json").read_text())["operation"]
    events = transcript(case)
    name = case.partition("/")[0]
    values = [_value_of(event, name) for event in events]
    usage_of, has_text = READERS.get(name, (_openai_usage, _has_openai_text))
    usages = [usage_of(value) for value in values]
    request = json.loads((folder / "request.json").read_text())
    is_hidden = False
    if name == "anthropic":
        usages = [_with_prompt(usage, values[0]) for usage in usages]
        is_hidden = "thinking" in request  # the tokens of thinking; its text is a summary of it
    if name == "triton":
        usages = _summed(usages)
    has_done = [
        b"[DONE]" in event
        or b'"response.completed"' in event
        or b'"message_stop"' in event
        or bool(value.get("done"))
        or (name == "bedrock" and "usage" in value)
        for event, value in zip(events, values, strict=True)
    ]
    if name in ENDLESS:
        has_done[-1] = True
    return Recorded(
        case=case,
        path=PATHS.get(operation, "/v1/chat/completions"),
        request=request,
        events=events,
        usage=tuple(usages),
        hints=tuple(b'"x_groq":' in event and b'"usage":' in event for event in events),
        has_done=tuple(has_done),
        has_text=tuple(not is_hidden and has_text(value) for value in values),
    )


def _value_of(event: bytes, name: str) -> dict[str, Any]:
    """Return the JSON object in an event, empty if there is none."""
    data = event.rpartition(b"data: ")[2].strip()
    if name == "bedrock":
        data = event[12 + int.from_bytes(event[4:8]) : -4]
    return dict(json.loads(data)) if data.startswith(b"{") else {}


def _summed(usages: list[Usage]) -> list[Usage]:
    """Return running figures whose output is the sum so far: each event says its own."""
    total, found = 0, list[Usage]()
    for usage in usages:
        if usage is not None:
            total += usage[1]
            usage = usage[0], total
        found.append(usage)
    return found


def _openai_usage(chunk: dict[str, Any]) -> Usage:
    usage = chunk.get("usage") or (chunk.get("response") or {}).get("usage")
    if not usage:
        return None
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    return usage["input_tokens"], usage["output_tokens"]


def _has_openai_text(chunk: dict[str, Any]) -> bool:
    deltas = [choice.get("delta") or {} for choice in chunk.get("choices") or ()]
    written = (
        delta.get(name)
        for delta in deltas
        for name in ("content", "reasoning", "reasoning_content")
    )
    return any(written) or (
        str(chunk.get("type")).endswith("_text.delta") and bool(chunk.get("delta"))
    )


def _anthropic_usage(event: dict[str, Any]) -> Usage:
    """Return the last usage: the one of the start has the prompt alone."""
    usage = event.get("usage")
    if not usage:
        return None
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(name) or 0 for name in names), usage["output_tokens"]


def _with_prompt(usage: Usage, start: dict[str, Any]) -> Usage:
    """Return a last usage with the prompt of the first event, where it names none itself."""
    if usage is None or usage[0]:
        return usage
    said = _anthropic_usage(start["message"])
    assert said is not None, "a message begins with its prompt's usage"
    return said[0], usage[1]


def _has_anthropic_text(event: dict[str, Any]) -> bool:
    delta = event.get("delta") or {}
    return any(delta.get(name) for name in ("text", "thinking", "partial_json"))


def _gemini_usage(piece: dict[str, Any]) -> Usage:
    usage = piece.get("usageMetadata") or {}
    if "promptTokenCount" not in usage:
        return None
    written = [usage.get(name) or 0 for name in ("candidatesTokenCount", "thoughtsTokenCount")]
    return usage["promptTokenCount"], sum(written)


def _has_gemini_text(piece: dict[str, Any]) -> bool:
    return any(
        part.get("text")
        for one in piece.get("candidates") or ()
        for part in one["content"]["parts"]
    )


def _bedrock_usage(event: dict[str, Any]) -> Usage:
    usage = event.get("usage")
    if not usage:
        return None
    names = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    return sum(usage.get(name) or 0 for name in names), usage["outputTokens"]


def _has_bedrock_text(event: dict[str, Any]) -> bool:
    delta = event.get("delta") or {}
    pieces = (delta, delta.get("reasoningContent") or {}, delta.get("toolUse") or {})
    return any(piece.get("text") or piece.get("input") for piece in pieces)


def _ollama_usage(line: dict[str, Any]) -> Usage:
    if not line.get("done"):
        return None
    return line.get("prompt_eval_count") or 0, line.get("eval_count") or 0


def _has_ollama_text(line: dict[str, Any]) -> bool:
    message = line.get("message") or {}
    return bool(message.get("content") or message.get("thinking"))


def _triton_usage(piece: dict[str, Any]) -> Usage:
    if "num_output_tokens" not in piece:
        return None
    return piece["num_input_tokens"], piece["num_output_tokens"]


def _has_triton_text(piece: dict[str, Any]) -> bool:
    return bool(piece.get("text_output"))


Reader = tuple[Callable[[dict[str, Any]], Usage], Callable[[dict[str, Any]], bool]]
READERS: dict[str, Reader] = {
    "anthropic": (_anthropic_usage, _has_anthropic_text),
    "gemini": (_gemini_usage, _has_gemini_text),
    "bedrock": (_bedrock_usage, _has_bedrock_text),
    "ollama": (_ollama_usage, _has_ollama_text),
    "triton": (_triton_usage, _has_triton_text),
}
