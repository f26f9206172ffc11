"""Rewrites answers of Anthropic's messages for the caller, whole and streamed, and records their
usage and content.

An answer passes through byte by byte except for two splices, `model` and `usage.cost_usd`. The
events keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.answer.shapes import (
    STOP_EVENT,
    MessageEvent,
    TypedBlock,
    decode_block,
    decode_event,
    decode_message,
    generated_text,
    has_more_than_text,
    holds_result,
    is_content,
    is_odd_block,
    is_odd_kind,
    is_odd_message,
    note_hosted_call,
    usage_of_event,
    word_in,
)
from gateway.wire.anthropic.answer.splices import renamed, with_cost
from gateway.wire.anthropic.error import code_of, error_event
from gateway.wire.anthropic.usage import (
    StreamFigures,
    note_words,
    usage_from_wire,
)
from gateway.wire.dialect import AnswerPart, UnreadableAnswer, changed
from gateway.wire.foreign_json import (
    is_raw_error,
    may_repeat,
    note_first_reading,
    note_least,
    note_piece_readings,
    note_readings,
    note_unknown,
)
from gateway.wire.members import MalformedJson, locate_one, replace, require_object, require_utf8
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.answer_splices import without_foreign_cost
from gateway.wire.openai.answer.last_event import DONE, last_event
from gateway.wire.openai.answer.shapes import (
    ABSENT,
    UNREADABLE,
    counted_in,
    is_there,
    usage_inside,
    without_halves_of_pairs,
)
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.error import read_error
from gateway.wire.sse import EVENT_STREAM, EventSplitter, data_of, with_data
from gateway.wire.surrogates import hidden

MAX_BLOCKS = 10_000  # of a message that are looked at for calls of tools
_MESSAGE = b'"message"'
_DELTA, _START = b'"content_block_delta"', b'"content_block_start"'
_MESSAGE_START, _MESSAGE_DELTA = b'"message_start"', b'"message_delta"'
_MESSAGE_STOP = b'"message_stop"'
_NO_CONTENT = frozenset({b"", b"null", b"[]"})
MONEY = (b'"usage"', b'"service_tier"', b'"speed"', b'"inference_geo"')


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that a message, an event or an error reports; None if it reports none."""
    try:
        message = decode_message(body)
    except UNREADABLE:
        return None
    usage = message.usage if is_there(message.usage) else usage_inside(message.error)
    return usage_from_wire(usage) if is_there(usage) else None


def money_in(payload: bytes) -> tuple[TokenUsage | None, str | None]:
    """Return the usage and the tier in one reading of an event."""
    found = Observed()
    with suppress(*UNREADABLE):
        event = decode_event(payload)
        usage = event.usage if is_there(event.usage) else usage_of_event(event)
        if is_there(usage):
            note_words(found, usage)
            found.final = usage_from_wire(usage)
    return found.final, found.service_tier


def rewrite_message(body: bytes, observed: Observed, *, model: str) -> AnswerPart:
    """Return a whole message for the caller; record its metadata in `observed`.

    An answer of an unknown shape passes unchanged. Raises `UnreadableAnswer` if it is no JSON
    object: a proxy's page, or half an answer.
    """

    def rewritten(text: bytes) -> AnswerPart:
        """Return a readable text of the answer for the caller."""
        return _rewritten_message(text, observed, model=model)

    try:
        part = rewritten(body)
    except UNREADABLE:
        part = without_halves_of_pairs(body, rewritten)
    has_readings = may_repeat(body, *MONEY) and note_readings(
        observed, body, lambda one, found: rewrite_message(one, found, model=model)
    )
    if not has_readings and not observed.is_done and not observed.is_error:
        _note_unknown(body, observed)
    return part


def _rewritten_message(body: bytes, observed: Observed, *, model: str) -> AnswerPart:
    """Return a decodable message for the caller; record its usage and content in `observed`."""
    require_utf8(body)
    message = decode_message(body)
    renamed_body = renamed(body, message.model, model)
    part = with_cost(renamed_body, message.usage, None)
    observed.upstream_id = word_in(message.id)
    observed.finish_reason = word_in(message.stop_reason)
    observed.is_error = is_raw_error(message.error)
    usage = usage_from_wire(message.usage) if is_there(message.usage) else None
    if usage is None and observed.is_error and (within := usage_in(body)) is not None:
        observed.note_final(within)
    if usage is not None:
        observed.note_final(usage)
        note_first_reading(observed, message.usage, usage_from_wire)
        note_words(observed, message.usage)
        part = with_cost(renamed_body, message.usage, observed.final)
    content = bytes(message.content)
    if content.find(b"server_tool_use") >= 0 or holds_result(content):
        _note_hosted_calls(observed, message.content)
    may_hide_text = observed.may_hide_text(len(body))
    if usage is None or not usage.output_tokens or observed.is_error or may_hide_text:
        if observed.final is None:
            note_least(observed, body, lambda part: usage_in(part) or counted_in(part))
        _collect_content(observed, message.content)
        observed.has_odd = not (observed.has_content or observed.is_error) and is_odd_message(body)
    is_message = usage is not None or is_there(message.content)
    observed.is_done = is_message and not observed.is_error
    return part


def _note_hosted_calls(observed: Observed, content: msgspec.Raw) -> None:
    """Record the calls of the provider's own tools among the blocks of a message."""
    with suppress(*UNREADABLE):
        for block in msgspec.json.decode(content, type=list[msgspec.Raw])[:MAX_BLOCKS]:
            note_hosted_call(observed, block)


def _collect_content(observed: Observed, content: msgspec.Raw) -> None:
    """Keep the text of a message whose usage does not tell its size, so that the gateway can count
    it.
    """
    if bytes(content) in _NO_CONTENT:
        return
    observed.has_content = observed.collects_text = True
    try:
        for block in decode_few(content, TypedBlock):
            observed.note_text(generated_text(block))
            if has_more_than_text(block):
                observed.note_other()
    except UNREADABLE:
        observed.note_unread()
    if not observed.output_bytes:  # blocks without any known text
        observed.note_unread()


def _note_unknown(body: bytes, observed: Observed) -> None:
    """Record an answer of an unknown shape. Raises `UnreadableAnswer`."""
    note_unknown(observed, body, usage_in)
    try:
        require_object(body)
    except MalformedJson:
        raise UnreadableAnswer("no JSON") from None


@dataclass(slots=True, kw_only=True)
class MessageStream:
    """A stream of named events for the caller.

    Feed it the received bytes; it returns the bytes to send on.
    """

    content_type: ClassVar[str] = EVENT_STREAM
    model: str
    observed: Observed
    request_id: str | None = None  # the gateway's own, for an error
    _splitter: EventSplitter = field(default_factory=EventSplitter)
    _figures: StreamFigures = field(init=False)
    _has_failed: bool = False  # an error was sent on, and nothing follows it
    _bytes_before: int = 0  # of text, before the block that is sent

    def __post_init__(self) -> None:
        """Start before the first figure."""
        self._figures = StreamFigures(self.observed)

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        """Return the complete events in the upstream's `data`, rewritten for the caller. Raises
        `EventTooLarge`.
        """
        return [self._rewritten_event(event) for event in self._splitter.feed(data)]

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """
        return self._splitter.keep_large(data)

    def feed_large(self) -> Sequence[AnswerPart]:
        """Return a large event that has ended, and those behind it, rewritten for the caller."""
        return [self._rewritten_event(event) for event in self._splitter.take_large()]

    def end(self) -> Sequence[AnswerPart]:
        """Return the last event of a body that has ended, if only the event's blank line is
        missing.
        """
        event = last_event(self._splitter.end(), self.observed)
        return [self._rewritten_event(event)] if event else []

    def _rewritten_event(self, event: bytes) -> AnswerPart:
        """Return a stream's event for the caller; record its usage and content."""
        payload = data_of(event)
        if self.observed.is_done or payload == DONE:
            return self._meter_after_end(event, payload)
        if self._has_failed:
            return self._meter_after_error(event)
        if payload is None:
            return event  # a comment keeps the connection open
        try:
            return self._rewritten(event, payload, decode_event(payload))
        except UNREADABLE:
            shown = hidden(event)
            if shown is not None:
                return changed(self._rewritten_event(shown.text), shown.restored)
            self._note_unread(payload)
            return event

    def _rewritten(self, event: bytes, payload: bytes, decoded: MessageEvent) -> AnswerPart:
        """Return a decoded event for the caller. Events that are not named here pass unchanged."""
        kind = bytes(decoded.type)
        if kind == _DELTA:
            self._note_content(decoded.delta)
        elif kind == _START:
            self._bytes_before = self.observed.output_bytes
            note_hosted_call(self.observed, decoded.content_block)
            self._note_content(decoded.content_block)
        elif kind == _MESSAGE_START:
            return self._begin(event, payload, decoded)
        elif kind == _MESSAGE_DELTA:
            return self._finish(event, payload, decoded)
        elif kind == _MESSAGE_STOP:
            if decoded.usage is not ABSENT or decoded.message is not ABSENT:
                self._figures.finish(usage_of_event(decoded))
            self.observed.is_done = not self.observed.is_error
        elif is_raw_error(decoded.error):
            return self._fail(payload)
        elif is_odd_kind(word_in(decoded.type) or ""):
            self.observed.note_odd()
        return event

    def _note_content(self, raw: msgspec.Raw) -> None:
        """Record a content block's start or a piece of it, and its text if it has to be counted."""
        block = decode_block(raw)
        text = generated_text(block)
        if not text and not is_content(block):
            if is_odd_block(raw):
                self._figures.note_odd()
            return
        observed = self.observed
        self._figures.note_content()
        observed.has_content = True
        observed.pieces += 1
        if text:
            observed.note_text(text)
        elif is_there(block.data) or observed.output_bytes == self._bytes_before:
            observed.note_other()  # a sealed thought, or the signature of one that is not shown

    def _begin(self, event: bytes, payload: bytes, decoded: MessageEvent) -> bytes:
        """Return `message_start` with the caller's model name; record the prompt's usage."""
        if may_repeat(payload, *MONEY):
            note_piece_readings(self.observed, payload, money_in)
        observed, body = self.observed, bytes(decoded.message)
        message = decode_message(body)
        observed.upstream_id = word_in(message.id) or observed.upstream_id
        first = message.usage if is_there(message.usage) else usage_of_event(decoded)
        if is_there(first):
            self._figures.begin(first)
        new = renamed(body, message.model, self.model)
        new = without_foreign_cost(new, bytes(message.usage))
        if new is body:
            return event
        place = locate_one(payload, _MESSAGE, body)
        return with_data(event, replace(payload, [(place, _MESSAGE, new)]))

    def _finish(self, event: bytes, payload: bytes, decoded: MessageEvent) -> AnswerPart:
        """Return `message_delta` with a placeholder for the cost; record the end and the final
        usage.

        Its figures are cumulative. The prompt's parts stand in `message_start` alone.
        """
        if may_repeat(payload, *MONEY):
            note_piece_readings(self.observed, payload, money_in)
        observed = self.observed
        stop_reason = decode_block(decoded.delta).stop_reason if is_there(decoded.delta) else None
        if stop_reason is not None:
            observed.finish_reason = word_in(stop_reason) or observed.finish_reason
            if word_in(stop_reason):
                observed.note_ended(0)
        if not is_there(decoded.usage):
            if self._figures.finish(usage_of_event(decoded)) is None and stop_reason is not None:
                observed.note_uncounted()  # the figure at the start is none of the whole answer
            return event
        has_usage = self._figures.finish(decoded.usage) is not None
        priced = observed.final if has_usage else None
        return with_cost(payload, decoded.usage, priced, around=lambda new: with_data(event, new))

    def _fail(self, payload: bytes) -> bytes:
        """Record an upstream's error event, and return ours with its message."""
        self.observed.is_error = self._has_failed = True
        if (usage := usage_in(payload)) is not None:
            self.observed.note_final(usage)
        error = read_error(payload)
        return error_event(code_of(error), error.message, request_id=self.request_id)

    def _meter_after_error(self, event: bytes) -> bytes:
        """Drop an event after an error, but meter its content and its usage."""
        self._has_failed = False
        self._rewritten_event(event)
        self._has_failed = True
        return b""

    def _meter_after_end(self, event: bytes, payload: bytes | None) -> bytes:
        """Drop everything after the end, but meter its content and its usage."""
        if payload is not None and payload != DONE:
            with self.observed.behind_end():
                self._rewritten_event(event)
            self._has_failed = False
        return b""

    def _note_unread(self, payload: bytes) -> None:
        """Record an event that passes on unread, and its usage if that can be read."""
        self.observed.note_unread()
        if (usage := usage_in(payload)) is not None:
            self.observed.note_final(usage)


def message_stream(*, model: str, request_id: str | None = None) -> MessageStream:
    """Return a new stream that rewrites an upstream's stream of messages for the caller.

    Its text is kept: no running usage comes between its start and its end.
    """
    observed = Observed(collects_text=True, end_mark=STOP_EVENT)
    return MessageStream(model=model, observed=observed, request_id=request_id)
