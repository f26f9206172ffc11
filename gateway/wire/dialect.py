"""Declares the protocols and values between a client's dialect and an upstream's: request, answer
parts, streams; implements no dialect.

A `Dialect` reads requests and writes errors for the clients of an endpoint. A provider writes the
upstream's request and reads its answer. Both meet in the values of this module, so the services
need no dialect's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestBody
from gateway.wire.observed import Observed

NO_ANSWER = "no answer of its dialect"


class UnreadableAnswer(ValueError):
    """A complete answer that cannot be read; its text continues "something that is ..."."""


class EventTooLarge(ValueError):
    """One event of a stream is larger than any that is read.

    `before` are the results of the events before it, and `rest` the bytes from it on. Only a reader
    that cannot go on behind such an event states them; the reader raises again for `rest` alone.
    """

    before: Sequence[Any] = ()
    rest: bytes = b""


class Translation(Struct, frozen=True, kw_only=True, gc=False):
    """A request in the dialect of an upstream that does not speak its caller's.

    `sent_as` names that dialect, for receipts. `body` is the request in it: for OpenAI's a
    `RequestBody` of chat, else the members of its JSON object, without the model and the maximum.
    `dropped_fields` are the caller's names of fields without a place in it.
    """

    sent_as: str
    body: Any
    dropped_fields: tuple[str, ...] = ()


class UpstreamRequest(Struct, frozen=True, kw_only=True, gc=False):
    """One request to a deployment, ready to send, with its credential. Header names are in lower
    case. Only a stored response is asked for with another method than POST.

    `is_assembled`: sent as a stream although its caller asked for a plain answer; the answer is
    assembled from the stream. `is_streamed`: the answer comes in pieces, so that its first token
    has its own deadline. `answer_type` is the content type of a plain answer for the caller; None
    to keep the upstream's. `translation` is None if the upstream speaks the caller's dialect.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    asks_running_usage: bool = False
    is_assembled: bool = False
    is_streamed: bool = False
    answer_type: str | None = None
    translation: Translation | None = None
    method: str = "POST"


class UnpricedPart(Struct, frozen=True):
    """A part of an answer with a placeholder for the cost of `usage`.

    The cost replaces `content[start:end]`, after `opening`; if it is unknown, `content` stays as it
    is. `change` is made to the result.
    """

    usage: TokenUsage
    content: bytes
    start: int
    end: int
    opening: bytes
    change: Callable[[bytes], bytes] | None = None


AnswerPart = bytes | UnpricedPart


def changed(part: AnswerPart, change: Callable[[bytes], bytes]) -> AnswerPart:
    """Return a part of an answer with a change to its bytes. A part that awaits its cost is changed
    after the cost is put in.
    """
    if isinstance(part, bytes):
        return change(part)
    first = part.change
    both = change if first is None else lambda content: change(first(content))
    return replace(part, change=both)


def written(part: AnswerPart, cost: Callable[[TokenUsage], str | None]) -> bytes:
    """Return the final bytes of a part of an answer, with its cost put in if it awaits one; `cost`
    returns the plain dollars of a usage.
    """
    if isinstance(part, bytes):
        return part
    content, text = part.content, cost(part.usage)
    if text is not None:
        pieces = (content[: part.start], part.opening, text.encode(), content[part.end :])
        content = b"".join(pieces)
    return content if part.change is None else part.change(content)


class AnswerStream(Protocol):
    """An upstream's stream, read and rewritten for the caller, in whatever framing it comes."""

    @property
    def content_type(self) -> str:
        """The media type of the caller's stream."""

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        """Return the parts of the caller's answer that the upstream's `data` completes. Raises
        `EventTooLarge`, and then takes nothing.
        """

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge` if it is too large here too.
        """

    def feed_large(self) -> Sequence[AnswerPart]:
        """Return the parts of the caller's answer in a large event that has ended; for a thread."""

    def end(self) -> Sequence[AnswerPart]:
        """Return the last parts of the caller's answer, when the upstream's body has ended."""


class PlainAnswerAssembler(Protocol):
    """The maker of one plain answer for a caller who asked for no stream, from the stream that the
    upstream sends instead.
    """

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the stream received so far."""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the upstream's stream. Returns nothing for the caller, who gets
        the whole answer from `body`.

        Raises `EventTooLarge`, or `UpstreamError` if the stream is too large or unreadable.
        """

    def end(self) -> None:
        """Take in the end of the upstream's stream: its last event may lack the blank line."""

    def body(self) -> bytes:
        """Return the whole plain answer for the caller, after the stream's end. Raises
        `UpstreamError` if the stream has an error.
        """


class ErrorShape(Protocol):
    """The form of an error's body. A dialect that is not offered has nothing else here."""

    def error_body(
        self, code: str, message: str, *, param: str | None = None, request_id: str | None = None
    ) -> bytes:
        """Return the body of an error answer in the client's dialect."""


class Dialect(ErrorShape, Protocol):
    """The protocol of an endpoint's clients. An operation belongs to exactly one dialect."""

    def read_request(self, operation: Operation, body: bytes) -> RequestBody:
        """Return a client's request, parsed from its body. Raises `InvalidRequest` with the field
        and the fix.
        """

    def error_event(
        self, operation: Operation, code: str, message: str, *, request_id: str | None = None
    ) -> bytes:
        """Return the event that ends a stream with an error after its start."""
