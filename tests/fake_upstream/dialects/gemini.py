"""Gemini's generateContent: each event is a piece of the answer with the usage so far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.fake_upstream.dialects.wording import TOOL, Usage, Wording, event

_STATES = {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE", 400: "INVALID_ARGUMENT"}
SIGNATURE = "S+/="
_RETRY = "type.googleapis.com/google.rpc.RetryInfo"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiWording(Wording):
    """The words of one attempt."""

    has_wait_header: ClassVar[bool] = False

    @property
    def has_running_usage(self) -> bool:
        """Return True if each token's event has the usage so far."""
        return self.behaviour.has_running_usage

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return a usage; Google's JSON leaves out a count of 0."""
        parts = self.behaviour.work.parts
        answered = made - reasoning
        counts = {
            "promptTokenCount": prompt - parts.tool_prompt_tokens,
            "toolUsePromptTokenCount": parts.tool_prompt_tokens,
            "cachedContentTokenCount": self.behaviour.work.cached_tokens,
            "candidatesTokenCount": answered,
            "thoughtsTokenCount": reasoning,
            "totalTokenCount": prompt + made,
        }
        usage: dict[str, Any] = {name: count for name, count in counts.items() if count}
        if self.behaviour.style == "vertex":
            usage["trafficType"] = "ON_DEMAND"
        for name, total, of_kind in (
            ("prompt", prompt - parts.tool_prompt_tokens, self._read_of_kind),
            ("candidates", answered, self._written_of_kind(answered)),
        ):
            if any(of_kind.values()):
                text = total - sum(of_kind.values())
                usage[f"{name}TokensDetails"] = [
                    {"modality": modality, "tokenCount": count}
                    for modality, count in {"TEXT": text, **of_kind}.items()
                    if count
                ]
        return usage

    @property
    def _read_of_kind(self) -> dict[str, int]:
        parts = self.behaviour.work.parts
        return {"AUDIO": parts.audio_input_tokens, "IMAGE": parts.image_input_tokens}

    def _written_of_kind(self, answered: int) -> dict[str, int]:
        parts = self.behaviour.work.parts
        spoken = min(parts.audio_output_tokens, max(answered, 0))
        drawn = min(parts.image_output_tokens, max(answered, 0) - spoken)
        return {"AUDIO": spoken, "IMAGE": drawn}

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        work = self.behaviour.work
        if work.choices > 1:
            texts = [self.text(range(at, made, work.choices)) for at in range(work.choices)]
            return json.dumps(self._pieces([[{"text": text}] for text in texts], usage)).encode()
        call = self.call(made)
        parts: list[dict[str, Any]] = [
            {"text": self.answer(made)} if call is None else _called(call)
        ]
        if thoughts := self.thoughts(made):
            parts.insert(0, {"text": thoughts, "thought": True})
        return json.dumps(self._pieces([parts], usage)).encode()

    def begin(self) -> bytes:
        """Return nothing: the first token's event is the first one."""
        return b""

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token."""
        work = self.behaviour.work
        part: dict[str, Any] = {"text": self.piece(number)}
        if self.is_call(number):  # it comes as a whole, once the model has written it
            is_whole = number == work.output_tokens - 1
            call = _called(self.call(work.output_tokens) or {})
            part = call if is_whole else {"text": ""}
        if self.is_thought(number):
            part["thought"] = True
        candidate = self._candidate([part], number % work.choices)
        return event(self._piece([candidate], usage if self.has_running_usage else None))

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the event with the finish reason."""
        texts: list[list[dict[str, Any]]] = [[{"text": ""}]] * self.behaviour.work.choices
        return event(self._pieces(texts, usage))

    def error(self) -> bytes:
        """Return an error in the stream."""
        return event(self._error(503, "The model is overloaded."))

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        body = self._error(self.failing_status, self.complaint)
        if (wait_s := self.behaviour.retry_after_s) is not None:
            body["error"]["details"] = [{"@type": _RETRY, "retryDelay": f"{wait_s}s"}]
        return json.dumps(body if usage is None else {**body, "usageMetadata": usage}).encode()

    def _error(self, status: int, message: str) -> dict[str, Any]:
        state = _STATES.get(status, "INTERNAL")
        return {"error": {"code": status, "message": message, "status": state}}

    def _pieces(self, parts: list[list[dict[str, Any]]], usage: Usage) -> dict[str, Any]:
        """Return the last piece of an answer: the parts of each candidate, and how it ended."""
        reason = "MAX_TOKENS" if self.behaviour.work.is_shortened else "STOP"
        candidates = [
            {**self._candidate(its, index), "finishReason": reason}
            for index, its in enumerate(parts)
        ]
        return self._piece(candidates, usage)

    def _candidate(self, parts: list[dict[str, Any]], index: int) -> dict[str, Any]:
        return {"content": {"role": "model", "parts": parts}, "index": index}

    def _piece(self, candidates: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        piece: dict[str, Any] = {
            "candidates": candidates,
            "modelVersion": self.model,
            "responseId": f"g{self.number}",
        }
        return piece if usage is None else {**piece, "usageMetadata": usage}


def _called(arguments: dict[str, Any]) -> dict[str, Any]:
    called = {"functionCall": {"name": TOOL, "args": arguments}}
    return {**called, "thoughtSignature": SIGNATURE}
