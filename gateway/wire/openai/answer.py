"""OpenAI answers on their way back: read the usage, put in the caller's model name, add the cost.

An answer passes through byte by byte except for two splices, `model` and `usage`. Running usage
that only the gateway asked for is cut out, and so is a usage-only chunk that the caller did not ask
for. Events are handled whole: at most one is held back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import MemberPlace
from gateway.wire.inflate import inflated
from gateway.wire.members import (
    MalformedJson,
    append,
    cut,
    locate,
    locate_one,
    replace,
    require_utf8,
)
from gateway.wire.openai.answer_bounds import (
    MAX_DECODED_BYTES,
    MAX_USAGE_BYTES,
    SMALL_BYTES,
    decode_few,
    is_quick,
)
from gateway.wire.openai.error import error_event, read_error
from gateway.wire.openai.observed import Observed as Observed
from gateway.wire.openai.repeated_event import RepeatedEvent, Repetition
from gateway.wire.openai.usage import (
    engine_queue_s,
    stated_geo,
    usage_from_groq,
    usage_from_wire,
    usage_of_embeddings,
    with_tool_calls,
)
from gateway.wire.sse import EventSplitter, data_of, with_data
from gateway.wire.surrogates import hidden, without_halves

Known = TypeVar("Known", bound=msgspec.Struct)
DONE = b"[DONE]"
CostText = Callable[[TokenUsage], str | None]  # plain dollars for `usage.cost_usd`, None if unknown
_MODEL, _USAGE, _COST, _RESPONSE = b'"model"', b'"usage"', b'"cost_usd"', b'"response"'
MAX_INDEX_DIGITS = 10
_UNFINISHED = frozenset({"queued", "in_progress"})
_FINAL_RESPONSE_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed"})


_ABSENT = msgspec.Raw()  # an optional Raw cannot be decoded: `Raw | None` accepts only null


# Whatever bytes an upstream sends, reading them returns a value or nothing.
_UNREADABLE = (msgspec.DecodeError, MalformedJson, RecursionError, UnicodeDecodeError)


class _Choice(msgspec.Struct):
    index: msgspec.Raw = _ABSENT
    finish_reason: str | None = None
    message: msgspec.Raw = _ABSENT
    delta: msgspec.Raw = _ABSENT
    text: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT  # Moonshot's streams put it here


class _Chunk(msgspec.Struct):
    """The relevant members of a chat or completions chunk, or of a whole answer."""

    id: str | None = None
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    service_tier: str | None = None
    x_groq: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT  # embeddings
    metrics: msgspec.Raw = _ABSENT


class _Usage(msgspec.Struct):
    usage: msgspec.Raw = _ABSENT


class _ResponseBody(msgspec.Struct):
    """A response object of `/v1/responses`."""

    id: str | None = None
    model: str | None = None
    status: str | None = None
    output: msgspec.Raw = _ABSENT
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT
    service_tier: str | None = None


class _ResponseEvent(msgspec.Struct):
    """One event of a `/v1/responses` stream."""

    type: str | None = None
    response: msgspec.Raw = _ABSENT
    delta: msgspec.Raw = _ABSENT
    output_index: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


def _undecoded(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return the same struct with every member as undecoded bytes."""
    fields: list[tuple[str, Any, Any]] = [
        (name, msgspec.Raw, _ABSENT) for name in kind.__struct_fields__
    ]
    return msgspec.defstruct(f"Raw{kind.__name__}", fields)


_encode = msgspec.json.Encoder().encode
_check = msgspec.json.Decoder(msgspec.Raw).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_delta = msgspec.json.Decoder(dict[str, Any]).decode
_decode_response = msgspec.json.Decoder(_ResponseBody).decode
_decode_event = msgspec.json.Decoder(_ResponseEvent).decode
_decode_text = msgspec.json.Decoder(str | None).decode
_RawChoice, _RawChunk, _RawResponse = (
    _undecoded(_Choice),
    _undecoded(_Chunk),
    _undecoded(_ResponseBody),
)
_decode_raw_chunk = msgspec.json.Decoder(_RawChunk).decode
_decode_raw_response = msgspec.json.Decoder(_RawResponse).decode


def rewrite_chat(
    body: bytes, observed: Observed, *, model: str, cost: CostText, is_empty: bool = False
) -> bytes:
    """Return a whole chat, completions or embeddings answer for the caller.

    Undecodable bodies pass unchanged.

    `is_empty`: all texts of the embeddings request were empty.
    """

    def rewritten(text: bytes) -> bytes:
        return _rewritten_chat(text, observed, model=model, cost=cost, is_empty=is_empty)

    try:
        return rewritten(body)
    except _UNREADABLE:
        return _without_halves(body, rewritten)


def rewrite_response(body: bytes, observed: Observed, *, model: str, cost: CostText) -> bytes:
    """Return a whole `/v1/responses` object for the caller. Undecodable bodies pass unchanged."""
    try:
        return _rewritten_response(body, observed, model=model, cost=cost)
    except _UNREADABLE:
        return _without_halves(
            body, lambda text: _rewritten_response(text, observed, model=model, cost=cost)
        )


def _without_halves(body: bytes, rewrite: Callable[[bytes], bytes]) -> bytes:
    """Rewrite a body that is unreadable only because of half a surrogate pair; any other stays
    unchanged.
    """
    shown = hidden(body)
    if shown is None:
        return body
    try:
        return shown.restored(rewrite(shown.text))
    except _UNREADABLE:
        return body


def _rewritten_chat(
    body: bytes, observed: Observed, *, model: str, cost: CostText, is_empty: bool
) -> bytes:
    require_utf8(body)
    chunk = _chunk_of(body)
    places = _places(body, chunk)
    _note_chunk(observed, chunk)
    has_vectors = _is_there(chunk.data) and bytes(chunk.data) != b"[]"
    usage = usage_of_embeddings(chunk.usage) if has_vectors and not is_empty else _usage_of(chunk)
    if (
        usage is None or usage.output_tokens == 0 or observed.is_error
    ):  # rare: the content matters only then
        observed.has_content = observed.has_content or any(
            _has_content(choice) for choice in chunk.choices or ()
        )
    if observed.is_error and has_vectors:
        observed.has_content = True  # embeddings beside an error
    if usage is not None:
        observed.note_final(usage)
        observed.stated_geo = stated_geo(chunk.usage)
    else:
        _collect_whole(observed, chunk)
    observed.is_done = not observed.is_error
    return _spliced(
        body, places, chunk, model=model, cost_text=cost(observed.final) if observed.final else None
    )


def _has_content(choice: _Choice) -> bool:
    """Return True if a choice of a whole answer contains more than a role."""
    return _holds_text(choice.message) or _has_token(choice)


def _collect_whole(observed: Observed, chunk: _Chunk) -> None:
    """Keep the text of a plain answer without usage, so that the gateway can count it."""
    if observed.collects_text or observed.final is not None:
        return
    observed.collects_text = True
    for choice in chunk.choices or ():
        _collect(observed, choice)
    if (
        observed.has_content and not observed.output_bytes
    ):  # the text of this shape is unknown, so its size is counted
        observed.note_unread(sum(len(bytes(choice.message)) for choice in chunk.choices or ()))


def _rewritten_response(body: bytes, observed: Observed, *, model: str, cost: CostText) -> bytes:
    require_utf8(body)
    response = _response_of(body)
    places = locate(body) if len(body) <= MAX_DECODED_BYTES else _places(body, response)
    observed.is_unfinished = response.status in _UNFINISHED
    _note_response(observed, response, is_last=not observed.is_unfinished)
    observed.is_error = _is_there(response.error)
    if observed.final is None:
        observed.collects_text = True
        _collect_output(observed, response.output)
    observed.has_content = observed.has_content or bytes(response.output) not in (
        b"",
        b"null",
        b"[]",
    )
    if (
        observed.has_content and observed.final is None and not observed.output_bytes
    ):  # items without any known text
        observed.note_unread(len(bytes(response.output)))
    observed.is_done = not observed.is_error
    return _spliced(
        body,
        places,
        response,
        model=model,
        cost_text=cost(observed.final) if observed.final else None,
    )


def _collect_output(observed: Observed, output: msgspec.Raw) -> None:
    """Keep the parts of a response's items that a tokenizer would count: each text, name and
    argument.
    """
    if not is_quick(output):
        observed.note_unread(memoryview(output).nbytes)
        return
    try:
        items = msgspec.json.decode(output) if _is_there(output) else []
    except _UNREADABLE:
        return
    for place, item in enumerate(items if isinstance(items, list) else []):
        if not isinstance(item, dict):
            continue
        parts = [
            item,
            *(part for name in ("content", "summary") for part in _objects(item.get(name))),
        ]
        for part in parts:
            for name in ("text", "refusal", "name", "arguments", "input"):
                if isinstance(part.get(name), str):
                    observed.note_text(part[name], choice=place)


def _objects(value: Any) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


@dataclass(slots=True, kw_only=True)
class ChatStream:
    """A chat or completions stream for the caller.

    Feed it the received bytes; it returns the bytes to send on.
    """

    model: str
    cost: CostText
    wants_usage: bool
    wants_running_usage: bool
    asked_running_usage: bool
    observed: Observed
    choices: int  # requested per prompt
    _splitter: EventSplitter
    # An event up to the end of its model name, as received and as sent on: the same for a whole
    # stream.
    _head: bytes = b""
    _new_head: bytes = b""
    _repeated: RepeatedEvent = field(default_factory=RepeatedEvent, repr=False)
    _choice: int = 0  # the choice of the repeating events

    def feed(self, data: bytes) -> bytes:
        """Return the complete events in `data`, rewritten. Raises `sse.EventTooLarge`."""
        return b"".join([self._event(event) for event in self._splitter.feed(data)])

    def end(self) -> bytes:
        """Return the last event of a body that has ended, if only the event's blank line is
        missing.
        """
        event = _last_event(self._splitter.end(), self.observed)
        return self._event(event) if event else b""

    def _event(self, event: bytes) -> bytes:
        repetition = self._repeated.match(event)
        if repetition is not None:
            return self._repeat(repetition)
        self._repeated.forget()
        payload = data_of(event)
        if payload is None or self.observed.is_done:
            return self._late(payload) if self.observed.is_done else event
        if payload == DONE:
            return self._end(event)
        try:
            chunk = _chunk_of(payload)
        except _UNREADABLE:
            shown = hidden(event)
            if shown is not None:
                return shown.restored(self._event(shown.text))
            _note_unread_event(self.observed, payload)
            return event
        _note_chunk(self.observed, chunk)
        if _is_there(chunk.error):
            if (usage := _usage_of(chunk)) is not None:
                self.observed.note_final(usage)
            # The `code` of vLLM's errors is a number, which strict clients cannot read.
            return error_event("upstream_error", read_error(payload).message, is_responses=False)
        rewritten = self._rewritten(event, payload, chunk)
        self._learn(event, rewritten, chunk)
        return rewritten

    def _repeat(self, new: Repetition) -> bytes:
        """Record a repeating event's values, as `_note_chunk` and `_note_usage` would."""
        self.observed.pieces += 1
        if new.usage:
            self.observed.note_running(
                msgspec.Raw(new.usage), choice=self._choice, choices_per_prompt=self.choices
            )
        if self.observed.collects_text:
            self.observed.note_text(new.text, choice=self._choice)
        return new.event

    def _learn(self, event: bytes, rewritten: bytes, chunk: _Chunk) -> None:
        """Compare the next events with this one, if only its text and its running usage can
        change in them.
        """
        if not chunk.choices or len(chunk.choices) != 1 or not self.observed.has_content:
            return
        choice = chunk.choices[0]
        if choice.finish_reason is not None or chunk.x_groq is not _ABSENT:
            return
        has_usage = _is_there(chunk.usage)
        if has_usage and self._keeps_usage(False, True):
            return
        self._choice = _number(choice.index)
        usage = bytes(chunk.usage) if has_usage else b""
        self._repeated.learn(event, rewritten, delta=bytes(choice.delta), usage=usage)

    def _end(self, event: bytes) -> bytes:
        """Handle `[DONE]`; after an error it means nothing, because vLLM sends one after it
        died.
        """
        observed = self.observed
        observed.is_done = not observed.is_error
        if observed.is_done and observed.final is None and not self.asked_running_usage:
            observed.final = observed.running  # the upstream sent it unasked, and nothing followed
        return event if observed.is_done else b""

    def _late(self, payload: bytes | None) -> bytes:
        """Drop everything after `[DONE]`, but meter a usage that has not come before."""
        if self.observed.final is None and payload is not None and _USAGE in payload:
            try:
                usage = _usage_of(_decode_usage(payload))
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return b""
            if usage is not None:
                self.observed.note_final(usage)
        return b""

    def _note_usage(self, chunk: _Chunk) -> bool:
        """Meter the chunk's usage; return True if it is the final one.

        The final usage comes in a chunk of its own or, with some providers, in the one that ends a
        choice. The usage in any other chunk is a running figure, requested or not.
        """
        is_final = not chunk.choices or (
            not self.asked_running_usage and any(choice.finish_reason for choice in chunk.choices)
        )
        if not is_final:
            assert chunk.choices is not None
            self._note_running(chunk.usage, chunk.choices[0])
        elif (usage := _usage_of(chunk)) is not None:
            self.observed.note_final(usage)
            self.observed.stated_geo = stated_geo(chunk.usage)
        return is_final

    def _note_running(self, usage: msgspec.Raw, choice: _Choice) -> None:
        self.observed.note_running(
            usage, choice=_number(choice.index), choices_per_prompt=self.choices
        )

    def _rewritten(self, event: bytes, payload: bytes, chunk: _Chunk) -> bytes:
        usage = bytes(chunk.usage)
        has_usage = _is_there(chunk.usage)
        is_final = has_usage and self._note_usage(chunk)
        if not has_usage:
            for choice in chunk.choices or ():
                if choice.usage is not _ABSENT:
                    self._note_running(choice.usage, choice)
        if has_usage and not chunk.choices and not self.wants_usage:
            return b""
        renames = chunk.model is not None and chunk.model != self.model
        if not renames and not usage:
            return event
        keeps_usage = self._keeps_usage(is_final, has_usage)
        try:
            if is_final and keeps_usage:
                cost_text = self.cost(self.observed.final) if self.observed.final else None
                places = _places(payload, chunk)
                return with_data(
                    event, _spliced(payload, places, chunk, model=self.model, cost_text=cost_text)
                )
            if usage and not keeps_usage:
                payload = _without_usage(payload, usage)
            return with_data(event, self._renamed(payload) if renames else payload)
        except MalformedJson:
            return event

    def _renamed(self, payload: bytes) -> bytes:
        """Put in the caller's model name.

        Searching for its position would cost more than everything else done to an event.
        """
        if not self._head or not payload.startswith(self._head):
            place = locate(payload)["model"]
            self._head = payload[: place.end]
            self._new_head = payload[: place.start] + _encode(self.model)
        return self._new_head + payload[len(self._head) :]

    def _keeps_usage(self, is_final: bool, has_usage: bool) -> bool:
        if self.wants_running_usage:
            return True
        return self.wants_usage and (is_final or not has_usage or not self.asked_running_usage)


@dataclass(slots=True, kw_only=True)
class ResponseStream:
    """A `/v1/responses` stream for the caller."""

    model: str
    cost: CostText
    observed: Observed
    _splitter: EventSplitter

    def feed(self, data: bytes) -> bytes:
        """Return the complete events in `data`, rewritten. Raises `sse.EventTooLarge`."""
        return b"".join([self._event(event) for event in self._splitter.feed(data)])

    def end(self) -> bytes:
        """Return the last event of a body that has ended, if only the event's blank line is
        missing.
        """
        event = _last_event(self._splitter.end(), self.observed)
        return self._event(event) if event else b""

    def _event(self, event: bytes) -> bytes:
        payload = data_of(event)
        if payload is None or payload == DONE:
            return event
        try:
            decoded = _decode_event(payload)
            self._note_delta(decoded)
            is_bare = decoded.type is None and _is_there(decoded.error)
            self.observed.is_error = (
                self.observed.is_error or is_bare or decoded.type in ("error", "response.failed")
            )
            if is_bare:  # another dialect's: official clients reject an event without a type
                if (usage := usage_in(payload)) is not None:
                    self.observed.note_final(usage)
                return error_event("upstream_error", read_error(payload).message, is_responses=True)
            if not bytes(decoded.response):
                return event
            return with_data(event, self._rewritten(payload, decoded))
        except _UNREADABLE:
            shown = hidden(event)
            if shown is not None:
                return shown.restored(self._event(shown.text))
            _note_unread_event(self.observed, payload)
            return event

    def _note_delta(self, decoded: _ResponseEvent) -> None:
        if ".delta" not in (decoded.type or ""):
            return
        self.observed.final = None  # as in a chat: content after it makes it a running figure
        self.observed.has_content = True
        self.observed.pieces += 1
        if self.observed.collects_text and bytes(decoded.delta).startswith(b'"'):
            self.observed.note_text(
                msgspec.json.decode(decoded.delta), choice=_number(decoded.output_index)
            )

    def _rewritten(self, payload: bytes, decoded: _ResponseEvent) -> bytes:
        body = bytes(decoded.response)
        response = _response_of(body)
        is_last = decoded.type in _FINAL_RESPONSE_EVENTS
        _note_response(self.observed, response, is_last=is_last)
        self.observed.is_done = self.observed.is_done or is_last
        cost_text = self.cost(self.observed.final) if is_last and self.observed.final else None
        new = _spliced(body, locate(body), response, model=self.model, cost_text=cost_text)
        return replace(payload, [(locate_one(payload, _RESPONSE, body), _RESPONSE, new)])


AnswerStream = ChatStream | ResponseStream


def chat_stream(
    *,
    model: str,
    cost: CostText,
    wants_usage: bool,
    wants_running_usage: bool,
    asked_running_usage: bool,
    choices: int = 1,
    collects_text: bool = False,
) -> ChatStream:
    """Return a new chat stream.

    `asked_running_usage`: the upstream was asked for usage on every chunk.
    """
    return ChatStream(
        model=model,
        cost=cost,
        wants_usage=wants_usage,
        wants_running_usage=wants_running_usage,
        asked_running_usage=asked_running_usage,
        observed=Observed(collects_text=collects_text),
        choices=choices,
        _splitter=EventSplitter(),
    )


def response_stream(*, model: str, cost: CostText, collects_text: bool = False) -> ResponseStream:
    """Return a new `/v1/responses` stream."""
    return ResponseStream(
        model=model,
        cost=cost,
        observed=Observed(collects_text=collects_text),
        _splitter=EventSplitter(),
    )


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that an answer reports, if any.

    An error may report it too: an upstream that reports work is believed.
    """
    try:
        return _usage_of(_decode_usage(body))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _note_unread_event(observed: Observed, payload: bytes) -> None:
    """Count an event that passes on unread; its usage may still be readable."""
    observed.note_unread(len(payload))
    if (usage := usage_in(payload)) is not None:
        observed.note_final(usage)


def _last_event(rest: bytes, observed: Observed) -> bytes:
    """Return the bytes after the last blank line of a body as an event; empty if they are not an
    event.

    A body without any event is not a stream. An error object alone is read as an error event,
    because upstreams send one with status 200. Anything else was generated and charged, but cannot
    be read.
    """
    if _is_readable(rest):
        return rest
    if (
        not rest
        or observed.has_content
        or observed.upstream_id is not None
        or data_of(rest) is not None
    ):
        return b""
    try:
        chunk = _chunk_of(without_halves(rest))
    except _UNREADABLE:
        chunk = _Chunk()
    if _is_there(chunk.error):
        return b"data: " + b" ".join(rest.split(b"\n")).replace(b"\r", b" ").strip() + b"\n\n"
    observed.note_unread(len(inflated(rest.rstrip())))
    observed.is_whole = True
    if (usage := _usage_of(chunk)) is not None:
        observed.note_final(usage)
    return b""


def _is_readable(event: bytes) -> bool:
    """Return True if an event without its blank line is complete: half a JSON text is not."""
    payload = data_of(event)
    if payload is None or payload == DONE:
        return payload is not None
    try:
        _check(without_halves(payload))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def _chunk_of(payload: bytes) -> _Chunk:
    """Decode a chunk or a whole answer.

    Raises `msgspec.DecodeError`, also if there are more choices than any request asks for.

    A member that is only recorded may have an unexpected type. It is then left out, and the usage
    beside it is still read.
    """
    if len(payload) < SMALL_BYTES:
        try:
            return _decode_chunk(payload)
        except msgspec.ValidationError:
            pass
    raw: Any = _decode_raw_chunk(payload)
    chunk = _with_texts(_Chunk(), raw)
    if _is_there(raw.choices):
        chunk.choices = [
            _with_texts(_Choice(), choice) for choice in decode_few(raw.choices, _RawChoice)
        ]
    return chunk


def _response_of(body: bytes) -> _ResponseBody:
    """Decode a response object like `_chunk_of`."""
    try:
        return _decode_response(body)
    except msgspec.ValidationError:
        return _with_texts(_ResponseBody(), _decode_raw_response(body))


def _with_texts(known: Known, raw: Any) -> Known:
    """Copy the members of `raw`: undecoded ones as bytes, the others if they are texts."""
    for name in known.__struct_fields__:
        value = getattr(raw, name)
        if isinstance(getattr(known, name), msgspec.Raw):
            setattr(known, name, value)
        elif _is_there(value) and name != "choices":
            with suppress(*_UNREADABLE):
                setattr(known, name, _decode_text(value))
    return known


def _is_there(raw: msgspec.Raw) -> bool:
    """Return True if a member was sent with a value other than null."""
    return raw is not _ABSENT and bytes(raw) != b"null"


def _usage_of(answer: _Chunk | _Usage | _ResponseBody) -> TokenUsage | None:
    return usage_from_wire(answer.usage) if _is_there(answer.usage) else None


def _note_chunk(observed: Observed, chunk: _Chunk) -> None:
    """Record everything in a chunk except its usage."""
    observed.upstream_id = chunk.id or observed.upstream_id
    observed.service_tier = chunk.service_tier or observed.service_tier
    observed.is_error = observed.is_error or _is_there(chunk.error)
    for choice in chunk.choices or ():
        if observed.final is not None and _has_token(choice):
            observed.final = None  # content after it: the figure did not cover the whole answer
        observed.finish_reason = choice.finish_reason or observed.finish_reason
        observed.has_content = observed.has_content or _has_token(choice)
        if observed.collects_text:
            _collect(observed, choice)
    if (
        chunk.choices and observed.has_content
    ):  # content is not read again: that costs as much as all else
        observed.pieces += 1
    if chunk.metrics is not _ABSENT:
        observed.engine_queue_s = engine_queue_s(chunk.metrics)
    if chunk.x_groq is not _ABSENT and (usage := usage_from_groq(chunk.x_groq)) is not None:
        observed.note_final(usage)  # sent whether or not it was asked for


def _has_token(choice: _Choice) -> bool:
    """Return True if a chunk contains a token: the first one has only the role."""
    return (_is_there(choice.text) and bytes(choice.text) != b'""') or _holds_text(choice.delta)


def _holds_text(message: msgspec.Raw) -> bool:
    if not _is_there(message):
        return False
    if not is_quick(message):
        return True  # too long to be only a role
    try:
        return any(value for name, value in _decode_delta(message).items() if name != "role")
    except _UNREADABLE:
        return True  # an unknown shape, but it contains something


def _collect(observed: Observed, choice: _Choice) -> None:
    """Keep the parts that a tokenizer would count: every text of the delta, tool calls included."""
    whole = next(
        (one for one in (choice.delta, choice.message, choice.text) if _is_there(one)), None
    )
    if whole is None:
        return
    if not is_quick(whole):
        observed.note_unread(memoryview(whole).nbytes)
        return
    try:
        if whole is choice.text:
            said: list[Any] = [msgspec.json.decode(whole)]
        else:
            said = [value for name, value in _decode_delta(whole).items() if name != "role"]
    except _UNREADABLE:
        observed.note_unread(memoryview(whole).nbytes)
        return
    for text in _texts(said):
        observed.note_text(text, choice=_number(choice.index))


def _texts(said: list[Any]) -> list[str]:
    """Return the strings in a delta's members: content, reasoning, and the names and arguments
    of tool calls.
    """
    found: list[str] = []
    for value in said:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            calls = [call.get("function") for call in value if isinstance(call, dict)]
            found += [
                part
                for call in calls
                if isinstance(call, dict)
                for part in call.values()
                if type(part) is str
            ]
    return found


def _number(index: msgspec.Raw) -> int:
    """Return a choice's index; 0 if it is not a number."""
    digits = bytes(index)
    return int(digits) if len(digits) < MAX_INDEX_DIGITS and digits.isdigit() else 0


def _note_response(observed: Observed, response: _ResponseBody, *, is_last: bool) -> None:
    observed.upstream_id = response.id or observed.upstream_id
    observed.service_tier = response.service_tier or observed.service_tier
    observed.finish_reason = response.status or observed.finish_reason
    if not is_last:
        if _is_there(response.usage):
            observed.note_running(response.usage)
    elif (usage := _usage_of(response)) is not None:
        observed.note_final(with_tool_calls(usage, response.output))
        observed.stated_geo = stated_geo(response.usage)


def _without_usage(payload: bytes, usage: bytes) -> bytes:
    last = b',"usage":' + usage + b"}"
    if payload.endswith(last):  # where vLLM and OpenAI write it: the event need not be walked
        return payload[: -len(last)] + b"}"
    return cut(payload, locate_one(payload, _USAGE, usage))


def _places(body: bytes, answer: _Chunk | _ResponseBody) -> dict[str, MemberPlace]:
    """Return the positions of the two replaceable members, as far as they are present.

    Raises `MalformedJson` if one occurs twice.
    """
    found = {}
    if answer.model is not None:
        found["model"] = locate_one(body, _MODEL, _encode(answer.model))
    if answer.usage is not _ABSENT:
        found["usage"] = locate_one(body, _USAGE, bytes(answer.usage))
    return found


def _spliced(
    body: bytes,
    places: dict[str, MemberPlace],
    answer: _Chunk | _ResponseBody,
    *,
    model: str,
    cost_text: str | None,
) -> bytes:
    splices: list[tuple[MemberPlace | None, bytes, bytes]] = []
    if answer.model is not None and answer.model != model:
        splices.append((places["model"], _MODEL, _encode(model)))
    usage = bytes(answer.usage)
    # Otherwise it is not a usage, and the priced one came in another member.
    if cost_text is not None and usage.startswith(b"{") and len(usage) <= MAX_USAGE_BYTES:
        own = locate(usage).get("cost_usd") if usage.find(_COST) >= 0 else None
        cost = cost_text.encode()
        priced = (
            append(usage, _COST + b":" + cost)
            if own is None
            else replace(usage, [(own, _COST, cost)])
        )
        splices.append((places["usage"], _USAGE, priced))
    return replace(body, splices) if splices else body
