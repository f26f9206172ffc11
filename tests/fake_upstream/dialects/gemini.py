"""Gemini's generateContent: each event is a piece of the answer with the usage so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.fake_upstream.dialects.wording import Usage, Wording, event

_STATES = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 400: "INVALID_ARGUMENT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiWording(Wording):
    """The words of one attempt."""

    @property
    def has_running_usage(self) -> bool:
        """Return True if each token's event has the usage so far."""
        return self.behaviour.has_running_usage

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return a usage; Google's JSON leaves out a count of 0."""
        counts = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": self.behaviour.work.cached_tokens,
            "candidatesTokenCount": made - reasoning,
            "thoughtsTokenCount": reasoning,
            "totalTokenCount": prompt + made,
        }
        return {name: count for name, count in counts.items() if count}

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        parts: list[dict[str, Any]] = [{"text": self.answer(made)}]
        if thoughts := self.thoughts(made):
            parts.insert(0, {"text": thoughts, "thought": True})
        return json.dumps(self._piece(parts, usage, is_last=True)).encode()

    def begin(self) -> bytes:
        """Return nothing: the first token's event is the first one."""
        return b""

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token."""
        part: dict[str, Any] = {"text": self.piece(number)}
        if self.is_thought(number):
            part["thought"] = True
        return event(self._piece([part], usage if self.has_running_usage else None))

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the event with the finish reason."""
        return event(self._piece([{"text": ""}], usage, is_last=True))

    def error(self) -> bytes:
        """Return an error in the stream."""
        return event(self._error(503, "The model is overloaded."))

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        body = self._error(self.failing_status, self.complaint)
        return json.dumps(body if usage is None else {**body, "usageMetadata": usage}).encode()

    def _error(self, status: int, message: str) -> dict[str, Any]:
        state = _STATES.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": state}}

    def _piece(
        self, parts: list[dict[str, Any]], usage: Usage, *, is_last: bool = False
    ) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
        if is_last:
            is_full = self.behaviour.work.is_shortened
            candidate["finishReason"] = "MAX_TOKENS" if is_full else "STOP"
        piece: dict[str, Any] = {
            "candidates": [candidate],
            "modelVersion": self.model,
            "responseId": f"g{self.number}",
        }
        return piece if usage is None else {**piece, "usageMetadata": usage}
