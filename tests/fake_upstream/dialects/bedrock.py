"""Bedrock's Converse: a stream is framed in event messages, and its usage comes in the last one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.event_messages import event, exception, framed
from tests.fake_upstream.dialects.wording import TOOL, Usage, Wording

_TYPES = {
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    400: "ValidationException",
}
_NAMES = {":event-type": "contentBlockDelta", ":message-type": "event"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BedrockWording(Wording):
    """The words of one attempt."""

    stream_type: ClassVar[str] = "application/vnd.amazon.eventstream"
    untold: ClassVar[frozenset[str]] = frozenset({"reasoning"})
    has_plain_error: ClassVar[bool] = False

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the usage; its input leaves out what was cached, and its total does not."""
        work = self.behaviour.work
        usage: dict[str, Any] = {
            "inputTokens": prompt - work.cached_tokens - work.cache_write_tokens,
            "outputTokens": made,
            "totalTokens": prompt + made,
        }
        if work.cached_tokens or work.cache_write_tokens:
            usage["cacheReadInputTokens"] = work.cached_tokens
            usage["cacheWriteInputTokens"] = work.cache_write_tokens
        if an_hour := work.parts.cache_write_1h_tokens:
            usage["cacheDetails"] = [
                {"ttl": "5m", "inputTokens": work.cache_write_tokens - an_hour},
                {"ttl": "1h", "inputTokens": an_hour},
            ]
        return usage

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        call = self.call(made)
        content: list[dict[str, Any]] = [
            {"text": self.answer(made)}
            if call is None
            else {"toolUse": {**self._tool, "input": call}}
        ]
        if thoughts := self.thoughts(made):
            content.insert(0, {"reasoningContent": {"reasoningText": {"text": thoughts}}})
        answer: dict[str, Any] = {
            "output": {"message": {"role": "assistant", "content": content}},
            "stopReason": self._stop_reason,
            "metrics": {"latencyMs": 7},
            "serviceTier": {"type": "default"},
        }
        return json.dumps(answer if usage is None else {**answer, "usage": usage}).encode()

    def begin(self) -> bytes:
        """Return the first message."""
        return event("messageStart", {"role": "assistant"})

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the message of one token, and the end of the block of reasoning before it."""
        work, is_thought = self.behaviour.work, self.is_thought(number)
        place = int(bool(work.reasoning_tokens) and not is_thought)
        before = b""
        if number and number == work.reasoning_tokens:
            before = event("contentBlockStop", {"contentBlockIndex": 0})
        if number == work.tool_begins_at:
            start = {"contentBlockIndex": place, "start": {"toolUse": self._tool}}
            before += event("contentBlockStart", start)
        if self.is_call(number):
            delta: dict[str, Any] = {"toolUse": {"input": self.argument(number)}}
            return before + event("contentBlockDelta", {"contentBlockIndex": place, "delta": delta})
        piece: dict[str, Any] = {"text": self.piece(number)}
        delta = {"reasoningContent": piece} if is_thought else piece
        return before + event("contentBlockDelta", {"contentBlockIndex": place, "delta": delta})

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the end of the content, and the message with the usage, if there is one."""
        place = int(bool(text) and self.behaviour.work.reasoning_tokens > 0)
        ended = event("contentBlockStop", {"contentBlockIndex": place})
        ended += event("messageStop", {"stopReason": self._stop_reason})
        if usage is None:
            return ended
        more = {"metrics": {"latencyMs": 7}, "serviceTier": {"type": "default"}}
        return ended + event("metadata", {"usage": usage, **more})

    def bad_event(self) -> bytes:
        """Return a message whose payload is no JSON."""
        return framed(_NAMES, b"{not json")

    def error(self) -> bytes:
        """Return an exception in the stream."""
        return exception("modelStreamErrorException", "The model failed.")

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        body: dict[str, Any] = {"message": self.complaint}
        return json.dumps(body if usage is None else {**body, "usage": usage}).encode()

    def error_headers(self) -> str:
        """Return the header that names the exception."""
        kind = _TYPES.get(self.failing_status, "InternalServerException")
        return f"x-amzn-errortype: {kind}:http://internal.amazon.com/\r\n"

    @property
    def _stop_reason(self) -> str:
        if self.behaviour.work.is_shortened:
            return "max_tokens"
        return "end_turn" if self.behaviour.work.tool_begins_at is None else "tool_use"

    @property
    def _tool(self) -> dict[str, Any]:
        return {"toolUseId": f"tooluse_{self.number}", "name": TOOL}
