"""Reads an upstream's answer in Anthropic's dialect, streamed or whole, into neutral answer events,
and records its usage, end and text.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.anthropic.answer.messages import MONEY, money_in
from gateway.wire.anthropic.answer.shapes import (
    READ_BLOCKS,
    STOP_EVENT,
    decode_event,
    is_odd_block,
    is_odd_kind,
    is_odd_message,
    note_hosted_call,
    usage_of_event,
)
from gateway.wire.anthropic.error import code_of
from gateway.wire.anthropic.usage import (
    StreamFigures,
    note_words,
    usage_from_wire,
)
from gateway.wire.dialect import NO_ANSWER, UnreadableAnswer
from gateway.wire.foreign_json import (
    MAX_WHOLE_BYTES,
    arguments_in,
    is_error,
    may_repeat,
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
from gateway.wire.openai.answer.last_event import DONE, last_event
from gateway.wire.openai.answer.shapes import counted_in
from gateway.wire.openai.error import read_error
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.surrogates import StandIns, with_stand_ins, without_halves
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
    used,
)
from gateway.wire.translation.split_pairs import SplitPairs

_OF_SERVER = ("server_tool_use", "web_search_tool_result", "code_execution_tool_result")
MAX_CALLS = 4096  # of one answer
_FINISHES = {
    "max_tokens": Finish.LENGTH,
    "model_context_window_exceeded": Finish.LENGTH,
    "tool_use": Finish.TOOL_CALLS,
    "refusal": Finish.CONTENT_FILTER,
}


class _Holder(msgspec.Struct):
    """The members of a message or an event that may have a usage, undecoded."""

    usage: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class _Start(msgspec.Struct):
    message: _Holder = msgspec.field(default_factory=_Holder)


_decode_holder = msgspec.json.Decoder(_Holder).decode
_decode_start = msgspec.json.Decoder(_Start).decode
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class MessagesReader:
    """Reads a stream of named events."""

    def __init__(self, observed: Observed | None = None) -> None:
        """Start before the first event.

        The text is kept: no running usage comes between the start and the end.
        """
        fresh = Observed(collects_text=True, end_mark=STOP_EVENT)
        self.observed = fresh if observed is None else observed
        self._splitter = EventSplitter()
        self._figures = StreamFigures(self.observed)
        self._calls: dict[int, int] = {}  # the number of the last call of each block's index
        self._call_count = 0
        self._pairs = SplitPairs()
        self._stand_ins: StandIns | None = None  # of the event that is read
        self._bytes_before = 0  # of text, before the block that is sent

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        return [event for sent in self._splitter.feed(data) for event in self._events_of(sent)]

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """
        return self._splitter.keep_large(data)

    def feed_large(self) -> Sequence[AnswerEvent]:
        """Return a large event that has ended, and those behind it."""
        return [event for sent in self._splitter.take_large() for event in self._events_of(sent)]

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        sent = last_event(self._splitter.end(), self.observed)
        return self._events_of(sent) if sent else []

    def _events_of(self, sent: bytes) -> list[AnswerEvent]:
        """Return the neutral events of one event; none of those that have no meaning here."""
        payload = data_of(sent)
        if payload is None or payload == DONE:
            return []
        if self.observed.is_done:
            with self.observed.behind_end():
                self._read(payload)
            return []
        has_failed = self.observed.is_error
        events = self._pairs.joined(self._read(payload), self._stand_ins)
        return [] if has_failed else [*events]

    def _read(self, payload: bytes) -> list[AnswerEvent]:
        """Return the neutral events of one event's data; content and usage are metered."""
        text, self._stand_ins = with_stand_ins(payload)
        event = object_of(text, most_bytes=MAX_WHOLE_BYTES)  # above 1 MiB in a thread
        if event is None:
            self.observed.note_unread()
            if (usage := _usage_in(payload)) is not None:
                self.observed.note_final(usage)
            return []
        kind = text_in(event, "type")
        if kind == "content_block_delta":
            return self._delta(event, object_in(event, "delta"))
        if kind == "content_block_start":
            return self._start_block(event, object_in(event, "content_block"))
        if kind == "message_start":
            return [self._begin(payload, object_in(event, "message"))]
        if kind == "message_delta":
            return self._finish(payload, object_in(event, "delta"))
        if kind == "message_stop":
            if len(event) > 1:
                self._note_usage(payload)
            return self._stop()
        if is_error(event.get("error")):
            return [self._fail(payload)]
        if is_odd_kind(kind):
            self.observed.note_odd()
        return []

    def _begin(self, payload: bytes, message: dict[str, Any]) -> Started:
        """Record the prompt's usage, which comes first."""
        if may_repeat(payload, *MONEY):
            note_piece_readings(self.observed, payload, money_in)
        observed = self.observed
        observed.upstream_id = short_text_in(message, "id") or observed.upstream_id
        prompt = None
        with suppress(*_UNREADABLE):
            start = without_halves(payload)
            first = self._figures.begin(_decode_start(start).message.usage)
            if first is None:
                first = self._figures.begin(usage_of_event(decode_event(start)))
            prompt = None if first is None else usage_from_wire(first)
        return Started(answer_id=observed.upstream_id or "", usage=prompt)

    def _start_block(self, event: dict[str, Any], block: dict[str, Any]) -> list[AnswerEvent]:
        """Return the start of a block. Some servers send its first text or its input with it."""
        kind = text_in(block, "type")
        self._bytes_before = self.observed.output_bytes
        if kind == "tool_use":
            return self._start_call(_index(event), block)
        if kind.endswith(_OF_SERVER):
            note_hosted_call(self.observed, msgspec.json.encode(block))
        return [*self._pieces(_texts_of(block, kind), block), *_omitted(block, kind)]

    def _start_call(self, index: int, block: dict[str, Any]) -> list[AnswerEvent]:
        """Return the start of a tool call, with its input if that comes at once."""
        if self._call_count >= MAX_CALLS:
            return []
        call = self._calls[index] = self._call_count
        self._call_count += 1
        name = text_in(block, "name")
        self._note(name)
        events: list[AnswerEvent] = [
            CallStarted(call=call, call_id=text_in(block, "id"), name=name)
        ]
        if block.get("input"):
            arguments = arguments_in(block, "input")
            self._note(arguments)
            events.append(CallArguments(call=call, text=arguments))
        return events

    def _delta(self, event: dict[str, Any], delta: dict[str, Any]) -> list[AnswerEvent]:
        """Return a piece of a block."""
        kind = text_in(delta, "type")
        if kind != "input_json_delta":
            return [*self._pieces(_texts_of(delta, kind), delta), *_omitted(delta, kind)]
        text, call = text_in(delta, "partial_json"), self._calls.get(_index(event))
        if not text:
            return []
        self._note(text)
        return [] if call is None else [CallArguments(call=call, text=text)]

    def _pieces(
        self, pieces: list[TextPiece | ThoughtPiece], of: dict[str, Any]
    ) -> list[AnswerEvent]:
        """Record pieces of text or reasoning of a block, and return them."""
        if not pieces and is_odd_block(msgspec.json.encode(of)):
            self._figures.note_odd()
        for piece in pieces:
            self._note(piece.text)
            is_shown = piece.text or self.observed.output_bytes > self._bytes_before
            if isinstance(piece, ThoughtPiece) and (piece.sealed or not is_shown):
                self.observed.note_other()  # sealed, or the signature of a thought not shown
        return list(pieces)

    def _note(self, text: str) -> None:
        """Record a piece of generated content, and its text to be counted if no usage follows."""
        observed = self.observed
        self._figures.note_content()
        observed.has_content = True
        observed.pieces += 1
        observed.note_text(text)

    def _finish(self, payload: bytes, delta: dict[str, Any]) -> list[AnswerEvent]:
        """Record the end and the final usage; its figures are cumulative."""
        if may_repeat(payload, *MONEY):
            note_piece_readings(self.observed, payload, money_in)
        observed = self.observed
        self._note_usage(payload)
        stop_reason = short_text_in(delta, "stop_reason")
        if not stop_reason:
            return []
        observed.note_finish(stop_reason)
        observed.note_ended(0)
        if observed.final is None:
            observed.note_uncounted()  # the figure at the start is none of the whole answer
        return [_finished(stop_reason, delta)]

    def _note_usage(self, payload: bytes) -> None:
        """Record the usage of an event, at its top or inside one of its objects."""
        with suppress(*_UNREADABLE):
            if self._figures.finish(_decode_holder(without_halves(payload)).usage) is None:
                self._figures.finish(usage_of_event(decode_event(without_halves(payload))))

    def _stop(self) -> list[AnswerEvent]:
        """Return the end of the answer, with its usage."""
        self.observed.is_done = not self.observed.is_error
        return [*used(self.observed), Ended()]

    def _fail(self, payload: bytes) -> Failed:
        """Record an upstream's error, which ends the stream."""
        self.observed.is_error = True
        if (usage := _usage_in(payload)) is not None:
            self.observed.note_final(usage)
        error = read_error(payload)
        return Failed(code=code_of(error), message=error.message)


def messages_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer; record its usage, end and text in `observed`.

    Raises `UnreadableAnswer` if it is no message that can be read: something was generated.
    """
    message = object_of(body, most_bytes=MAX_WHOLE_BYTES)
    if message is None:
        observed.note_unread()
        if (usage := _usage_in(body)) is not None:
            observed.note_final(usage)
        raise UnreadableAnswer(NO_ANSWER)
    observed.upstream_id = short_text_in(message, "id") or None
    observed.finish_reason = short_text_in(message, "stop_reason") or None
    observed.is_error = is_error(message.get("error"))
    if (usage := _usage_in(body)) is not None:
        observed.note_final(usage)
        stated = _decode_holder(without_halves(body)).usage
        note_first_reading(observed, stated, usage_from_wire)
        note_words(observed, stated)
    else:
        note_least(observed, body, lambda part: _usage_in(part) or counted_in(part))
    events: list[AnswerEvent] = [Started(answer_id=observed.upstream_id or "")]
    events += _contents(objects_in(message, "content"), observed)
    if not observed.has_content and not observed.is_error:
        observed.has_odd = bool(message.get("content")) or is_odd_message(body)
    if observed.is_error:
        return events
    if not isinstance(message.get("content"), list):
        if observed.final is None:
            note_unknown(observed, body, _usage_in)
        raise UnreadableAnswer(NO_ANSWER)
    observed.is_done = True
    if may_repeat(body, *MONEY):
        note_readings(observed, body, messages_events)
    events.append(_finished(observed.finish_reason or "", message))
    return [*events, *used(observed), Ended()]


def _contents(blocks: list[dict[str, Any]], observed: Observed) -> list[AnswerEvent]:
    """Return the blocks of a whole answer in their order."""
    events: list[AnswerEvent] = []
    observed.collects_text = True
    calls = 0
    for block in blocks:
        kind = text_in(block, "type")
        found: list[AnswerEvent]
        if kind == "tool_use":
            arguments = arguments_in(block, "input")
            name = text_in(block, "name")
            found = [
                CallStarted(call=calls, call_id=text_in(block, "id"), name=name),
                CallArguments(call=calls, text=arguments),
            ]
            calls, text = calls + 1, name + arguments
        else:
            if kind.endswith(_OF_SERVER):
                note_hosted_call(observed, msgspec.json.encode(block))
            pieces = _texts_of(block, kind)
            found, text = list(pieces), "".join(piece.text for piece in pieces)
            if not text and (pieces or is_odd_block(msgspec.json.encode(block))):
                observed.note_other()
        events += [*found, *_omitted(block, kind)]
        observed.has_content = observed.has_content or bool(found)
        if text:
            observed.note_text(text)
    return events


def _omitted(block: dict[str, Any], kind: str) -> list[Omitted]:
    """Return the name of a block, or of a piece of one, that is not read; a text's citations are
    not.
    """
    if block.get("citations") or kind == "citations_delta":
        return [Omitted(name="citations")]
    return [] if not kind or kind in READ_BLOCKS else [Omitted(name=kind)]


def _texts_of(block: dict[str, Any], kind: str) -> list[TextPiece | ThoughtPiece]:
    """Return the text or the reasoning in a block or in a piece of one; empty if there is none."""
    if kind in ("text", "text_delta"):
        text = text_in(block, "text")
        return [TextPiece(text=text)] if text else []
    if kind == "redacted_thinking":
        sealed = text_in(block, "data")
        return [ThoughtPiece(sealed=sealed)] if sealed else []
    if kind in ("thinking", "thinking_delta", "signature_delta"):
        text, signature = text_in(block, "thinking"), text_in(block, "signature")
        return [ThoughtPiece(text=text, signature=signature)] if text or signature else []
    return []


def _finished(stop_reason: str, holder: dict[str, Any]) -> Finished:
    """Return the end of the answer, in OpenAI's word and in the provider's."""
    return Finished(
        finish=_FINISHES.get(stop_reason, Finish.STOP),
        native=stop_reason,
        stop_sequence=text_in(holder, "stop_sequence") or None,
    )


def _usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage in a body; None if it reports none or cannot be read."""
    try:
        holder = _decode_holder(without_halves(body))
        usage = holder.usage
        if bytes(usage) in (b"", b"null") and bytes(holder.error).startswith(b"{"):
            usage = _decode_holder(holder.error).usage
    except _UNREADABLE:
        return None
    return usage_from_wire(usage) if bytes(usage) not in (b"", b"null") else None


def _index(event: dict[str, Any]) -> int:
    """Return the index of a block; 0 if it is not a number."""
    index = event.get("index")
    return index if type(index) is int else 0
