"""Anthropic's messages: named events; the prompt's usage comes first and the whole one last."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fake_upstream.dialects.wording import TOOL, Usage, Wording, event

OVERLOADED = 529  # Anthropic's own status for it
_TYPES = {429: "rate_limit_error", OVERLOADED: "overloaded_error", 400: "invalid_request_error"}
SIGNATURE = "EqQB+/="


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicWording(Wording):
    """The words of one attempt."""

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the final usage; its input leaves out what was cached."""
        work = self.behaviour.work
        an_hour = work.parts.cache_write_1h_tokens
        usage: dict[str, Any] = {
            "input_tokens": prompt - work.cached_tokens - work.cache_write_tokens,
            "cache_read_input_tokens": work.cached_tokens,
            "cache_creation_input_tokens": work.cache_write_tokens,
            "cache_creation": {
                "ephemeral_5m_input_tokens": work.cache_write_tokens - an_hour,
                "ephemeral_1h_input_tokens": an_hour,
            },
            "output_tokens": made,
            "output_tokens_details": {"thinking_tokens": reasoning},
            "service_tier": "standard",
            "speed": "standard",
            "inference_geo": "not_available",
        }
        if searches := work.parts.web_search_calls:
            usage["server_tool_use"] = {"web_search_requests": searches, "web_fetch_requests": 0}
        return usage

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        blocks: list[dict[str, Any]] = []
        if thoughts := self.thoughts(made):
            blocks.append({"type": "thinking", "thinking": thoughts, "signature": SIGNATURE})
        call = self.call(made)
        blocks.append(
            {"type": "text", "text": self.answer(made)} if call is None else self._tool_use(call)
        )
        return json.dumps(self._message(blocks, self._stop_reason, usage)).encode()

    def begin(self) -> bytes:
        """Return the event with the prompt's usage."""
        work = self.behaviour.work
        usage = self.usage(1, 0, prompt=work.input_tokens) if self.has_final_usage else None
        if usage is not None:
            del usage["output_tokens_details"]
        start = _event("message_start", message=self._message([], None, usage))
        return start + _event("ping")

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token, and those that begin and end blocks around it."""
        is_thought, first_text = self.is_thought(number), self.behaviour.work.reasoning_tokens
        place = 0 if is_thought or not first_text else 1
        before = b""
        if number == first_text and number:
            signature = {"type": "signature_delta", "signature": SIGNATURE}
            before += _event("content_block_delta", index=0, delta=signature)
            before += _event("content_block_stop", index=0)
        if number in (0, first_text):
            block: dict[str, Any] = {"type": "text", "text": ""}
            if is_thought:
                block = {"type": "thinking", "thinking": "", "signature": ""}
            elif self.is_call(number):
                block = self._tool_use({})
            before += _event("content_block_start", index=place, content_block=block)
        if self.is_call(number):
            piece = {"type": "input_json_delta", "partial_json": self.argument(number)}
            return before + _event("content_block_delta", index=place, delta=piece)
        name = "thinking" if is_thought else "text"
        delta = {"type": f"{name}_delta", name: self.piece(number)}
        return before + _event("content_block_delta", index=place, delta=delta)

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the end of the last block, and the event with the usage."""
        delta = {"stop_reason": self._stop_reason, "stop_sequence": None}
        members = {} if usage is None else {"usage": usage}
        place = int(bool(text) and self.behaviour.work.reasoning_tokens > 0)
        ended = _event("content_block_stop", index=place)
        return ended + _event("message_delta", delta=delta, **members)

    def done(self) -> bytes:
        """Return the last event."""
        return _event("message_stop")

    def error(self) -> bytes:
        """Return an error in the stream."""
        error = {"type": "overloaded_error", "message": "Overloaded"}
        return _event("error", error=error)

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        type_ = _TYPES.get(self.failing_status, "api_error")
        body: dict[str, Any] = {
            "type": "error",
            "error": {"type": type_, "message": self.complaint},
            "request_id": f"req_{self.number}",
        }
        return json.dumps(body if usage is None else {**body, "usage": usage}).encode()

    def status(self, status: int) -> int:
        """Return the status that Anthropic has for an error."""
        return OVERLOADED if status == 503 else status

    @property
    def _stop_reason(self) -> str:
        if self.behaviour.work.is_shortened:
            return "max_tokens"
        return "end_turn" if self.behaviour.work.tool_begins_at is None else "tool_use"

    def _tool_use(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "tool_use",
            "id": f"toolu_{self.number}",
            "name": TOOL,
            "input": arguments,
        }

    def _message(
        self, blocks: list[dict[str, Any]], stop_reason: str | None, usage: Usage
    ) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": f"msg_{self.number}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": blocks,
            "stop_reason": stop_reason,
            "stop_sequence": None,
        }
        return message if usage is None else {**message, "usage": usage}


def _event(kind: str, **members: Any) -> bytes:
    return b"event: %b\n%b" % (kind.encode(), event({"type": kind, **members}))
