"""Reads an answer of Converse, streamed or whole, into neutral answer events, and records its
usage, end and text.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from gateway.domain.pricing.settlement import OTHER_MODEL
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.domain.pricing.unknown_counts import UNITS
from gateway.wire.bedrock.event_stream import (
    HIGHEST_FIRST_BYTE,
    MAX_MESSAGE_BYTES,
    MessageSplitter,
    StreamMessage,
)
from gateway.wire.bedrock.usage import tier_of, usage_from_wire, usage_object
from gateway.wire.dialect import NO_ANSWER, EventTooLarge, UnreadableAnswer
from gateway.wire.foreign_json import (
    MAX_WHOLE_BYTES,
    arguments_in,
    has_others,
    is_error,
    may_repeat,
    names_in,
    note_first_reading,
    note_least,
    note_piece_readings,
    note_readings,
    note_unknown,
    object_in,
    object_of,
    objects_in,
    short_text_in,
    text_in,
)
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.shapes import UNREADABLE, decode_usage
from gateway.wire.surrogates import with_stand_ins
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    Omitted,
    Started,
    TextPiece,
    ThoughtPiece,
    media_of,
    used,
)
from gateway.wire.translation.split_pairs import SplitPairs

MAX_MESSAGE_CHARS = 1000
MAX_PICTURE_CHARS = 32 * 2**20  # as of a plain answer
MAX_CALLS = 4096  # of one answer
# The members of a whole answer without generated content.
_ANSWER = names_in(
    "output stopReason usage metrics trace performanceConfig serviceTier ResponseMetadata "
    "additionalModelResponseFields"
)
# The members of a piece and of its parts whose content is read.
_PIECES = {
    "": names_in("text toolUse reasoningContent"),
    "toolUse": names_in("input"),
    "reasoningContent": names_in("text signature redactedContent"),
}
_READ = names_in("text toolUse reasoningContent citationsContent")  # blocks and pieces of blocks
# "If a guardrail blocks the input prompt, you're charged for the guardrail evaluation" (docs.aws.
# amazon.com/bedrock/latest/userguide/guardrails-how.html, read in a translation, 2026-11-29). An
# account may enforce one on requests that ask for none.
_GUARDED = "guardrail_intervened"
_FINISHES = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "content_filtered": Finish.CONTENT_FILTER,
    _GUARDED: Finish.CONTENT_FILTER,
    "refusal": Finish.CONTENT_FILTER,
}
_MONEY = (b'"usage"', b'"serviceTier"', b'"performanceConfig"', b'"trace"')
# Our code for an exception in the middle of a stream, by its type.
_CODES = {"throttlingException": "rate_limited", "serviceUnavailableException": "overloaded"}


class _OpenPicture(Struct):
    """A picture, whose bytes may come in several pieces of base64."""

    form: str = ""
    _pieces: list[str] = []
    _chars: int = 0

    def add(self, piece: str) -> None:
        """Take in more of its bytes; an address has none."""
        self._chars += len(piece)
        if self._chars <= MAX_PICTURE_CHARS:
            self._pieces.append(piece)

    def events(self) -> list[AnswerEvent]:
        """Return the picture; its name if it is too large or no base64; nothing for none."""
        if not self.form and not self._pieces:
            return []
        data = ""
        if self._chars <= MAX_PICTURE_CHARS:
            with suppress(ValueError):
                data = b64encode(b"".join(map(b64decode, self._pieces))).decode()
        return [media_of(f"image/{self.form}", data) if data else Omitted(name="image")]


class ConverseReader:
    """Reads a stream of event messages."""

    def __init__(self) -> None:
        """Start before the first message. The text is kept: usage comes in the last one alone."""
        self.observed = Observed(collects_text=True)
        self._splitter = MessageSplitter()
        self._pairs = SplitPairs()
        self._unframed = bytearray()  # a body that is no event stream
        self._has_read = False
        self._calls: dict[int, int] = {}  # the number of the last call of each block's index
        self._call_count = 0
        self._has_stopped = False
        self._block, self._bytes_before = -1, 0  # the block that is sent, and the text before it
        self._picture = _OpenPicture()

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        if self._unframed or (not self._has_read and data[:1] > HIGHEST_FIRST_BYTE):
            self._unframed += data
            if len(self._unframed) > MAX_MESSAGE_BYTES:
                raise EventTooLarge(f"a body of more than {MAX_MESSAGE_BYTES} bytes")
            return []
        self._has_read = True
        try:
            messages = self._splitter.feed(data)
        except EventTooLarge as broken:
            broken.before = [event for sent in broken.before for event in self._events_of(sent)]
            raise
        return [event for sent in messages for event in self._events_of(sent)]

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended: without its usage, a stopped
        answer is complete all the same. A body that is no event stream was generated, and is
        charged, but cannot be read.
        """
        observed = self.observed
        if self._unframed:
            observed.note_unread()
            _note_usage(observed, object_of(bytes(self._unframed)) or {})
            observed.is_whole = True
            return []
        if not self._has_stopped or observed.is_done or observed.is_error:
            return []
        observed.is_done = True
        return [Ended()]

    def _events_of(self, sent: StreamMessage) -> list[AnswerEvent]:
        """Return the neutral events of one message; none after an exception or the end, where
        content and usage are only metered.
        """
        if self.observed.is_done:
            with self.observed.behind_end():
                self._read(sent)
            return []
        has_failed = self.observed.is_error
        text, stand_ins = with_stand_ins(sent.payload)
        events = self._pairs.joined(
            self._read(msgspec.structs.replace(sent, payload=text)), stand_ins
        )
        return [] if has_failed else [*events]

    def _read(self, sent: StreamMessage) -> list[AnswerEvent]:
        """Return the neutral events of one message; none of those that have no meaning here."""
        if sent.headers.get(":message-type", "event") != "event":
            return [self._fail(sent)]
        event = object_of(sent.payload)
        if event is None:
            self.observed.note_unread()
            return []
        kind = sent.headers.get(":event-type", "")
        if kind == "messageStart":
            return [Started()]
        if kind == "contentBlockStart":
            return self._start_block(event)
        if kind == "contentBlockDelta":
            return self._delta(event)
        if kind == "messageStop":
            return self._stop(event)
        if kind == "metadata":
            return self._finish(event, sent.payload)
        if kind != "contentBlockStop":
            self.observed.note_odd()
            return []
        picture, self._picture = self._picture, _OpenPicture()
        return picture.events()

    def _start_block(self, event: dict[str, Any]) -> list[AnswerEvent]:
        """Return the start of a tool call; other blocks begin with their first piece."""
        start = object_in(event, "start")
        if image := object_in(start, "image"):
            self._picture = _OpenPicture(text_in(image, "format"))
        use = object_in(start, "toolUse")
        if not use or self._call_count >= MAX_CALLS:
            return [] if image else _omitted(start)
        call = self._calls[_index(event)] = self._call_count
        self._call_count += 1
        name = text_in(use, "name")
        self._note(name)
        return [CallStarted(call=call, call_id=text_in(use, "toolUseId"), name=name)]

    def _delta(self, event: dict[str, Any]) -> list[AnswerEvent]:
        """Return a piece of a block."""
        delta = object_in(event, "delta")
        arguments = text_in(object_in(delta, "toolUse"), "input")
        if arguments:
            self._note(arguments)
            call = self._calls.get(_index(event))
            return [] if call is None else [CallArguments(call=call, text=arguments)]
        pieces = _texts_of(delta, object_in(delta, "reasoningContent"))
        if _index(event) != self._block:
            self._block, self._bytes_before = _index(event), self.observed.output_bytes
        for piece in pieces:
            self._note(piece.text)
            is_shown = piece.text or self.observed.output_bytes > self._bytes_before
            if isinstance(piece, ThoughtPiece) and (piece.sealed or not is_shown):
                self.observed.note_other()  # sealed, or the signature of a thought not shown
        if not pieces and _is_odd(delta):
            self.observed.note_more()
            self.observed.note_odd()
        if image := object_in(delta, "image"):
            self.observed.note_shown(TokenKind.IMAGE_OUTPUT)
            self._picture.add(text_in(object_in(image, "source"), "bytes"))
            return [*pieces]
        return [*pieces, *_omitted(delta)]

    def _note(self, text: str) -> None:
        """Record a piece of generated content, and its text to be counted if no usage follows."""
        self.observed.note_more()
        self.observed.has_content = True
        self.observed.pieces += 1
        self.observed.note_text(text)

    def _stop(self, event: dict[str, Any]) -> list[AnswerEvent]:
        """Return the end of the content; the usage follows."""
        self._has_stopped = True
        _note_end(self.observed, event)
        return [_finished(short_text_in(event, "stopReason"))]

    def _finish(self, event: dict[str, Any], payload: bytes) -> list[AnswerEvent]:
        """Return the usage and the end: this message is the last one."""
        observed = self.observed
        _note_usage(observed, event)
        _note_twice(observed, payload)
        if may_repeat(payload, *_MONEY):
            note_piece_readings(observed, payload, _money_in)
        observed.is_done = not observed.is_error
        return [*used(observed), Ended()]

    def _fail(self, sent: StreamMessage) -> Failed:
        """Record an upstream's exception, which ends the stream."""
        self.observed.is_error = True
        headers = sent.headers
        kind = headers.get(":exception-type") or headers.get(":error-code") or "error"
        event = object_of(sent.payload) or {}
        _note_usage(self.observed, event)
        message = text_in(event, "message") or headers.get(":error-message")
        return Failed(
            code=_CODES.get(kind, "upstream_error"),
            message=(message or f"The upstream ended the answer: {kind}.")[:MAX_MESSAGE_CHARS],
        )


def converse_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer; record its usage, end and text in `observed`.

    Raises `UnreadableAnswer` if it has no message that can be read: something was generated.
    """
    answer = object_of(body, most_bytes=MAX_WHOLE_BYTES)
    if answer is None:
        observed.note_unread()
        raise UnreadableAnswer(NO_ANSWER)
    observed.is_error = is_error(answer.get("error"))
    _note_usage(observed, answer)
    _note_twice(observed, body)
    _note_end(observed, answer)
    output = object_in(answer, "output")
    message = object_in(output, "message")
    events: list[AnswerEvent] = [Started(), *_contents(objects_in(message, "content"), observed)]
    if observed.is_error:
        return events
    if not observed.has_content:
        observed.has_odd = bool(message.get("content")) or any(
            has_others(members, known)
            for members, known in ((answer, _ANSWER), (output, frozenset({"message"})))
        )
    if observed.final is None:
        note = note_least if message else note_unknown
        note(observed, body, usage_in)
    if not isinstance(output.get("message"), dict):
        raise UnreadableAnswer(NO_ANSWER)
    observed.is_done = True
    if may_repeat(body, *_MONEY):
        note_readings(observed, body, converse_events)
    return [*events, _finished(observed.finish_reason), *used(observed), Ended()]


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that an answer or an error reports; None if it reports none."""
    return _usage_of(object_of(body, most_bytes=MAX_WHOLE_BYTES) or {})


def _contents(blocks: list[dict[str, Any]], observed: Observed) -> list[AnswerEvent]:
    """Return the blocks of a whole answer in their order."""
    events: list[AnswerEvent] = []
    observed.collects_text = True
    calls = 0
    for block in blocks:
        use = object_in(block, "toolUse")
        found: list[AnswerEvent]
        others: list[AnswerEvent] = []
        if use:
            arguments = arguments_in(use, "input")
            name = text_in(use, "name")
            found = [
                CallStarted(call=calls, call_id=text_in(use, "toolUseId"), name=name),
                CallArguments(call=calls, text=arguments),
            ]
            calls, text = calls + 1, name + arguments
        else:
            reasoning = object_in(block, "reasoningContent")
            cited = object_in(block, "citationsContent")
            pieces = _texts_of(block, object_in(reasoning, "reasoningText") or reasoning)
            pieces += [
                piece for one in objects_in(cited, "content") for piece in _texts_of(one, {})
            ]
            found, text = list(pieces), "".join(piece.text for piece in pieces)
            if not text and (pieces or has_others(block, frozenset({"text"}))):
                observed.note_other()
            if image := object_in(block, "image"):
                observed.note_shown(TokenKind.IMAGE_OUTPUT)
                picture = _OpenPicture(text_in(image, "format"))
                picture.add(text_in(object_in(image, "source"), "bytes"))
                others = picture.events()
            elif cited.get("citations"):
                others = [Omitted(name="citation")]
            else:
                others = _omitted(block)
        events += [*found, *others]
        observed.has_content = observed.has_content or bool(found)
        if text:
            observed.note_text(text)
    return events


def _omitted(holder: dict[str, Any]) -> list[AnswerEvent]:
    """Return the names of a block's members, or of a piece's, that are not read."""
    return [Omitted(name=name) for name in holder if holder[name] and name not in _READ]


def _texts_of(block: dict[str, Any], reasoning: dict[str, Any]) -> list[TextPiece | ThoughtPiece]:
    """Return the text and the reasoning in a block or in a piece of one."""
    pieces: list[TextPiece | ThoughtPiece] = []
    if text := text_in(block, "text"):
        pieces.append(TextPiece(text=text))
    thought = ThoughtPiece(
        text=text_in(reasoning, "text"),
        signature=text_in(reasoning, "signature"),
        sealed=text_in(reasoning, "redactedContent"),
    )
    return [*pieces, thought] if thought != ThoughtPiece() else pieces


def _finished(stop_reason: str | None) -> Finished:
    """Return the end of the answer, in OpenAI's word and in the provider's."""
    native = stop_reason or ""
    return Finished(finish=_FINISHES.get(native, Finish.STOP), native=native)


def _note_end(observed: Observed, holder: dict[str, Any]) -> None:
    """Record the reason for the end; a guardrail that intervened has a fee of its own."""
    reason = short_text_in(holder, "stopReason")
    observed.note_finish(reason)
    if reason == _GUARDED:
        observed.note_call(UNITS)


def _note_usage(observed: Observed, holder: dict[str, Any]) -> None:
    """Record the final usage, the service tier, and the work that a trace shows: another model, or
    a guardrail, whose fee is for each piece of text.
    """
    if (usage := _usage_of(holder)) is not None:
        observed.note_final(usage)
    observed.note_tier(tier_of(holder))
    if trace := object_in(holder, "trace"):
        if object_in(trace, "promptRouter"):
            observed.note_shown(OTHER_MODEL)
        if object_in(trace, "guardrail"):
            observed.note_call(UNITS)


def _money_in(payload: bytes) -> tuple[TokenUsage | None, str | None]:
    """Return the usage and the tier in one reading of the last message."""
    holder = object_of(payload) or {}
    return _usage_of(holder), tier_of(holder)


def _note_twice(observed: Observed, body: bytes) -> None:
    """Record the other reading of a usage that has a name twice."""
    with suppress(*UNREADABLE):
        note_first_reading(
            observed,
            decode_usage(body).usage,
            lambda first: usage_from_wire(object_of(first) or {}),
        )


def _usage_of(holder: dict[str, Any]) -> TokenUsage | None:
    """Return the usage in an object, or in an error in it; None if neither reports one."""
    usage = usage_object(holder) or usage_object(object_in(holder, "error"))
    return usage_from_wire(usage)


def _is_odd(delta: dict[str, Any]) -> bool:
    """Return True if a piece without known content may have some of another form."""
    return any(
        has_others(object_in(delta, name) if name else delta, known)
        for name, known in _PIECES.items()
    )


def _index(event: dict[str, Any]) -> int:
    """Return the index of a block; 0 if it is not a number."""
    index = event.get("contentBlockIndex")
    return index if type(index) is int else 0
