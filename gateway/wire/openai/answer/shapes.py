"""Declares the members that are read in OpenAI answers, and decodes them; a malformed answer raises
an error of `UNREADABLE`.

In a chunk or a whole answer, a text member of an unexpected type is left out, and the others are
still read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.served_tier import UNKNOWN_TIER
from gateway.wire.dialect import AnswerPart, changed
from gateway.wire.foreign_json import (
    SMALL_BYTES,
    first_reading,
    is_raw_error,
    note_first_reading,
)
from gateway.wire.members import MalformedJson
from gateway.wire.observed import Observed
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.usage import (
    counts_in,
    stated_geo,
    stated_tier,
    usage_from_groq,
    usage_from_wire,
    with_other_models,
)
from gateway.wire.openai.usage_detail import fees_in, may_have_detail, usage_detail
from gateway.wire.surrogates import hidden

Known = TypeVar("Known", bound=msgspec.Struct)
MAX_INDEX_DIGITS = 10
FINAL_RESPONSE_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})
ABSENT = msgspec.Raw()  # an optional Raw cannot be decoded: `Raw | None` accepts only null

# Whatever bytes an upstream sends, reading them returns a value or nothing.
UNREADABLE = (msgspec.DecodeError, MalformedJson, RecursionError, UnicodeDecodeError)


NO_TIER = ""  # of an answer without this member; one that is null may stand beside another


class AnswerChoice(msgspec.Struct):
    index: msgspec.Raw = ABSENT
    finish_reason: str | None = None
    message: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT  # Moonshot's streams put it here


class Chunk(msgspec.Struct):
    """The relevant members of a chat or completions chunk, or of a whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[AnswerChoice] | None = None
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    service_tier: str | None = NO_TIER
    x_groq: msgspec.Raw = ABSENT
    usage_breakdown: msgspec.Raw = ABSENT  # Groq's compound systems
    data: msgspec.Raw = ABSENT  # embeddings, scores
    results: msgspec.Raw = ABSENT  # of a rerank
    meta: msgspec.Raw = ABSENT  # of a rerank, Cohere's
    metrics: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT  # llama.cpp's
    # Pages that a search of the provider found: Perplexity's and xAI's, Perplexity's, Zhipu's.
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT
    web_search: msgspec.Raw = ABSENT


class UsageBody(msgspec.Struct):
    """The members of an answer that decide its usage; a broken `model` must not hide the usage."""

    model: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    usage_breakdown: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    x_groq: msgspec.Raw = ABSENT


class _UsageHolder(msgspec.Struct):
    """The usage of an error, or of another object."""

    usage: msgspec.Raw = ABSENT


class ResponseBody(msgspec.Struct):
    """A response object of `/v1/responses`."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    service_tier: str | None = NO_TIER
    tool_usage: msgspec.Raw = ABSENT


class ResponseEvent(msgspec.Struct):
    """One event of a `/v1/responses` stream."""

    type: str | None = None
    response: msgspec.Raw = ABSENT
    delta: msgspec.Raw = ABSENT
    output_index: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT
    usage: msgspec.Raw = ABSENT  # of an event of no known type
    item: msgspec.Raw = ABSENT


def _undecoded(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a variant of a struct type whose members stay undecoded, so that one of an unexpected
    type does not stop the others from being read.
    """
    fields: list[tuple[str, Any, Any]] = [
        (name, msgspec.Raw, ABSENT) for name in kind.__struct_fields__
    ]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields)


_decode_chunk = msgspec.json.Decoder(Chunk).decode
decode_usage = msgspec.json.Decoder(UsageBody).decode
_decode_usage_holder = msgspec.json.Decoder(_UsageHolder).decode
_decode_response = msgspec.json.Decoder(ResponseBody).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_RawChoice, _RawChunk, _RawResponse = (
    _undecoded(AnswerChoice),
    _undecoded(Chunk),
    _undecoded(ResponseBody),
)
_decode_raw_chunk = msgspec.json.Decoder(_RawChunk).decode
_decode_raw_response = msgspec.json.Decoder(_RawResponse).decode
decode_delta = msgspec.json.Decoder(dict[str, Any]).decode
decode_event = msgspec.json.Decoder(ResponseEvent).decode


def chunk_of(payload: bytes) -> Chunk:
    """Return a decoded chat or completions chunk, or a decoded whole answer.

    Raises an error of `UNREADABLE`, also if there are more choices than any request asks for.

    A member that is only recorded may have an unexpected type. It is then left out, and the usage
    beside it is still read.
    """
    if len(payload) < SMALL_BYTES:
        try:
            return _decode_chunk(payload)
        except msgspec.ValidationError:
            pass
    raw: Any = _decode_raw_chunk(payload)
    chunk = _with_texts(Chunk(), raw)
    if is_there(raw.choices):
        chunk.choices = [
            _with_texts(AnswerChoice(), choice) for choice in decode_few(raw.choices, _RawChoice)
        ]
    return chunk


def response_of(body: bytes) -> ResponseBody:
    """Return a decoded response object of `/v1/responses`. Raises an error of `UNREADABLE`."""
    try:
        return _decode_response(body)
    except msgspec.ValidationError:
        return _with_texts(ResponseBody(), _decode_raw_response(body))


def _with_texts(known: Known, raw: Any) -> Known:
    """Copy the members of `raw` into `known`: undecoded ones as bytes, the others if they are
    texts.
    """
    for name in known.__struct_fields__:
        value = getattr(raw, name)
        if isinstance(getattr(known, name), msgspec.Raw):
            setattr(known, name, value)
        elif value is not ABSENT and name != "choices":
            with suppress(*UNREADABLE):
                setattr(known, name, _decode_text(value))
                continue
            if name == "service_tier":
                setattr(known, name, UNKNOWN_TIER)  # it may stand for any tier
    return known


def is_there(raw: msgspec.Raw) -> bool:
    """Return True if a member was sent with a value other than null."""
    return raw is not ABSENT and bytes(raw) != b"null"


def usage_inside(holder: msgspec.Raw) -> msgspec.Raw:
    """Return the usage inside an error or another object of any upstream, absent if there is
    none.
    """
    if not bytes(holder).startswith(b"{"):
        return ABSENT
    try:
        return _decode_usage_holder(holder).usage
    except UNREADABLE:
        return ABSENT


def usage_of(answer: Chunk | UsageBody | ResponseBody) -> TokenUsage | None:
    """Return the usage in a decoded answer or chunk, or in its error; None if it reports none or
    one that cannot be read.
    """
    usage = usage_from_wire(answer.usage) if is_there(answer.usage) else None
    if usage is None and answer.error is not ABSENT and is_raw_error(answer.error):
        within = usage_inside(answer.error)
        usage = usage_from_wire(within) if is_there(within) else None
    if usage is None or isinstance(answer, ResponseBody) or answer.usage_breakdown is ABSENT:
        return usage
    model = answer.model if isinstance(answer, Chunk) else _text_of(answer.model)
    return with_other_models(usage, answer.usage_breakdown, model=model)


def _text_of(value: msgspec.Raw) -> str | None:
    """Return a member's text, None if it is absent, none or broken."""
    try:
        return _decode_text(value) if is_there(value) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that an answer reports, if any.

    An error may report it too: an upstream that reports work is believed.
    """
    try:
        read = decode_usage(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    usage = usage_of(read)
    if usage is None and read.x_groq is not ABSENT:
        return usage_from_groq(read.x_groq, model=_text_of(read.model))
    return usage


def counted_in(body: bytes) -> TokenUsage | None:
    """Return the usage that an object reports, or is itself."""
    return usage_in(body) or counts_in(body)


def note_unread_event(observed: Observed, payload: bytes) -> None:
    """Record an event that passes on unread, and its usage if that can be read."""
    observed.note_unread()
    if (usage := usage_in(payload)) is not None:
        observed.note_final(usage)


def note_usage_detail(observed: Observed, raw: msgspec.Raw | bytes) -> None:
    """Record the tier, the place and the figures beside tokens in a final usage, and the other
    reading of one that has a name twice.
    """
    if may_have_detail(raw):
        note_first_reading(observed, raw, usage_from_wire)
        for reading in (first_reading(raw) or b"", raw):
            observed.note_tier(stated_tier(reading))
            observed.note_geo(stated_geo(reading))
        observed.note_detail(usage_detail(raw))
        for kind in fees_in(raw):
            observed.note_shown(kind)


def number_of(index: msgspec.Raw) -> int:
    """Return a choice's index; 0 if it is not a number."""
    digits = bytes(index)
    return int(digits) if len(digits) < MAX_INDEX_DIGITS and digits.isdigit() else 0


def without_halves_of_pairs(body: bytes, rewrite: Callable[[bytes], AnswerPart]) -> AnswerPart:
    """Rewrite a body that is unreadable only because of half a surrogate pair; any other stays
    unchanged.
    """
    shown = hidden(body)
    if shown is None:
        return body
    try:
        return changed(rewrite(shown.text), shown.restored)
    except UNREADABLE:
        return body
