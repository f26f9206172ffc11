"""Triton's generate extension: each event has a piece of text, the prompt's count and its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.fake_upstream.dialects.wording import Usage, Wording, event

_INPUT, _OUTPUT = "num_input_tokens", "num_output_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonWording(Wording):
    """The words of one attempt."""

    untold: ClassVar[frozenset[str]] = frozenset(
        {"cached_tokens", "cache_write_tokens", "reasoning"}
    )

    @property
    def has_running_usage(self) -> bool:
        """Return True if each token's event has its counts."""
        return self.behaviour.has_running_usage

    def usage(self, made: int, reasoning: int, *, prompt: int) -> dict[str, Any]:
        """Return the counts of the whole answer."""
        return {_INPUT: prompt, _OUTPUT: made}

    def whole(self, made: int, usage: Usage) -> bytes:
        """Return a plain answer of `made` tokens."""
        return json.dumps(self._piece(self.text(range(made)), usage)).encode()

    def begin(self) -> bytes:
        """Return nothing: the first token's event is the first one."""
        return b""

    def token(self, number: int, usage: Usage) -> bytes:
        """Return the event of one token."""
        own = self._counts(1) if self.has_running_usage else None
        return event(self._piece(self.piece(number), own))

    def last(self, usage: Usage, text: str) -> bytes:
        """Return an event without text, whose count makes the sum that of the usage."""
        own = None
        if usage is not None:
            made = self.behaviour.work.output_tokens if self.has_running_usage else 0
            own = {**usage, _OUTPUT: usage[_OUTPUT] - made}
        return event(self._piece("", own))

    def error(self) -> bytes:
        """Return an error in the stream."""
        return event({"error": "in ensemble 'ensemble', out of memory"})

    def error_body(self, usage: Usage) -> bytes:
        """Return the body of an error answer."""
        return json.dumps({"error": self.complaint} | (usage or {})).encode()

    def _counts(self, made: int) -> dict[str, Any]:
        return self.usage(made, 0, prompt=self.behaviour.work.input_tokens)

    def _piece(self, text: str, usage: Usage) -> dict[str, Any]:
        named = {"model_name": self.model, "model_version": "1", "text_output": text}
        return named if usage is None else {**named, **usage}
