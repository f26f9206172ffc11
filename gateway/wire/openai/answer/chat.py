"""Rewrites chat, completions, embeddings and rerank answers for the caller, whole and streamed, and
records their usage and content.

An answer passes through byte by byte except for two splices, `model` and `usage`. Running usage
that only the gateway asked for (`usage`, or llama.cpp's `timings`) is cut out, and so is a
usage-only chunk that the caller did not ask for. Events are handled whole: at most one is held
back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import msgspec

from gateway.domain.pricing.tokens import UNREADABLE as UNREADABLE_COUNT
from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import AnswerPart, changed
from gateway.wire.foreign_json import (
    MAX_DECODED_BYTES,
    MAX_WHOLE_BYTES,
    is_quick,
    is_raw_error,
    may_repeat,
    note_least,
    note_piece_readings,
    note_unknown,
)
from gateway.wire.members import MalformedJson, locate, require_utf8
from gateway.wire.observed import MAX_CHOICES, Observed
from gateway.wire.openai.answer.answer_splices import (
    places_in,
    spliced,
    without_foreign_cost,
    without_timings,
    without_usage,
)
from gateway.wire.openai.answer.last_event import DONE, DONE_EVENT, events_of_answer, last_event
from gateway.wire.openai.answer.legal_words import (
    LEGAL,
    lacks_delta,
    note_word,
    with_deltas,
    with_legal_finish,
    with_legal_piece,
    with_object,
)
from gateway.wire.openai.answer.odd_parts import (
    CALLS,
    OF_CALLS,
    OF_PARTS,
    is_odd_chunk,
    is_text,
    is_word,
)
from gateway.wire.openai.answer.repeated_event import RepeatedEvent, Repetition
from gateway.wire.openai.answer.shapes import (
    ABSENT,
    NO_TIER,
    UNREADABLE,
    AnswerChoice,
    Chunk,
    chunk_of,
    counted_in,
    decode_delta,
    is_there,
    note_unread_event,
    note_usage_detail,
    number_of,
    usage_in,
    usage_of,
    without_halves_of_pairs,
)
from gateway.wire.openai.answer.shown_work import note_found_pages, note_shown_in_message
from gateway.wire.openai.error import error_event, read_error
from gateway.wire.openai.usage import (
    engine_queue_s,
    names_tier,
    stated_tier,
    usage_from_groq,
    usage_from_wire,
    usage_of_choices,
    usage_of_embeddings,
    usage_on_the_way,
    with_billed_units,
)
from gateway.wire.openai.usage_detail import (
    groq_detail,
    timings_detail,
)
from gateway.wire.sse import EVENT_STREAM, EventSplitter, data_of, with_data
from gateway.wire.surrogates import hidden

MOST_LEVELS = 4
MAX_HEAD_BYTES = 16 * 1024  # kept of an event, up to its model name
_MONEY = (b'"usage"', b'"service_tier"')
_MEDIA = re.compile(rb"(?<=;base64,)(?:[A-Za-z0-9+/=]|\\/)++")
_encode = msgspec.json.Encoder().encode


def rewrite_chat(
    body: bytes,
    observed: Observed,
    *,
    model: str,
    is_empty: bool = False,
    lists_items: bool = True,
) -> AnswerPart:
    """Return a whole chat, completions or embeddings answer for the caller.

    Undecodable bodies pass unchanged.

    `is_empty`: all texts of the embeddings request were empty. `lists_items` is False if the
    operation has no answers with vectors or results: then a list of them is none of its shapes.
    """
    try:
        return _rewritten_chat(
            body, observed, model=model, is_empty=is_empty, lists_items=lists_items
        )
    except UNREADABLE:
        rewritten = partial(  # no closure: it is made for each answer, and this is rare
            _rewritten_chat,
            observed=observed,
            model=model,
            is_empty=is_empty,
            lists_items=lists_items,
        )
        return without_halves_of_pairs(body, rewritten)


def _rewritten_chat(
    body: bytes, observed: Observed, *, model: str, is_empty: bool, lists_items: bool
) -> AnswerPart:
    """Return a decodable whole answer for the caller; record its usage and content in
    `observed`.
    """
    require_utf8(body)
    chunk = chunk_of(body)
    body = with_legal_finish(body, chunk.choices or ())
    places = places_in(body, chunk)
    _note_chunk(observed, chunk)
    has_vectors = lists_items and _holds_items(chunk)
    if has_vectors and not is_empty:
        usage = with_billed_units(usage_of_embeddings(chunk.usage), chunk.meta)
    else:
        is_first = chunk.timings is not ABSENT and _is_of_first_answer(chunk)
        usage = None if is_first else usage_of(chunk) or _usage_elsewhere(chunk)
    # Rare: the content matters only then.
    if usage is None or usage.output_tokens == 0 or observed.is_error:
        observed.has_content = observed.has_content or any(
            _has_content(choice) for choice in chunk.choices or ()
        )
    if usage is not None and not (usage.output_tokens or observed.has_content or has_vectors):
        usage = _unless_odd(usage, observed, body)
    if observed.is_error and has_vectors:
        observed.has_content = True  # embeddings beside an error
    if usage is not None:
        observed.note_final(usage)
        _note_detail(observed, chunk)
    elif not lists_items and _is_unknown(observed, chunk, body):
        note_unknown(observed, body, usage_in)
    else:
        note_least(observed, body, counted_in)
        _collect_whole(observed, chunk)
    observed.is_done = not observed.is_error
    return spliced(body, places, chunk, model=model, priced=observed.final)


def _unless_odd(usage: TokenUsage, observed: Observed, body: bytes) -> TokenUsage:
    """Return a usage without output of a whole answer without known content; marked if there may be
    content of another form beside zeros.
    """
    observed.has_odd = not observed.is_error and is_odd_chunk(body)
    if not observed.has_odd or usage.input_tokens or usage.output_tokens == 0:
        return usage
    return msgspec.structs.replace(usage, unexplained_tokens=UNREADABLE_COUNT)


def _is_unknown(observed: Observed, chunk: Chunk, body: bytes) -> bool:
    """Return True if a chat without usage and known content is none of its dialect, or may have
    content beside its known members.
    """
    if observed.is_error or observed.has_content or observed.final is not None:
        return False
    return chunk.choices is None or _holds_items(chunk) or is_odd_chunk(body)


def _begins(chunk: Chunk) -> bool:
    """Return True if a chunk has only a role: nearly every stream begins so."""
    choices = chunk.choices or ()
    return (
        len(choices) > 0
        and choices[0].finish_reason is None
        and bytes(choices[0].delta).find(b'"role"') >= 0
    )


def _usage_elsewhere(chunk: Chunk) -> TokenUsage | None:
    """Return the usage that stands in the choices of a whole answer, None if one has none, or
    beside them in Cohere's `meta`.
    """
    choices = chunk.choices or ()
    if not any(is_there(choice.usage) for choice in choices):
        return with_billed_units(None, chunk.meta)
    found = [usage_from_wire(choice.usage) for choice in choices]
    known = [usage for usage in found if usage is not None]
    whole = bool(known) and len(known) == len(found)
    return usage_of_choices(known, choices=len(known)) if whole else None


def _holds_items(chunk: Chunk) -> bool:
    """Return True if a list of an answer (vectors, results) is there and not empty."""
    if chunk.data is ABSENT and chunk.results is ABSENT:
        return False  # a chat
    return any(bytes(one) not in (b"", b"null", b"[]") for one in (chunk.data, chunk.results))


def _is_of_first_answer(chunk: Chunk) -> bool:
    """Return True if the usage of a whole answer is that of its first choice alone: llama.cpp's, if
    it has several. It adds its timings to every answer.

    Two answers of 7 tokens each had 7 in its usage, and 14 in the engine's own counter.
    """
    if not is_there(chunk.timings) or len(chunk.choices or ()) < 2:
        return False
    usage = usage_of(chunk)
    return usage is None or _is_of_one_answer(chunk, usage)


def _is_of_one_answer(chunk: Chunk, usage: TokenUsage) -> bool:
    """Return True if a usage stands beside llama.cpp's timings and counts what they do: one answer
    of several. One that counts more is that of the whole.
    """
    if chunk.timings is ABSENT:
        return False
    timed = usage_on_the_way(chunk.timings)
    return timed is None or timed.output_tokens in (None, usage.output_tokens)


def _has_content(choice: AnswerChoice) -> bool:
    """Return True if a choice of a whole answer contains more than a role."""
    return _holds_text(choice.message) or _has_token(choice)


def _collect_whole(observed: Observed, chunk: Chunk) -> None:
    """Keep the text of a plain answer without usage, so that the gateway can count it."""
    if observed.collects_text or observed.final is not None:
        return
    observed.collects_text = True
    for choice in chunk.choices or ():
        _collect(observed, choice)
    # The text of this shape is unknown, so its size is counted.
    if observed.has_content and not observed.output_bytes:
        observed.note_unread()


def note_whole_text(observed: Observed, body: bytes) -> None:
    """Record the size of the text of a plain answer, whose usage may be less than it. Media that
    some servers write into a text are none.
    """
    observed.collects_text = True
    with suppress(*UNREADABLE):
        for choice in chunk_of(_MEDIA.sub(b"", body)).choices or ():
            _collect(observed, choice, most_bytes=MAX_WHOLE_BYTES)


@dataclass(slots=True, kw_only=True)
class ChatStream:
    """A chat or completions stream for the caller.

    Feed it the received bytes; it returns the bytes to send on.
    """

    content_type: ClassVar[str] = EVENT_STREAM
    model: str
    wants_usage: bool
    wants_running_usage: bool
    asked_running_usage: bool
    cuts_timings: bool
    observed: Observed
    choices: int  # requested per prompt
    _splitter: EventSplitter
    # An event up to the end of its model name, as received and as sent on: the same for a whole
    # stream.
    _head: bytes = b""
    _new_head: bytes = b""
    _repeated: RepeatedEvent = field(default_factory=RepeatedEvent, repr=False)
    _choice: int = 0  # the choice of the repeating events
    _has_failed: bool = False  # an error was sent on, and nothing follows it
    _ended: list[TokenUsage] = field(default_factory=list, repr=False)  # of ended choices

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        """Return the complete events in the upstream's `data`, rewritten for the caller. Raises
        `EventTooLarge`.
        """
        return [self._rewritten_event(event) for event in self._splitter.feed(data)]

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """
        self._repeated.stop()
        return self._splitter.keep_large(data)

    def feed_large(self) -> Sequence[AnswerPart]:
        """Return a large event that has ended, and those behind it, rewritten for the caller."""
        return [self._rewritten_event(event) for event in self._splitter.take_large()]

    def end(self) -> Sequence[AnswerPart]:
        """Return the last event of a body that has ended, if only the event's blank line is
        missing; those of a whole answer that came in place of a stream.
        """
        rest, observed = self._splitter.end(), self.observed
        is_all = not observed.has_content and observed.upstream_id is None
        if rest and is_all and (events := events_of_answer(rest.strip())):
            return [self._rewritten_event(event) for event in events]
        event = last_event(rest, observed)
        return [self._rewritten_event(event)] if event else []

    def _rewritten_event(self, event: bytes) -> AnswerPart:
        """Return a stream event for the caller, with the caller's model name; note its usage."""
        if self._has_failed:
            return self._meter_after_error(event)
        repetition = self._repeated.match(event)
        if repetition is not None:
            return self._note_repetition(repetition)
        self._repeated.forget()
        payload = data_of(event)
        if payload is None or self.observed.is_done:
            return self._meter_after_done(payload) if self.observed.is_done else event
        if payload == DONE:
            return self._end(event)
        try:
            chunk = chunk_of(payload)
        except UNREADABLE:
            if payload.strip() == DONE:
                return self._end(DONE_EVENT)
            shown = hidden(event)
            if shown is not None:
                return changed(self._rewritten_event(shown.text), shown.restored)
            note_unread_event(self.observed, payload)
            return event
        _note_chunk(self.observed, chunk)
        if not self.observed.has_content or self.observed.has_running:
            self._note_odd(chunk, payload)
        if chunk.error is not ABSENT and is_raw_error(chunk.error):
            self._has_failed = True
            if (usage := usage_of(chunk)) is not None:
                self.observed.note_final(usage)
            else:
                self._note_without_usage(chunk)
            # The `code` of vLLM's errors is a number, which strict clients cannot read.
            return error_event("upstream_error", read_error(payload).message, is_responses=False)
        rewritten = self._spliced_chunk(event, payload, chunk)
        states_money = chunk.usage is not ABSENT or chunk.service_tier != NO_TIER
        if states_money and may_repeat(payload, *_MONEY):
            note_piece_readings(self.observed, payload, _money_in)
        if isinstance(rewritten, bytes):  # an event with the cost comes once
            self._learn(event, rewritten, chunk)
        return rewritten

    def _note_odd(self, chunk: Chunk, payload: bytes) -> None:
        """Record a chunk that may have content of an unknown form, before any known content, or
        behind the last running usage.
        """
        has_figure = self.observed.has_running and (
            is_there(chunk.usage) or is_there(chunk.timings)
        )
        if not has_figure and not _begins(chunk) and is_odd_chunk(payload):
            self.observed.note_odd()

    def _meter_after_error(self, event: bytes) -> bytes:
        """Drop an event after an error, but meter its content and its usage."""
        self._has_failed = False
        self._rewritten_event(event)
        self._has_failed = True
        return b""

    def _note_repetition(self, new: Repetition) -> bytes:
        """Record the values of an event that was rewritten by comparison, without decoding; return
        the rewritten event.
        """
        self.observed.pieces += 1
        if new.usage:
            self.observed.note_running(
                msgspec.Raw(new.usage),
                usage_on_the_way,
                choice=self._choice,
                choices_per_prompt=self.choices,
            )
        else:
            self.observed.note_uncounted(self._choice)
        if self.observed.collects_text:
            self.observed.note_text(new.text, choice=self._choice)
        return new.event

    def _learn(self, event: bytes, rewritten: bytes, chunk: Chunk) -> None:
        """Prepare to compare the next events with this one, if only its text and its running usage
        can change in them.
        """
        if not chunk.choices or len(chunk.choices) != 1 or not self.observed.has_content:
            return
        choice = chunk.choices[0]
        has_more = chunk.x_groq is not ABSENT or chunk.timings is not ABSENT
        if choice.finish_reason is not None or has_more:
            return
        has_usage = is_there(chunk.usage)
        if has_usage and self._keeps_usage(False, True):
            return
        self._choice = number_of(choice.index)
        usage = bytes(chunk.usage) if has_usage else b""
        self._repeated.learn(event, rewritten, delta=bytes(choice.delta), usage=usage)

    def _end(self, event: bytes) -> bytes:
        """Record the end of the stream at `[DONE]` and return the event; after an error drop it,
        because vLLM sends one after it died.
        """
        observed = self.observed
        observed.is_done = not observed.is_error
        is_last = not (self.asked_running_usage or observed.is_behind)
        if observed.is_done and observed.final is None and is_last:
            observed.final = observed.running  # the upstream sent it unasked, and nothing followed
        return event if observed.is_done else b""

    def _meter_after_done(self, payload: bytes | None) -> bytes:
        """Drop everything after `[DONE]`, but meter its content and its usage."""
        if payload is None or payload == DONE:
            return b""
        try:
            chunk = chunk_of(payload)
        except UNREADABLE:
            if (usage := usage_in(payload)) is not None:
                self.observed.note_final(usage)
            return b""
        with self.observed.behind_end():
            _note_chunk(self.observed, chunk)
            if not is_there(chunk.usage) or not self._note_usage(chunk):
                self._note_without_usage(chunk)
        return b""

    def _note_usage(self, chunk: Chunk) -> bool:
        """Record the chunk's usage; return True if it is the final one.

        The final usage comes in a chunk of its own or, with some providers, in the one that ends a
        choice. The usage in any other chunk is a running figure, requested or not, unless all
        choices have ended and it has no content: Azure's and LiteLLM's last one. llama.cpp's
        running figures are its timings, so its usage is final.
        """
        is_running = self.asked_running_usage and chunk.timings is ABSENT
        is_final = not chunk.choices or (
            not is_running
            and (
                any(choice.finish_reason for choice in chunk.choices)
                or self._is_behind_ends(chunk.choices)
            )
        )
        if not is_final:
            assert chunk.choices is not None
            self._note_ended(chunk)
            self._note_running(chunk.usage, chunk.choices[0])
            if names_tier(chunk.usage):
                self.observed.note_tier(stated_tier(chunk.usage))
        elif (usage := usage_of(chunk)) is not None:
            self._note_ended(chunk)
            self._note_final(usage, is_of_choice=_is_of_one_answer(chunk, usage))
            _note_detail(self.observed, chunk)
        return is_final

    def _is_behind_ends(self, choices: Sequence[AnswerChoice]) -> bool:
        """Return True if all choices have ended, and a later chunk has no content of them."""
        return len(self.observed.ended) >= self.choices and not any(
            number_of(choice.index) not in self.observed.ended or _has_token(choice)
            for choice in choices
        )

    def _note_ended(self, chunk: Chunk) -> None:
        """Record the choices that a chunk ends."""
        for choice in chunk.choices or ():
            if choice.finish_reason:
                self.observed.note_ended(number_of(choice.index))

    def _note_final(self, usage: TokenUsage, *, is_of_choice: bool) -> None:
        """Record a final usage. llama.cpp ends each choice with one of its own, and they are
        added up.
        """
        if is_of_choice and len(self._ended) < MAX_CHOICES:
            if self._ended and len(self._ended) >= len(self.observed.ended):
                self._ended[-1] = usage  # stated again: no other choice has ended
            else:
                self._ended.append(usage)
            if len(self._ended) % self.choices:
                self.observed.note_least(usage)
                return  # of some choices of a prompt: the running figures know more
            usage = usage_of_choices(self._ended, choices=self.choices)
        known = self.observed.final
        if known is not None and known.other_model_calls and not usage.other_model_calls:
            # Groq names the other models in `x_groq` alone, and may send a usage after it.
            usage = msgspec.structs.replace(usage, other_model_calls=known.other_model_calls)
        self.observed.note_final(usage)

    def _note_running(self, usage: msgspec.Raw, choice: AnswerChoice) -> None:
        """Record a running usage of one choice, undecoded."""
        self.observed.note_running(
            usage,
            usage_on_the_way,
            choice=number_of(choice.index),
            choices_per_prompt=self.choices,
        )

    def _spliced_chunk(self, event: bytes, payload: bytes, chunk: Chunk) -> AnswerPart:
        """Return a chunk with the caller's model name and a placeholder for the cost; record its
        usage, and cut one not asked for.
        """
        usage = bytes(chunk.usage)
        has_usage = is_there(chunk.usage)
        is_final = has_usage and self._note_usage(chunk)
        if not has_usage:
            self._note_without_usage(chunk)
        if has_usage and not chunk.choices and not self.wants_usage:
            return b""
        choices = chunk.choices or ()
        legal = with_legal_piece(payload, choices)
        if lacks_delta(choices):
            legal = with_object(with_deltas(legal))
        elif not choices and not has_usage:
            legal = with_object(legal)
        if legal is not payload:
            event, payload = with_data(event, legal), legal
        renames = chunk.model is not None and chunk.model != self.model
        timings = self._timings_to_cut(chunk)
        if not renames and not usage and not timings:
            return event
        keeps_usage = self._keeps_usage(is_final, has_usage)
        try:
            if is_final and keeps_usage:
                return spliced(
                    payload,
                    places_in(payload, chunk),
                    chunk,
                    model=self.model,
                    priced=self.observed.final,
                    around=lambda new: with_data(event, new),
                )
            if usage:
                change = without_foreign_cost if keeps_usage else without_usage
                payload = change(payload, usage)
            if timings:
                payload = without_timings(payload, timings)
            return with_data(event, self._renamed(payload) if renames else payload)
        except MalformedJson:
            return event

    def _note_without_usage(self, chunk: Chunk) -> None:
        """Record the running usage of a chunk without `usage`, in its choices or its timings, and
        the content that no running usage counts.
        """
        for choice in chunk.choices or ():
            if choice.finish_reason:
                self.observed.note_ended(number_of(choice.index))
                if chunk.meta is not ABSENT:
                    self._note_meta(chunk.meta)
            usage = chunk.timings if choice.usage is ABSENT else choice.usage
            if is_there(usage) and (usage is choice.usage or self.asked_running_usage):
                self._note_running(usage, choice)
            elif self.observed.has_running and _has_token(choice):
                self.observed.note_uncounted(number_of(choice.index))

    def _note_meta(self, meta: msgspec.Raw) -> None:
        """Record the counts in Cohere's `meta`, as the least of the answer."""
        if (usage := with_billed_units(None, meta)) is not None:
            self.observed.note_least(usage)

    def _timings_to_cut(self, chunk: Chunk) -> bytes:
        """Return the timings in a chunk that only the gateway asked for; empty if there are none.

        llama.cpp sends those of the last chunk to every caller.
        """
        is_last = not chunk.choices or any(choice.finish_reason for choice in chunk.choices)
        return b"" if is_last or not self.cuts_timings else bytes(chunk.timings)

    def _renamed(self, payload: bytes) -> bytes:
        """Return an event's payload with the caller's model name in place of the upstream's.

        Searching for its position would cost more than everything else done to an event.
        """
        if not self._head or not payload.startswith(self._head):
            place = locate(payload)["model"]
            head = payload[: place.end]
            new_head = payload[: place.start] + _encode(self.model)
            if place.end > MAX_HEAD_BYTES:  # the content stands before the name
                return new_head + payload[place.end :]
            self._head, self._new_head = head, new_head
        return self._new_head + payload[len(self._head) :]

    def _keeps_usage(self, is_final: bool, has_usage: bool) -> bool:
        """Return True if the caller gets the usage in an event: only the one that the caller asked
        for, not one that the gateway added.
        """
        if self.wants_running_usage:
            return True
        return self.wants_usage and (is_final or not has_usage or not self.asked_running_usage)


def chat_stream(
    *,
    model: str,
    wants_usage: bool,
    wants_running_usage: bool,
    asked_running_usage: bool,
    cuts_timings: bool = False,
    choices: int = 1,
    collects_text: bool = False,
) -> ChatStream:
    """Return a new stream that rewrites an upstream's chat or completions stream for the caller.

    `asked_running_usage`: the upstream was asked for usage on every chunk. `cuts_timings`: the
    caller did not ask for timings.
    """
    return ChatStream(
        model=model,
        wants_usage=wants_usage,
        wants_running_usage=wants_running_usage,
        asked_running_usage=asked_running_usage,
        cuts_timings=cuts_timings,
        observed=Observed(
            collects_text=collects_text,
            counts_each_piece=asked_running_usage,
            end_mark=DONE_EVENT,
        ),
        choices=choices,
        _splitter=EventSplitter(),
    )


def _note_chunk(observed: Observed, chunk: Chunk) -> None:
    """Record everything in a chunk except its usage: id, finish reason, content, text."""
    observed.upstream_id = chunk.id or observed.upstream_id
    if chunk.service_tier and chunk.service_tier != observed.service_tier:
        observed.note_tier(chunk.service_tier)
    if chunk.error is not ABSENT:
        observed.is_error = observed.is_error or is_raw_error(chunk.error)
    if (
        chunk.citations is not ABSENT
        or chunk.search_results is not ABSENT
        or chunk.web_search is not ABSENT
    ):
        note_found_pages(observed, chunk.citations, chunk.search_results, chunk.web_search)
    for choice in chunk.choices or ():
        if observed.final is not None and _has_token(choice):
            observed.note_more()  # content after it: the figure did not cover the whole answer
        reason = choice.finish_reason
        if reason is not None:
            if reason not in LEGAL:
                note_word(observed, choice)
            elif observed.finish_reason is None:
                observed.finish_reason = reason
            else:
                observed.note_finish(reason)
        observed.has_content = observed.has_content or _has_token(choice)
        held = choice.delta if choice.message is ABSENT else choice.message
        if bytes(held).rfind(b"{") > 0:  # an object in it: no plain text, or a call
            note_shown_in_message(observed, held)
        if observed.collects_text:
            _collect(observed, choice)
    # Content is not read again: that costs as much as all else.
    if chunk.choices and observed.has_content:
        observed.pieces += 1
    if chunk.metrics is not ABSENT:
        observed.engine_queue_s = engine_queue_s(chunk.metrics)
    if chunk.x_groq is not ABSENT:
        usage = usage_from_groq(chunk.x_groq, model=chunk.model)
        if usage is not None:
            observed.note_final(usage)  # sent whether or not it was asked for
            observed.note_detail(groq_detail(chunk.x_groq))  # alone with its times, if it was not


def _note_detail(observed: Observed, chunk: Chunk) -> None:
    """Record the tier, the place and the figures beside tokens in a final usage, and llama.cpp's
    times.
    """
    note_usage_detail(observed, chunk.usage)
    if chunk.timings is not ABSENT:
        observed.note_detail(timings_detail(chunk.timings))


def _money_in(payload: bytes) -> tuple[TokenUsage | None, str | None]:
    """Return the usage and the tier of one reading of a chunk."""
    try:
        chunk = chunk_of(payload)
    except UNREADABLE:
        return None, None
    return usage_of(chunk), chunk.service_tier


def _has_token(choice: AnswerChoice) -> bool:
    """Return True if a chunk's choice contains generated content: the first chunk has only the
    role.
    """
    return (is_there(choice.text) and bytes(choice.text) != b'""') or _holds_text(choice.delta)


def _holds_text(message: msgspec.Raw) -> bool:
    """Return True if a message or delta contains more than a role; True also if it cannot be
    read.
    """
    if not is_there(message):
        return False
    if not is_quick(message):
        return True  # too long to be only a role
    try:
        return any(value for name, value in decode_delta(message).items() if name != "role")
    except UNREADABLE:
        return True  # an unknown shape, but it contains something


def _collect(
    observed: Observed, choice: AnswerChoice, *, most_bytes: int = MAX_DECODED_BYTES
) -> None:
    """Keep the parts of a choice that a tokenizer would count: every text of the delta, tool calls
    included.
    """
    whole = next(
        (one for one in (choice.delta, choice.message, choice.text) if is_there(one)), None
    )
    if whole is None:
        return
    if not is_quick(whole, most_bytes=most_bytes):
        observed.note_unread()
        return
    try:
        if whole is choice.text:
            decoded: list[Any] = [msgspec.json.decode(whole)]
        else:
            members = decode_delta(whole)
            decoded = [value for name, value in members.items() if name != "role"]
            for name, value in members.items():
                if value and type(value) is not str and not is_text(name, value):
                    observed.note_other()
    except UNREADABLE:
        observed.note_unread()
        return
    for text in _texts(decoded, levels=MOST_LEVELS):
        observed.note_text(text, choice=number_of(choice.index))


def _texts(value: Any, *, levels: int) -> Iterator[str]:
    """Yield the strings in a delta's members that a model wrote: content, also in parts, reasoning,
    and the names and arguments of tool calls.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and levels:
        for one in value:
            yield from (
                _texts(one, levels=levels - 1) if not isinstance(one, dict) else _parts(one, levels)
            )
    elif isinstance(value, dict):  # a call of the first kind, or the transcript of a sound
        yield from (text for name, text in value.items() if name in OF_CALLS and is_word(text))


def _parts(part: dict[str, Any], levels: int) -> Iterator[str]:
    """Yield the strings in a part of a message or in a tool call."""
    for kind in CALLS:
        call = part.get(kind)
        if isinstance(call, dict):
            yield from (text for text in call.values() if isinstance(text, str))
    for name in OF_PARTS:
        yield from _texts(part.get(name), levels=levels - 1)
