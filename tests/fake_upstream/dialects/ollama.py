"""Ollama's `/api/chat`: lines of JSON; the last one has the counts and the times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.fake_upstream.dialects.wording import TOOL, Usage, Wording

_CREATED = "2026-11-24T10:00:00.1Z"
_TIMES = {
    "total_duration": 5191566416,
    "load_duration": 2154458,
    "prompt_eval_duration": 383809000,
    "eval_duration": 4799921000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaWording(Wording):
    """The words of one attempt."""

    stream_type: ClassVar[str] = "application/x-ndjson"
    untold: ClassVar[frozenset[str]] = frozenset(
        {"cached_tokens", "cache_write_tokens", "reasoning"}
    )

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the counts; one of 0 is left out."""
        counts = {"prompt_eval_count": prompt, "eval_count": made}
        return {name: count for name, count in counts.items() if count}

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        call = self.call(made)
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if call is None:
            message["content"] = self.answer(made)
        else:
            message["tool_calls"] = [_call(call)]
        if thoughts := self.thoughts(made):
            message["thinking"] = thoughts
        return json.dumps(self._line(message) | self._end(usage)).encode()

    def begin(self) -> bytes:
        """Return nothing: the first token's line is the first one."""
        return b""

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the line of one token."""
        work = self.behaviour.work
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if self.is_call(number):  # it comes as a whole, once the model has written it
            if number < work.output_tokens - 1:
                return b""
            message["tool_calls"] = [_call(self.call(work.output_tokens) or {})]
            return _encoded(self._line(message))
        message["thinking" if self.is_thought(number) else "content"] = self.piece(number)
        return _encoded(self._line(message))

    def last(self, usage: Usage, text: str) -> bytes:
        """Return the line with the counts."""
        return _encoded(self._line({"role": "assistant", "content": ""}) | self._end(usage))

    def bad_event(self) -> bytes:
        """Return a line that is no JSON."""
        return b"{not json\n"

    def error(self) -> bytes:
        """Return an error in the stream."""
        return _encoded({"error": "llama runner process has terminated: exit status 2"})

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        return json.dumps({"error": self.complaint} | (usage or {})).encode()

    def _line(self, message: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.model, "created_at": _CREATED, "message": message, "done": False}

    def _end(self, usage: Usage) -> dict[str, Any]:
        reason = "length" if self.behaviour.work.is_shortened else "stop"
        return {"done": True, "done_reason": reason, **_TIMES, **(usage or {})}


def _call(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"function": {"name": TOOL, "arguments": arguments}}


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"
