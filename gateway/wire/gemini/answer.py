"""Reads Gemini's answers, streamed or whole, into neutral answer events, and meters them.

A stream is server-sent events, each a piece of the answer with the usage so far; its end is the end
of the body after a finish reason. Calls come whole, and so do pictures. Other content is metered
and named (docs/lab/providers.tsv).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

import msgspec

from gateway.domain.pricing.settlement import UNPRICED_TOOL
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.wire.dialect import NO_ANSWER, UnreadableAnswer
from gateway.wire.foreign_json import (
    MAX_SHORT_CHARS,
    MAX_WHOLE_BYTES,
    arguments_in,
    count_in,
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
    time_in,
)
from gateway.wire.gemini.contents import MADE_ID
from gateway.wire.gemini.error import read_error
from gateway.wire.gemini.logprobs import logprobs_of
from gateway.wire.gemini.usage import (
    detail_of,
    has_counts,
    tier_of,
    usage_from_gemini,
    usage_object,
    usage_of,
)
from gateway.wire.observed import Observed
from gateway.wire.sse import EventSplitter, data_of
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
    Used,
    media_of,
)
from gateway.wire.translation.conversation import NO_JSON
from gateway.wire.translation.split_pairs import SplitPairs

MAX_CHOICES = 128
_NO_USAGE = TokenUsage()
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
# The members of a piece and of a candidate without generated content, or whose content is read.
_ANSWER = names_in(
    "candidates usageMetadata modelVersion responseId createTime promptFeedback modelStatus error"
)
_CANDIDATE = names_in(
    "index content finishReason finishMessage safetyRatings citationMetadata tokenCount "
    "groundingMetadata groundingAttributions avgLogprobs logprobsResult urlContextMetadata "
    "urlRetrievalMetadata"
)
_FINISHES = {
    "MAX_TOKENS": Finish.LENGTH,
    "SAFETY": Finish.CONTENT_FILTER,
    "PROHIBITED_CONTENT": Finish.CONTENT_FILTER,
}
# Members of a part that are read, or that say more of it.
_PART = names_in(
    "text functionCall inlineData thought thoughtSignature partMetadata videoMetadata "
    "mediaResolution mediaProcessing speechMetadata documentMetadata spreadsheetMetadata "
    "audioMetadata"
)
# Where the text of a candidate came from.
_SOURCES = ("groundingMetadata", "citationMetadata", "urlContextMetadata")
_KINDS = {"image": TokenKind.IMAGE_OUTPUT, "audio": TokenKind.AUDIO_OUTPUT}
_MONEY = (b'"usageMetadata"', b'"serviceTier"', b'"trafficType"', b'"webSearchQueries"')
_encode = msgspec.json.Encoder().encode


class _UsageAlone(msgspec.Struct):
    """The usage of an answer whose other members are not read."""

    usageMetadata: msgspec.Raw = NO_JSON  # noqa: N815 - Google's name
    error: msgspec.Raw = NO_JSON


_decode_usage_alone = msgspec.json.Decoder(_UsageAlone).decode


class GeminiReader:
    """Reads one streamed answer."""

    def __init__(self) -> None:
        """Start before the first event. The text is kept: Vertex reports usage only at the end."""
        self.observed = Observed(collects_text=True)
        self._splitter = EventSplitter()
        self._answer = _Answer(self.observed)
        self._pairs = SplitPairs()
        self._last = b""  # the data of the last event

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        return [one for event in self._splitter.feed(data) for one in self._events(event)]

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """
        return self._splitter.keep_large(data)

    def feed_large(self) -> Sequence[AnswerEvent]:
        """Return a large event that has ended, and those behind it."""
        return [one for event in self._splitter.take_large() for one in self._events(event)]

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        rest = self._splitter.end()
        if rest and data_of(rest) is None and not self._answer.has_begun:
            return self._without_framing(rest)
        events = [*self._events(rest), *self._pairs.joined([*self._answer.end()], None)]
        _note_twice(self.observed, self._last)
        return events

    def _events(self, event: bytes) -> Iterator[AnswerEvent]:
        """Yield the neutral events of one server-sent event."""
        payload = data_of(event) if event else None
        if payload is None:
            return
        self._last = payload
        if may_repeat(payload, *_MONEY):
            note_piece_readings(self.observed, payload, _money_in)
        text, stand_ins = with_stand_ins(payload)
        members = object_of(text, most_bytes=MAX_WHOLE_BYTES)  # above 1 MiB in a thread
        if members is None:
            note_unread(self.observed, payload)
        else:
            yield from self._pairs.joined([*self._answer.read(members)], stand_ins)

    def _without_framing(self, body: bytes) -> Sequence[AnswerEvent]:
        """Return the events of a body that is no event stream: an error, or an unreadable
        answer.
        """
        listed = _objects(body)
        if listed and is_error(listed[0].get("error")):
            return [event for members in listed for event in self._answer.read(members)]
        note_unread(self.observed, body)
        self.observed.is_whole = True
        return []


def gemini_events(body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer, and meter it.

    Raises `UnreadableAnswer` if it has no known shape, or is too large to be read.
    """
    members = object_of(body, most_bytes=MAX_WHOLE_BYTES)
    if members is None:
        note_unread(observed, body)
        raise UnreadableAnswer("no JSON object, or too large a one")
    answer = _Answer(observed)
    observed.collects_text = True
    if usage_in(body) is None:
        note_least(observed, body, usage_in)
    events = list(answer.read(members))
    # Proto3 leaves out an empty list, so an answer without candidates may have a usage alone.
    listed = members.get("candidates", [] if usage_object(members) else None)
    if not (isinstance(listed, list) or object_in(members, "promptFeedback") or observed.is_error):
        note_unknown(observed, body, usage_in)
        raise UnreadableAnswer(NO_ANSWER)
    events += answer.end(is_whole=True)
    _note_twice(observed, body)
    if may_repeat(body, *_MONEY):
        note_readings(observed, body, gemini_events)
    return events


def usage_in(body: bytes) -> TokenUsage | None:
    """Return the usage that a whole answer or an error reports, None if it reports none."""
    try:
        found = _decode_usage_alone(body)
        raw = found.usageMetadata
        if raw is NO_JSON and bytes(found.error).startswith(b"{"):
            raw = _decode_usage_alone(found.error).usageMetadata
    except _UNREADABLE:
        return None
    return None if raw is NO_JSON else usage_from_gemini(raw)


def _money_in(payload: bytes) -> tuple[TokenUsage | None, str | None]:
    """Return the usage and the tier in one reading of a piece."""
    usage = usage_object(object_of(payload, most_bytes=MAX_WHOLE_BYTES) or {})
    return usage_of(usage), tier_of(usage)


def _note_twice(observed: Observed, body: bytes) -> None:
    """Record the other reading of a final usage that has a name twice."""
    if observed.final is not None:
        with suppress(*_UNREADABLE):
            note_first_reading(observed, _decode_usage_alone(body).usageMetadata, usage_from_gemini)


def note_unread(observed: Observed, payload: bytes) -> None:
    """Record a piece that cannot be read, and its usage if that can."""
    observed.note_unread()
    if (usage := usage_in(payload)) is not None:
        observed.note_final(usage)


class _Choice:
    """The part of one candidate that was read so far."""

    __slots__ = ("calls", "is_finished")

    def __init__(self) -> None:
        """Start without content."""
        self.calls, self.is_finished = 0, False


class _Answer:
    """The answer that was read so far, in pieces of the same shape whether streamed or whole."""

    def __init__(self, observed: Observed) -> None:
        """Start before the first piece."""
        self.observed = observed
        self.has_begun = self._is_complete = False
        self._choices: dict[int, _Choice] = {}
        self._usage: dict[str, Any] = {}
        self._most = (0, 0)  # of the running usage: prompt and answer
        self._has_content = False  # the piece that is read has some, in any form
        self._searches: dict[int, int] = {}

    def read(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the events of one piece of the answer. An error is the last one, but content and
        usage beside it and after it are metered.
        """
        observed = self.observed
        if observed.is_done:
            return
        has_failed, fails = observed.is_error, is_error(members.get("error"))
        if not has_failed and not fails:
            yield from self._piece(members)
            return
        observed.is_error = True
        deque(self._piece(members), maxlen=0)
        if not has_failed:
            yield Failed(code="upstream_error", message=read_error(_encode(members)).message)

    def _piece(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the events of the content and the usage in one piece of the answer."""
        observed = self.observed
        observed.upstream_id = short_text_in(members, "responseId") or observed.upstream_id
        has_usage = self._note_usage(members)
        if not self.has_begun:
            self.has_begun = True
            created_s = time_in(members, "createTime")
            answer_id = observed.upstream_id or ""
            yield Started(answer_id=answer_id, usage=observed.usage, created_s=created_s)
        had_content = observed.has_content
        if not (had_content and has_usage) and _is_odd(members):
            observed.has_odd = self._has_content = True
        pieces = 0
        for place, candidate in enumerate(objects_in(members, "candidates")):
            for event in self._candidate(candidate, place):
                pieces += not isinstance(event, Finished | Omitted)
                yield event
        if (pieces or self._has_content) and not has_usage and self._usage:
            # It does not count this piece, and is no last word; its prompt stays true.
            self._usage = {}
            observed.note_uncounted()
        self._has_content = False
        observed.pieces += bool(pieces) or (observed.has_content and not had_content)
        blocked = text_in(object_in(members, "promptFeedback"), "blockReason")[:MAX_SHORT_CHARS]
        if blocked and not self._choices:
            observed.finish_reason, self._is_complete = blocked, True
            yield Finished(finish=Finish.CONTENT_FILTER, native=blocked)

    def end(self, *, is_whole: bool = False) -> Iterator[AnswerEvent]:
        """Yield the end of the answer, if it was not cut: a whole one needs no finish reason."""
        observed = self.observed
        choices = self._choices.values()
        is_finished = bool(choices) and all(one.is_finished for one in choices)
        # The relay asks for the end again until nothing comes.
        if observed.is_done or not (is_finished or self._is_complete or is_whole):
            return
        observed.is_done = not observed.is_error
        usage = usage_of(self._usage)
        if usage is not None:
            if self._searches:
                searches = sum(self._searches.values())
                usage = msgspec.structs.replace(usage, web_search_calls=searches)
            observed.note_final(usage)
        if observed.is_error:
            return
        if usage is not None:
            yield Used(usage=usage, service_tier=observed.service_tier)
        yield Ended()

    def _note_usage(self, members: dict[str, Any]) -> bool:
        """Record the usage so far, and return True if there is one. One without counts does not
        replace one with them.

        One below an earlier one may be the last word, and does not replace that as the running one:
        then the settlement sees both.
        """
        usage = usage_object(members) or usage_object(object_in(members, "error"))
        if not usage:
            return False
        self.observed.note_tier(tier_of(usage))
        self.observed.note_detail(detail_of(usage))
        encoded = _encode(usage)
        if not has_counts(encoded):
            return False
        self._usage, counts = usage, usage_of(usage) or _NO_USAGE
        figures = (counts.input_tokens or 0, counts.output_tokens or 0)
        if all(now >= most for now, most in zip(figures, self._most, strict=True)):
            self._most = figures
            self.observed.note_running(msgspec.Raw(encoded), usage_from_gemini)
        else:
            self.observed.note_least(counts)
        return True

    def _candidate(self, candidate: dict[str, Any], place: int) -> Iterator[AnswerEvent]:
        """Yield the events of one candidate's piece."""
        index = count_in(candidate, "index")
        number = place if index is None else index
        if not 0 <= number < MAX_CHOICES:
            return
        choice = self._choices.setdefault(number, _Choice())
        logprobs = logprobs_of(object_in(candidate, "logprobsResult"))
        for part in objects_in(object_in(candidate, "content"), "parts"):
            for event in self._part(part, choice, number):
                if isinstance(event, TextPiece) and logprobs is not NO_JSON:
                    event = msgspec.structs.replace(event, logprobs=logprobs)
                    logprobs = NO_JSON  # they are those of the whole piece
                yield event
        grounding = object_in(candidate, "groundingMetadata")
        queries = grounding.get("webSearchQueries")
        if isinstance(queries, list) and queries:
            self._searches[number] = max(self._searches.get(number, 0), len(queries))
            self.observed.calls["web_search_calls"] = sum(self._searches.values())
        elif objects_in(grounding, "groundingChunks"):
            self.observed.note_shown(UNPRICED_TOOL)  # found without a search of the web: maps
        word = text_in(candidate, "finishReason")[:MAX_SHORT_CHARS]
        for name in _SOURCES:
            if object_in(candidate, name):
                yield Omitted(name=name, choice=number)
        if word:
            choice.is_finished = True
            self.observed.note_finish(word)
            yield Finished(finish=_finish(word, choice), native=word, choice=number)

    def _part(self, part: dict[str, Any], choice: _Choice, number: int) -> Iterator[AnswerEvent]:
        """Yield the events of one part of a candidate."""
        call = object_in(part, "functionCall")
        if text_in(part, "thoughtSignature"):  # a thought that is not shown, or hardly
            self._note_other()
        if call:
            yield from self._call(call, text_in(part, "thoughtSignature"), choice, number)
            return
        text = text_in(part, "text")
        if text:
            self._note_text(text, number)
            is_thought = part.get("thought") is True
            yield (ThoughtPiece if is_thought else TextPiece)(text=text, choice=number)
        elif data := object_in(part, "inlineData"):
            self._note_other()
            media_type = text_in(data, "mimeType")
            if kind := _KINDS.get(media_type.partition("/")[0].lower()):
                self.observed.note_shown(kind)
            found = media_of(media_type, text_in(data, "data"), choice=number)
            is_shown = part.get("thought") is not True  # a sketch is none of the answer's
            yield found if is_shown else Omitted(name=media_type, choice=number)
        elif has_others(part, frozenset({"thoughtSignature"})):
            self.observed.has_odd = self._has_content = True
        for name in part:
            if part[name] and name not in _PART:
                yield Omitted(name=name, choice=number)

    def _note_other(self) -> None:
        """Record content that is no text."""
        self._has_content = True
        self.observed.note_other()

    def _call(
        self, call: dict[str, Any], signature: str, choice: _Choice, number: int
    ) -> Iterator[AnswerEvent]:
        """Yield the events of one call, which comes whole."""
        arguments = arguments_in(call, "args")
        name = text_in(call, "name")
        self._note_text(name + arguments, number)
        given = text_in(call, "id")
        call_id = given or self._made_id(f"{number}.{choice.calls}.{name}.{arguments}")
        place, choice.calls = choice.calls, choice.calls + 1
        yield CallStarted(
            call=place, call_id=call_id, name=name, signature=signature, choice=number
        )
        yield CallArguments(call=place, text=arguments, choice=number)

    def _made_id(self, of: str) -> str:
        """Return an id for a call without one, the same whenever the answer is read again."""
        seed = f"{self.observed.upstream_id or ''}.{of}"
        return MADE_ID + sha256(seed.encode()).hexdigest()[:24]

    def _note_text(self, text: str, number: int) -> None:
        """Record that content came, and keep its text."""
        self.observed.has_content = True
        self.observed.note_text(text, choice=number)


def _is_odd(members: dict[str, Any]) -> bool:
    """Return True if a piece may have content beside its known members."""
    candidates = objects_in(members, "candidates")
    return has_others(members, _ANSWER) or any(has_others(one, _CANDIDATE) for one in candidates)


def _finish(word: str, choice: _Choice) -> Finish:
    """Return the end of a choice for a word of Gemini's. It says STOP for a tool call too."""
    otherwise = Finish.TOOL_CALLS if choice.calls else Finish.STOP
    return _FINISHES.get(word, otherwise)


def _objects(body: bytes) -> list[dict[str, Any]]:
    """Return a body's object, or those of its list, as Google writes a stream's error."""
    members = object_of(body)
    if members is not None:
        return [members]
    held = object_of(b'{"list":' + body.strip() + b"}") or {}
    return objects_in(held, "list")
