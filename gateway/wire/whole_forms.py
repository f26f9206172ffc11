"""Reads whole answers that came in another form than one JSON object (a list with the only answer,
unrequested events), and the bodies of errors in any form, cut ones too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestBody
from gateway.wire.anthropic.answer.messages import MessageStream
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader
from gateway.wire.callers import WRITTEN, writer_for
from gateway.wire.dialect import (
    AnswerPart,
    AnswerStream,
    EventTooLarge,
    UnreadableAnswer,
    UpstreamRequest,
)
from gateway.wire.foreign_json import closed_json, repaired
from gateway.wire.openai.answer.chat import ChatStream
from gateway.wire.openai.answer.responses import ResponseStream, rewrite_response
from gateway.wire.openai.answer.shapes import FINAL_RESPONSE_EVENTS, UNREADABLE, decode_event
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.chat_translation.reader import ChatReader
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import AnswerReader
from gateway.wire.translation.translated_stream import LateEnds, TranslatedStream

_SPACE = b" \t\r\n"
MOST_OBJECTS = 256  # of an error's body: the last ones have its usage
_LINES = (b"data:", b"event:", b"id:", b"retry:", b":")  # the beginnings of an event


class _Item(msgspec.Struct):
    """An object of any kind."""


def is_event_stream(body: bytes) -> bool:
    """Return True if a body is a stream of events and no JSON."""
    return body[:1] != b"{" and body[:1024].lstrip(_SPACE).startswith(_LINES)


def only_item(body: bytes) -> bytes:
    """Return the only object of a list; a body that is anything else as it is."""
    if body[:1] == b"{" or body[:1024].lstrip(_SPACE)[:1] != b"[":
        return body
    try:
        if len(decode_few(msgspec.Raw(body), _Item)) == 1:
            return body.strip(_SPACE)[1:-1]
    except UNREADABLE:
        pass
    return body


def usage_in_forms(
    body: bytes, usage_in: Callable[[bytes], TokenUsage | None]
) -> TokenUsage | None:
    """Return the last usage that an error's body reports, whichever form it has: one object, a
    list, events or lines, also a cut one or one that is no strict JSON. `usage_in` reads one
    object.
    """
    found = usage_in(body)
    if found is not None:
        return found
    for part in _objects_in(body):
        found = usage_in(part) or found
    if found is None and (closed := closed_json(_last_value(body))):
        return usage_in_forms(closed, usage_in)
    if found is None and (text := repaired(body)) is not None:
        return usage_in(text)
    return found


def is_cut_short(body: bytes) -> bool:
    """Return True if the JSON of a body, or of its last event, ends within an object or a list."""
    return closed_json(_last_value(body)) is not None


def _last_value(body: bytes) -> bytes:
    """Return the data of a body's last event; any other body as it is."""
    return body.rpartition(b"data:")[2] if is_event_stream(body) else body


def _objects_in(body: bytes) -> Iterator[bytes]:
    """Yield the objects of a list, of events or of lines; a few hundred at most."""
    if is_event_stream(body):
        splitter = EventSplitter()
        with suppress(EventTooLarge):
            for event in (*splitter.feed(body), splitter.end())[-MOST_OBJECTS:]:
                yield data_of(event) or b""
    elif body[:1024].lstrip(_SPACE)[:1] == b"[":
        with suppress(*UNREADABLE):
            listed = msgspec.json.decode(body, type=list[msgspec.Raw])
            yield from map(bytes, listed[-MOST_OBJECTS:])
    elif body[:1] == b"{":
        yield from body.splitlines()[-MOST_OBJECTS:]


def plain_answer(
    stream: AnswerStream,
    body: bytes,
    read: RequestBody,
    call: UpstreamRequest,
    *,
    has_end: bool = False,
) -> AnswerPart:
    """Return the caller's plain answer that the events of a whole body make; `stream` would read
    them for a caller of a stream, and its observations are theirs. `has_end`: the body is
    certainly whole, so the mark of its end may be missing.

    Raises `UnreadableAnswer` if they do not end or make none, and `EventTooLarge`.
    """
    reader = _reader_of(stream)
    if reader is None or read.facts.operation not in WRITTEN:
        stream.feed(body)
        stream.end()
        if isinstance(stream, ResponseStream):
            return _last_response(body, stream)
        raise UnreadableAnswer("a stream that was not asked for")
    events = [*reader.feed(body), *reader.end()]
    if has_end and (mark := reader.observed.missing_end(read.facts.answers)):
        events += reader.feed(mark)
    if not reader.observed.is_done:
        raise UnreadableAnswer("no whole answer")
    return writer_for(read, call).whole([*LateEnds().events(events)])


def _reader_of(stream: AnswerStream) -> AnswerReader | None:
    """Return the reader of a stream's events as neutral ones; None if there is none."""
    if isinstance(stream, TranslatedStream):
        return stream.reader
    if isinstance(stream, ChatStream):
        return ChatReader(stream)
    return MessagesReader(stream.observed) if isinstance(stream, MessageStream) else None


def _last_response(body: bytes, stream: ResponseStream) -> AnswerPart:
    """Return the response in the last event that has a whole one. Raises `UnreadableAnswer`."""
    for response in reversed([*_whole_responses(body)]):
        return rewrite_response(response, stream.observed, model=stream.model)
    raise UnreadableAnswer("no whole answer")


def _whole_responses(body: bytes) -> Iterator[bytes]:
    """Yield the responses in the events that end one."""
    splitter = EventSplitter()
    for event in (*splitter.feed(body), splitter.end()):
        try:
            decoded = decode_event(data_of(event) or b"")
        except UNREADABLE:
            continue
        if decoded.type in FINAL_RESPONSE_EVENTS:
            yield bytes(decoded.response)
