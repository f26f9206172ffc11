"""Declares the events of an answer in neutral values, and the protocols of their readers and
writers: the answer between an upstream's dialect and another one of the caller.

A reader makes events of an upstream's bytes and records usage, end and text in `Observed`. A writer
makes the caller's answer of the events, streamed or whole. An answer of one choice has the events
`Started`, then its content in order, `Finished`, `Used` (once, final) and `Ended`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable
from uuid import UUID

import msgspec
from msgspec import Struct

from gateway.domain.ids import occurred_at
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.token_estimate import tokens_in
from gateway.wire.data_urls import is_base64
from gateway.wire.dialect import AnswerPart, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.translation.conversation import NO_JSON


class Finish(StrEnum):
    """The reason for a choice's end. The values are OpenAI's `finish_reason`s."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


class Started(Struct, frozen=True, kw_only=True):
    """The upstream began to answer. `usage` is its report of the prompt at this time, and
    `created_s` its time of day in seconds since 1970, 0 if it reports none.
    """

    answer_id: str = ""
    usage: TokenUsage | None = None
    created_s: int = 0

    def or_else(self, own: Started) -> Started:
        """Return this start with the id and the time of `own` for those that it lacks."""
        return Started(
            answer_id=self.answer_id or own.answer_id,
            usage=self.usage,
            created_s=self.created_s or own.created_s,
        )


def own_start(call: UpstreamRequest) -> Started:
    """Return the id and the time of the gateway's own request, both from its UUIDv7: clients expect
    an answer to have them, and not every upstream reports them.
    """
    request_id = UUID(call.headers["x-request-id"])
    return Started(answer_id=request_id.hex, created_s=int(occurred_at(request_id).timestamp()))


class TextPiece(Struct, frozen=True, kw_only=True):
    """More text of a choice. `logprobs` is OpenAI's list for these tokens, as sent."""

    text: str
    choice: int = 0
    logprobs: msgspec.Raw = NO_JSON


class RefusalPiece(Struct, frozen=True, kw_only=True):
    """More text of a refusal."""

    text: str
    choice: int = 0


class ThoughtPiece(Struct, frozen=True, kw_only=True):
    """More reasoning of a choice. `signature` comes with its last piece, which may be empty;
    `sealed` is a whole block that only its provider can read.
    """

    text: str = ""
    signature: str = ""
    sealed: str = ""
    choice: int = 0


class CallStarted(Struct, frozen=True, kw_only=True):
    """A tool call began. `call` counts the calls of a choice from 0. `signature` is Gemini's."""

    call: int
    call_id: str
    name: str
    signature: str = ""
    choice: int = 0


class CallArguments(Struct, frozen=True, kw_only=True):
    """More of the JSON text of a call's arguments."""

    call: int
    text: str
    choice: int = 0


class Picture(Struct, frozen=True, kw_only=True):
    """A whole picture of the answer, its bytes in base64."""

    media_type: str
    data: str
    choice: int = 0


class Omitted(Struct, frozen=True, kw_only=True):
    """Content of a choice that no other event carries: the upstream's name of its kind, or its
    media type. The caller's answer names it.
    """

    name: str
    choice: int = 0


_PICTURE = re.compile(r"image/[a-z0-9.+-]{1,58}", re.IGNORECASE)


def media_of(media_type: str, data: str, *, choice: int = 0) -> Picture | Omitted:
    """Return a picture; the name of other media, and of content that is no base64."""
    if _PICTURE.fullmatch(media_type) and is_base64(data):
        return Picture(media_type=media_type, data=data, choice=choice)
    return Omitted(name=media_type or "media", choice=choice)


MOST_OMITTED = 16  # names of one choice
MOST_OMITTED_CHARS = 64  # of a name


def add_omitted(names: list[str], event: Omitted) -> bool:
    """Add the name of omitted content to those of its choice; return True if it is a new one."""
    name = event.name[:MOST_OMITTED_CHARS]
    is_new = name not in names and len(names) < MOST_OMITTED
    if is_new:
        names.append(name)
    return is_new


class Finished(Struct, frozen=True, kw_only=True):
    """A choice is complete. `native` is the provider's own word; `stop_sequence` is the caller's
    that was met, if the provider names it.
    """

    finish: Finish
    native: str = ""
    stop_sequence: str | None = None
    choice: int = 0


class Used(Struct, frozen=True, kw_only=True):
    """The final usage of the whole answer."""

    usage: TokenUsage
    service_tier: str | None = None


class ShownText(Struct):
    """The size of the text that the caller was shown, in bytes of UTF-8; None if the answer may
    have other content: sealed, omitted, or hidden thoughts before its maximum.
    """

    size_bytes: int | None = 0

    def add(self, event: AnswerEvent) -> None:
        """Take in the next event."""
        if self.size_bytes is None:
            return
        if isinstance(event, TextPiece | RefusalPiece | CallArguments):
            self.size_bytes += len(event.text.encode())
        elif isinstance(event, CallStarted):
            self.size_bytes += len(event.name.encode())
        elif isinstance(event, ThoughtPiece) and not event.sealed:
            self.size_bytes += len(event.text.encode())
        elif isinstance(event, ThoughtPiece | Picture | Omitted) or (
            isinstance(event, Finished) and event.finish is Finish.LENGTH
        ):
            self.size_bytes = None


def used(observed: Observed) -> list[Used]:
    """Return the event of the last usage, none if the upstream reported no usage. Of one that the
    answer went on after, the output counts only if it is no less than the text so far.

    A prompt of 0 tokens beside an answer is unknown, as it is for the ledger.
    """
    usage, amid = observed.usage, observed.amid
    if amid is not None and (amid.output_tokens or 0) >= tokens_in(observed.output_bytes):
        usage = amid
    if usage is None:
        return []
    if usage.lacks_prompt:
        usage = msgspec.structs.replace(usage, input_tokens=None)
    return [Used(usage=usage, service_tier=observed.service_tier)]


class Failed(Struct, frozen=True, kw_only=True):
    """The upstream ended the stream with an error; nothing follows."""

    code: str
    message: str


class Ended(Struct, frozen=True):
    """The upstream's own end of the answer was seen; nothing follows."""


ContentEvent = (
    TextPiece
    | RefusalPiece
    | ThoughtPiece
    | CallStarted
    | CallArguments
    | Picture
    | Omitted
    | Finished
)
"""An event of one choice."""
AnswerEvent = Started | ContentEvent | Used | Failed | Ended


class AnswerReader(Protocol):
    """Reads an upstream's stream, in whatever framing it comes."""

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""


@runtime_checkable
class LargeEventReader(AnswerReader, Protocol):
    """A reader that also takes events above the bound of `feed`, in a thread."""

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """

    def feed_large(self) -> Sequence[AnswerEvent]:
        """Return the neutral events of a large event that has ended."""


class AnswerWriter(Protocol):
    """Writes the caller's answer, either streamed or whole."""

    content_type: ClassVar[str]  # of a stream

    def write(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's stream for these events."""

    def whole(self, events: Sequence[AnswerEvent]) -> AnswerPart:
        """Return the caller's plain answer for all events of an answer."""
