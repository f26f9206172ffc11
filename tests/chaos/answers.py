"""Each endpoint's form of an answer, its events and its usage, for the upstream of the chaos runs.

Pure. A completion of several prompts, each answered `n` times, counts like vLLM: a running figure
is that of one choice alone, with the tokens of that choice's own prompt.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.chaos.plans import Kind, Shape

CREATED = 1_764_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The words of one attempt. `number` tells its ids from those of others."""

    number: int
    model: str
    shape: Shape

    @property
    def kind(self) -> Kind:
        """Return the request's kind."""
        return self.shape.kind

    # ---- whole answers

    def whole(self, made: int, usage: dict[str, Any] | None) -> bytes:
        """An answer of `made` tokens, the choices taking turns."""
        texts = [
            " ".join(f"t{token}" for token in range(choice, made, self.shape.answers))
            for choice in range(self.shape.answers)
        ]
        answer = self._whole(texts)
        return json.dumps(answer if usage is None else {**answer, "usage": usage}).encode()

    def _whole(self, texts: list[str]) -> dict[str, Any]:
        if self.kind is Kind.EMBEDDINGS:
            data = [
                {"object": "embedding", "index": index, "embedding": [0.25, -0.5]}
                for index in range(len(texts))
            ]
            return {"object": "list", "model": self.model, "data": data}
        if self.kind is Kind.RESPONSES:
            return self._response("completed", texts[0])
        if self.kind is Kind.COMPLETIONS:
            choices: list[Any] = [
                {"index": index, "text": text, "finish_reason": "stop", "logprobs": None}
                for index, text in enumerate(texts)
            ]
            return {**self._frame(choices), "object": "text_completion"}
        message = {"role": "assistant", "content": texts[0]}
        return {
            **self._frame([{"index": 0, "finish_reason": "stop", "message": message}]),
            "object": "chat.completion",
        }

    # ---- events of a stream

    def begin(self, running: dict[str, Any] | None) -> bytes:
        """The first event; completions have none."""
        if self.kind is Kind.RESPONSES:
            return self._event(
                {"type": "response.created", "response": self._response("in_progress", "")}
            )
        if self.kind is Kind.COMPLETIONS:
            return b""
        return self._chunk(0, {"delta": {"role": "assistant", "content": ""}}, running)

    def token(self, number: int, running: dict[str, Any] | None) -> bytes:
        """One token; `number` counts those of all choices."""
        text = f"t{number} "
        if self.kind is Kind.RESPONSES:
            return self._event(
                {"type": "response.output_text.delta", "item_id": "msg_1", "delta": text}
            )
        if self.kind is Kind.COMPLETIONS:
            return self._chunk(number % self.shape.answers, {"text": text}, running)
        return self._chunk(0, {"delta": {"content": text}}, running)

    def end(self, running: dict[str, Any] | None) -> bytes:
        """The event that says why it ends."""
        if self.kind is Kind.RESPONSES:
            return self._event(
                {"type": "response.output_text.done", "item_id": "msg_1", "text": ""}
            )
        if self.kind is Kind.COMPLETIONS:
            return self._chunk(0, {"text": "", "finish_reason": "stop"}, running)
        return self._chunk(0, {"delta": {}, "finish_reason": "stop"}, running)

    def last(self, usage: dict[str, Any] | None) -> bytes:
        """The event that has the usage, if there is one."""
        if self.kind is Kind.RESPONSES:
            response = self._response("completed", "")
            return self._event(
                {"type": "response.completed", "response": {**response, "usage": usage}}
            )
        return (
            b""
            if usage is None
            else _data({**self._frame([]), "object": self._object, "usage": usage})
        )

    def error(self) -> bytes:
        """An error in the stream, after a head of status 200."""
        if self.kind is Kind.RESPONSES:
            return self._event(
                {"type": "error", "code": "server_error", "message": "it died", "param": None}
            )
        error = {"message": "it died", "type": "InternalServerError", "param": None, "code": 500}
        return _data({"error": error})

    def done(self) -> bytes:
        """The end of the dialect; that of `/v1/responses` is its last event."""
        return b"" if self.kind is Kind.RESPONSES else b"data: [DONE]\n\n"

    # ---- usage

    def usage(self, made: int, reasoning: int, *, prompt: int | None = None) -> dict[str, Any]:
        """The last word; `prompt` replaces the true number of input tokens."""
        read = self.shape.input_tokens if prompt is None else prompt
        cached = {"cached_tokens": self.shape.cached_tokens}
        thought = {"reasoning_tokens": reasoning}
        if self.kind is Kind.EMBEDDINGS:
            return {"prompt_tokens": read, "total_tokens": read}
        if self.kind is Kind.RESPONSES:
            return {
                "input_tokens": read,
                "input_tokens_details": cached,
                "output_tokens": made,
                "output_tokens_details": thought,
                "total_tokens": read + made,
            }
        return {
            "prompt_tokens": read,
            "completion_tokens": made,
            "total_tokens": read + made,
            "prompt_tokens_details": cached,
            "completion_tokens_details": thought,
        }

    def running(self, made: int, number: int) -> dict[str, Any] | None:
        """The figure on the way at token `number`, after `made` tokens of all choices."""
        if self.kind is Kind.RESPONSES:
            return None
        choice = number % self.shape.answers
        own = len(range(choice, made, self.shape.answers))
        read = self.shape.input_of(choice // self.shape.choices)
        return {"prompt_tokens": read, "completion_tokens": own, "total_tokens": read + own}

    # ---- frames

    @property
    def _object(self) -> str:
        return "text_completion" if self.kind is Kind.COMPLETIONS else "chat.completion.chunk"

    def _frame(self, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.number}",
            "created": CREATED,
            "model": self.model,
            "choices": choices,
        }

    def _chunk(self, index: int, content: dict[str, Any], running: dict[str, Any] | None) -> bytes:
        choice = {"index": index, "finish_reason": None, **content}
        chunk = {**self._frame([choice]), "object": self._object}
        return _data({**chunk, "usage": running} if running else chunk)

    def _response(self, status: str, text: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": status,
            "content": content,
        }
        return {
            "id": f"resp_{self.number}",
            "object": "response",
            "created_at": CREATED,
            "model": self.model,
            "status": status,
            "output": [message] if text else [],
        }

    def _event(self, event: dict[str, Any]) -> bytes:
        return b"event: %b\n%b" % (str(event["type"]).encode(), _data(event))


def _data(value: Any) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
