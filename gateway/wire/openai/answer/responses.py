"""Rewrites `/v1/responses` answers for the caller, whole and streamed, and records their usage and
content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.domain.request.served_tier import agreed_tier
from gateway.wire.dialect import AnswerPart, changed
from gateway.wire.foreign_json import (
    MAX_DECODED_BYTES,
    MAX_WHOLE_BYTES,
    is_quick,
    is_raw_error,
    note_least,
    note_unknown,
    object_of,
)
from gateway.wire.members import locate, locate_one, replace, require_utf8
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.answer_splices import places_in, spliced
from gateway.wire.openai.answer.last_event import DONE, last_event
from gateway.wire.openai.answer.odd_parts import (
    TEXT_DELTAS,
    has_more_than_text,
    is_new,
    is_odd_event,
    is_odd_response,
)
from gateway.wire.openai.answer.shapes import (
    ABSENT,
    FINAL_RESPONSE_EVENTS,
    UNREADABLE,
    ResponseBody,
    ResponseEvent,
    counted_in,
    decode_event,
    is_there,
    note_unread_event,
    note_usage_detail,
    number_of,
    response_of,
    usage_in,
    usage_of,
    without_halves_of_pairs,
)
from gateway.wire.openai.answer.shown_work import note_shown_in_output
from gateway.wire.openai.error import error_event, read_error
from gateway.wire.openai.usage import (
    calls_in,
    calls_of_tool_usage,
    completed_calls_in,
    usage_from_wire,
    with_tool_calls,
)
from gateway.wire.sse import EVENT_STREAM, EventSplitter, data_of, with_data
from gateway.wire.surrogates import hidden

_RESPONSE = b'"response"'
_ITEM_DONE = "response.output_item.done"
_ITEM_ADDED = "response.output_item.added"
_NO_OUTPUT = frozenset({b"", b"null", b"[]"})
_SOUNDS = frozenset({"response.audio.delta", "response.output_audio.delta"})
_UNFINISHED = frozenset({"queued", "in_progress"})


def rewrite_response(body: bytes, observed: Observed, *, model: str) -> AnswerPart:
    """Return a whole `/v1/responses` object for the caller. Undecodable bodies pass unchanged."""
    try:
        return _rewritten_response(body, observed, model=model)
    except UNREADABLE:
        return without_halves_of_pairs(
            body, lambda text: _rewritten_response(text, observed, model=model)
        )


def _rewritten_response(body: bytes, observed: Observed, *, model: str) -> AnswerPart:
    """Return a decodable `/v1/responses` object for the caller; record its usage and content in
    `observed`.
    """
    require_utf8(body)
    response = response_of(body)
    places = locate(body) if len(body) <= MAX_DECODED_BYTES else places_in(body, response)
    observed.is_unfinished = response.status in _UNFINISHED
    _note_response(observed, response, body, is_last=not observed.is_unfinished)
    observed.is_error = is_raw_error(response.error)
    if observed.may_hide_text(len(body)):
        observed.collects_text = True
        _collect_output(observed, response.output, most_bytes=MAX_WHOLE_BYTES)
    if observed.final is None:
        observed.collects_text = True
        _collect_output(observed, response.output)
        if _is_unknown(observed, response, body):
            note_unknown(observed, body, usage_in)
        elif not observed.is_unfinished:
            note_least(observed, body, counted_in)
    observed.has_content = observed.has_content or bytes(response.output) not in _NO_OUTPUT
    # Items without any known text.
    if observed.has_content and observed.final is None and not observed.output_bytes:
        observed.note_unread()
    observed.is_done = not observed.is_error
    return spliced(body, places, response, model=model, priced=observed.final)


def _is_unknown(observed: Observed, response: ResponseBody, body: bytes) -> bool:
    """Return True if a response without usage is none, or may have content beside its members."""
    if observed.is_error or observed.is_unfinished or bytes(response.output) not in _NO_OUTPUT:
        return False
    return not is_there(response.output) or is_odd_response(body)


def _collect_output(
    observed: Observed, output: msgspec.Raw, *, most_bytes: int = MAX_DECODED_BYTES
) -> None:
    """Keep the parts of a response's items that a tokenizer would count: each text, name and
    argument.
    """
    if not is_quick(output, most_bytes=most_bytes):
        observed.note_unread()
        return
    try:
        items = msgspec.json.decode(output) if is_there(output) else []
    except UNREADABLE:
        return
    for place, item in enumerate(items if isinstance(items, list) else []):
        if not isinstance(item, dict):
            continue
        if has_more_than_text(item):
            observed.note_other()
        _note_thought(observed, item)
        parts = [
            item,
            *(part for name in ("content", "summary") for part in _objects_in(item.get(name))),
        ]
        for part in parts:
            for name in ("text", "refusal", "name", "arguments", "input"):
                if isinstance(part.get(name), str):
                    observed.note_text(part[name], choice=place)


def _note_thought(observed: Observed, item: Mapping[str, Any] | None) -> None:
    """Record an item of thinking whose own text is not shown; its end may show what its start
    did not.
    """
    if item is not None and item.get("type") == "reasoning":
        observed.has_thought = not item.get("content")


def _objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list, without other items; empty for any other value."""
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


@dataclass(slots=True, kw_only=True)
class ResponseStream:
    """A `/v1/responses` stream for the caller."""

    content_type: ClassVar[str] = EVENT_STREAM
    model: str
    observed: Observed
    _splitter: EventSplitter
    _completed: Counter[str] = field(default_factory=Counter)  # calls of the provider's own tools
    _containers: set[bytes] = field(default_factory=set)  # in which code ran

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
        """Return a stream event for the caller, with the caller's model name; note its usage."""
        payload = data_of(event)
        if payload is None or payload == DONE:
            return event
        try:
            decoded = decode_event(payload)
            if not self._note_delta(decoded):
                self._note_odd(decoded)
            is_bare = decoded.type is None and is_raw_error(decoded.error)
            self.observed.is_error = (
                self.observed.is_error or is_bare or decoded.type in ("error", "response.failed")
            )
            if is_bare:  # another dialect's: official clients reject an event without a type
                if (usage := usage_in(payload)) is not None:
                    self.observed.note_final(usage)
                return error_event("upstream_error", read_error(payload).message, is_responses=True)
            if not bytes(decoded.response):
                if decoded.item is not ABSENT and decoded.type == _ITEM_DONE:
                    self._note_item(decoded.item)
                elif decoded.item is not ABSENT and decoded.type == _ITEM_ADDED:
                    _note_thought(self.observed, object_of(decoded.item))
                states_usage = decoded.type == "error" or decoded.usage is not ABSENT
                if states_usage and (usage := usage_in(payload)) is not None:
                    self.observed.note_final(usage)
                return event
            return changed(
                self._spliced_response(payload, decoded), lambda new: with_data(event, new)
            )
        except UNREADABLE:
            shown = hidden(event)
            if shown is not None:
                return changed(self._rewritten_event(shown.text), shown.restored)
            note_unread_event(self.observed, payload)
            return event

    def _note_item(self, item: msgspec.Raw) -> None:
        """Record a finished item of the output, if it is a call of the provider's own tool, or has
        content that came in no event before.
        """
        members = object_of(item)
        _note_thought(self.observed, members)
        if members is None or has_more_than_text(members):
            self.observed.note_more()
            self.observed.note_other()
            self.observed.note_uncounted()
        listed = msgspec.Raw(b"[%b]" % bytes(item))
        note_shown_in_output(self.observed, listed)
        for name in calls_in(listed, containers=self._containers):
            self.observed.note_call(name)
        self._completed.update(completed_calls_in(listed))

    def _note_odd(self, decoded: ResponseEvent) -> None:
        """Record an event that may have content of another form than a piece of text."""
        observed = self.observed
        if is_raw_error(decoded.error):
            return
        if is_new(decoded.type):
            observed.note_odd()
        elif not observed.has_content and is_odd_event(decoded.type):
            observed.has_odd = True

    def _note_delta(self, decoded: ResponseEvent) -> bool:
        """Record an event with generated content, and its text if the gateway has to count it;
        return False for any other.
        """
        kind = decoded.type or ""
        if ".delta" not in kind:
            return False
        self.observed.note_more()  # as in a chat: content after it makes it a running figure
        self.observed.note_uncounted()
        self.observed.has_content = True
        self.observed.pieces += 1
        if kind not in TEXT_DELTAS or not bytes(decoded.delta).startswith(b'"'):
            self.observed.note_other()
            if kind in _SOUNDS:
                self.observed.note_shown(TokenKind.AUDIO_OUTPUT)
        elif self.observed.collects_text:
            self.observed.note_text(
                msgspec.json.decode(decoded.delta), choice=number_of(decoded.output_index)
            )
        return True

    def _spliced_response(self, payload: bytes, decoded: ResponseEvent) -> AnswerPart:
        """Return an event with a response object for the caller, with the caller's model name and
        a placeholder for the cost; record its usage.
        """
        body = bytes(decoded.response)
        response = response_of(body)
        is_last = decoded.type in FINAL_RESPONSE_EVENTS
        _note_response(self.observed, response, body, is_last=is_last, completed=self._completed)
        self.observed.is_done = self.observed.is_done or is_last
        place = locate_one(payload, _RESPONSE, body)
        return spliced(
            body,
            locate(body) if len(body) <= MAX_DECODED_BYTES else places_in(body, response),
            response,
            model=self.model,
            priced=self.observed.final if is_last else None,
            around=lambda new: replace(payload, [(place, _RESPONSE, new)]),
        )


def response_stream(*, model: str, collects_text: bool = False) -> ResponseStream:
    """Return a new stream that rewrites an upstream's `/v1/responses` stream for the caller."""
    return ResponseStream(
        model=model,
        observed=Observed(collects_text=collects_text),
        _splitter=EventSplitter(),
    )


def _note_response(
    observed: Observed,
    response: ResponseBody,
    body: bytes,
    *,
    is_last: bool,
    completed: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Record a response object's id, tier, status and usage; the usage is final if `is_last`.

    `completed` are the calls of the provider's own tools in earlier events whose status says so.
    """
    observed.upstream_id = response.id or observed.upstream_id
    if is_last:
        observed.note_tier(response.service_tier)
    else:
        observed.echoed_tier = agreed_tier(observed.echoed_tier, response.service_tier)
    observed.finish_reason = response.status or observed.finish_reason
    if not is_last:
        if is_there(response.usage):
            observed.note_running(response.usage, usage_from_wire)
        return
    _note_calls(observed, response, completed)
    note_shown_in_output(observed, response.output)
    if (usage := usage_of(response)) is not None:
        if usage.output_tokens == 0 and not observed.has_content:
            observed.has_odd = observed.has_odd or is_odd_response(body)
        observed.note_final(with_tool_calls(usage, response.output))
        note_usage_detail(observed, response.usage)


def _note_calls(observed: Observed, response: ResponseBody, completed: Mapping[str, int]) -> None:
    """Record the calls of the provider's own tools in a response's output, or in earlier events.

    A figure of the usage is compared with the calls alone whose status is `completed`: xAI's output
    lists failed ones, which are not billed.
    """
    listed = calls_in(response.output)
    if is_there(response.tool_usage):
        for name, n in calls_of_tool_usage(response.tool_usage).items():
            listed[name] = max(listed.get(name, 0), n)
    if not listed and not observed.calls:
        return  # nearly every response
    stated = usage_of(response) or TokenUsage()
    sure = completed_calls_in(response.output)
    for name in {*listed, *observed.calls}:
        if getattr(stated, name) is not None:
            calls = max(sure.get(name, 0), completed.get(name, 0))
        else:
            calls = max(listed.get(name, 0), observed.calls.get(name, 0))
        observed.note_call(name, calls - observed.calls.get(name, 0))
