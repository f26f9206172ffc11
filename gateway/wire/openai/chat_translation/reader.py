"""Reads an upstream's chat answer, streamed or whole, into neutral answer events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from gateway.domain.pricing.tokens import TokenUsage
from gateway.wire.dialect import NO_ANSWER, AnswerPart, UnreadableAnswer, written
from gateway.wire.foreign_json import MAX_SHORT_CHARS, is_raw_error
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import ChatStream
from gateway.wire.openai.answer.last_event import DONE
from gateway.wire.openai.answer.shapes import ABSENT, UNREADABLE, is_there, number_of
from gateway.wire.openai.bounds import decode_few
from gateway.wire.openai.chat_translation.choice_reader import ChoiceReader, RawChoice, text_of
from gateway.wire.openai.error import read_error
from gateway.wire.sse import data_of
from gateway.wire.surrogates import with_stand_ins, without_halves
from gateway.wire.translation.answer_events import AnswerEvent, Ended, Failed, Started, used
from gateway.wire.translation.split_pairs import SplitPairs

_UNREADABLE = "The upstream's answer could not be read."
_ERROR = "upstream_error"
_MOST_DIGITS = 12  # of a time of day in seconds


class _Answer(Struct):
    """The members of a chunk, or of a whole answer, that are translated."""

    id: msgspec.Raw = ABSENT
    created: msgspec.Raw = ABSENT
    choices: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT


_decode_answer = msgspec.json.Decoder(_Answer).decode


class ChatReader(Struct):
    """Reads a chat's stream by way of `ChatStream`, which records usage, end and text."""

    stream: ChatStream
    _choices: dict[int, ChoiceReader] = {}
    _pairs: SplitPairs = msgspec.field(default_factory=SplitPairs)
    _has_started: bool = False
    _has_ended: bool = False

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""
        return self.stream.observed

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        return self._events(self.stream.feed(data))

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`.
        """
        return self.stream.keep_large(data)

    def feed_large(self) -> Sequence[AnswerEvent]:
        """Return a large event that has ended, and those behind it."""
        return self._events(self.stream.feed_large())

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        return self._events(self.stream.end())

    def _events(self, parts: Sequence[AnswerPart]) -> list[AnswerEvent]:
        """Return the neutral events of the stream's own ones."""
        found: list[AnswerEvent] = []
        for part in parts:
            payload = data_of(written(part, lambda _: None))
            if self._has_ended or not payload:
                continue
            if payload == DONE:
                found += self._last(Ended())
                continue
            try:
                found += self._chunk_events(payload)
            except UNREADABLE:
                self.observed.is_error = True  # a part of the answer is missing
                found += self._last(Failed(code=_ERROR, message=_UNREADABLE))
        return found

    def _chunk_events(self, payload: bytes) -> Sequence[AnswerEvent]:
        """Return the events of one chunk. Raises an error of `UNREADABLE`."""
        text, stand_ins = with_stand_ins(payload)
        answer = _decode_answer(text)
        if is_raw_error(answer.error):
            return self._last(Failed(code=_ERROR, message=read_error(payload).message))
        found: list[AnswerEvent] = []
        if not self._has_started:
            self._has_started = True
            found.append(_started(answer, self.observed.usage))
        for choice in decode_few(answer.choices, RawChoice) if is_there(answer.choices) else ():
            reader = _reader_in(self._choices, choice)
            found += reader.events(choice, native=self.observed.finish_reason)
        return self._pairs.joined(found, stand_ins)

    def _last(self, event: Ended | Failed) -> Sequence[AnswerEvent]:
        """Return the last events of the answer, with its usage."""
        self._has_ended = True
        final: list[AnswerEvent] = []
        if isinstance(event, Ended):
            for choice in self._choices.values():
                final += choice.close()
            final += used(self.observed)
        return self._pairs.joined([*final, event], None)


def chat_events(answer: AnswerPart, observed: Observed) -> Sequence[AnswerEvent]:
    """Return the events of a whole chat answer, which `observed` has metered.

    Raises `UnreadableAnswer` for one without choices, or a choice without a message.
    """
    body = written(answer, lambda _: None)
    if observed.is_error:
        return (Failed(code=_ERROR, message=read_error(body).message),)
    try:
        read = _decode_answer(without_halves(body))
        choices = decode_few(read.choices, RawChoice)
        found: list[AnswerEvent] = [_started(read)]
        if not (choices and all(is_there(choice.message) for choice in choices)):
            raise UnreadableAnswer(NO_ANSWER)
        for choice in choices:
            reader = ChoiceReader(number=number_of(choice.index))
            found += reader.events(choice, native=observed.finish_reason)
            found += reader.close()
    except UNREADABLE:
        raise UnreadableAnswer(NO_ANSWER) from None
    return (*found, *used(observed), Ended())


def _reader_in(readers: dict[int, ChoiceReader], choice: RawChoice) -> ChoiceReader:
    """Return the reader of a choice, a new one for its first piece."""
    number = number_of(choice.index)
    return readers.setdefault(number, ChoiceReader(number=number))


def _started(answer: _Answer, usage: TokenUsage | None = None) -> Started:
    """Return the start of an answer, with its id, its time and the first usage."""
    digits = bytes(answer.created)
    is_time = digits.isdigit() and len(digits) <= _MOST_DIGITS
    answer_id = text_of(answer.id)
    if len(answer_id) > MAX_SHORT_CHARS:
        answer_id = ""  # each piece of the answer repeats it
    return Started(answer_id=answer_id, usage=usage, created_s=int(digits) if is_time else 0)
