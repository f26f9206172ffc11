"""Answers with their cost written in, as a request sees them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import AnswerPart, AnswerStream, written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer import chat, responses

T = TypeVar("T")
Cost = Callable[[TokenUsage], str | None]


class PricedStream:
    """A stream that returns bytes instead of parts; everything else is the stream's own."""

    def __init__(self, stream: AnswerStream, cost: Cost) -> None:
        self.stream, self._cost = stream, cost

    def feed(self, data: bytes) -> bytes:
        """Return the complete events in `data` for the caller."""
        return _joined(self.stream.feed(data), self._cost)

    def end(self) -> bytes:
        """Return the last event of a body that has ended."""
        return _joined(self.stream.end(), self._cost)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the stream."""
        return getattr(self.stream, name)


def chat_stream(*, cost: Cost, **settings: Any) -> PricedStream:
    """Return a chat stream with its costs."""
    return PricedStream(chat.chat_stream(**settings), cost)


def response_stream(*, cost: Cost, **settings: Any) -> PricedStream:
    """Return a stream of `/v1/responses` with its costs."""
    return PricedStream(responses.response_stream(**settings), cost)


def rewrite_chat(body: bytes, observed: Observed, *, cost: Cost, **settings: Any) -> bytes:
    """Return a whole chat answer with its cost."""
    return written(chat.rewrite_chat(body, observed, **settings), cost)


def rewrite_response(body: bytes, observed: Observed, *, cost: Cost, **settings: Any) -> bytes:
    """Return a whole answer of `/v1/responses` with its cost."""
    return written(responses.rewrite_response(body, observed, **settings), cost)


def _joined(parts: Sequence[AnswerPart], cost: Cost) -> bytes:
    return b"".join(written(part, cost) for part in parts)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits")
