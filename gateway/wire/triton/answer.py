"""Reads the answers of Triton's generate extension into neutral answer events.

A stream is server-sent events, each with a piece of text and, if the model declares these outputs,
its counts: the prompt's in each, the answer's of this piece. Its end is the end of the body.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gateway.domain.pricing.tokens import UNREADABLE, TokenUsage
from gateway.wire.dialect import NO_ANSWER, UnreadableAnswer
from gateway.wire.foreign_json import (
    MAX_WHOLE_BYTES,
    count_in,
    has_others,
    is_error,
    note_first_reading,
    note_unknown,
    object_in,
    object_of,
    short_text_in,
    text_in,
)
from gateway.wire.observed import Observed
from gateway.wire.sse import EventSplitter, data_of
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    Ended,
    Failed,
    Finish,
    Finished,
    Started,
    TextPiece,
    Used,
)

INPUT, OUTPUT = "num_input_tokens", "num_output_tokens"
# The members of a piece without generated content, or whose content is read.
_PIECE = frozenset({"id", "model_name", "model_version", "text_output", "finish_reason", "error"})
_SHAPE = frozenset({"text_output", INPUT, OUTPUT})  # one of them stands in every answer
MAX_MESSAGE_CHARS, MAX_WORD_CHARS = 1000, 64
_encode = msgspec.json.Encoder().encode


class TritonReader:
    """Reads one streamed answer. `most_tokens` is the maximum that was sent, and `answer_id` the
    answer's id if the model gives none.
    """

    def __init__(
        self,
        answer_id: str,
        *,
        most_tokens: int | None = None,
        observed: Observed | None = None,
    ) -> None:
        """Start before the first event. The text is kept: many models report no counts."""
        self.observed = Observed(collects_text=True) if observed is None else observed
        self._answer_id, self._most_tokens = answer_id, most_tokens
        self._splitter = EventSplitter()
        self._input: int | None = None
        self._output: int | None = None
        self._word = ""
        self._has_begun = self._is_uncounted = self._has_unread = False

    def feed(self, data: bytes) -> Sequence[AnswerEvent]:
        """Return the events that the upstream's `data` completes. Raises `EventTooLarge`."""
        return [one for event in self._splitter.feed(data) for one in self._event(event)]

    def end(self) -> Sequence[AnswerEvent]:
        """Return the last events, when the upstream's body has ended."""
        rest = self._splitter.end()
        if rest and data_of(rest) is None and not self._has_begun:
            return self._without_framing(rest)
        return [*self._event(rest), *self._end()]

    def whole(self, members: dict[str, Any]) -> Sequence[AnswerEvent]:
        """Return the events of a whole answer."""
        return [*self._read(members), *self._end()]

    def _event(self, event: bytes) -> Iterator[AnswerEvent]:
        """Yield the neutral events of one server-sent event."""
        payload = data_of(event) if event else None
        if payload is None:
            return
        members = object_of(payload)
        if members is None:
            self.observed.note_unread()
        else:
            yield from self._read(members)

    def _without_framing(self, body: bytes) -> Sequence[AnswerEvent]:
        """Return the events of a body that is no event stream: an error, or an unreadable
        answer.
        """
        members = object_of(body)
        if members is not None and is_error(members.get("error")):
            return list(self._read(members))
        self.observed.note_unread()
        self.observed.is_whole = True
        return []

    def _read(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the events of one piece of the answer. An error is the last one, but content and
        counts beside it and after it are metered.
        """
        observed, error = self.observed, members.get("error")
        has_failed = observed.is_error
        if not has_failed and not is_error(error):
            yield from self._piece(members)
            return
        observed.is_error = True
        deque(self._piece(members), maxlen=0)
        if not has_failed:
            message = text_in(members, "error") or text_in(error, "message")
            message = message[:MAX_MESSAGE_CHARS] or "The upstream failed."
            yield Failed(code="upstream_error", message=message)

    def _piece(self, members: dict[str, Any]) -> Iterator[AnswerEvent]:
        """Yield the events of the content and the counts in one piece of the answer."""
        observed = self.observed
        if not self._has_begun:
            self._has_begun = True
            observed.upstream_id = short_text_in(members, "id") or None
            yield Started(answer_id=observed.upstream_id or self._answer_id)
        self._word = text_in(members, "finish_reason")[:MAX_WORD_CHARS] or self._word
        text = text_in(members, "text_output")
        self._note_counts(members, has_text=bool(text))
        if not text and not observed.has_content and has_others(members, _PIECE):
            observed.has_odd = True
        if text:
            observed.has_content = True
            observed.pieces += 1
            observed.note_text(text)
            yield TextPiece(text=text)

    def _note_counts(self, members: dict[str, Any], *, has_text: bool) -> None:
        """Add the counts of one piece, if the model reports them. A piece without a count makes the
        sum of the others no count of the answer.
        """
        read, written = _counts(members)
        self._has_unread = self._has_unread or _has_unread(members)
        self._is_uncounted = self._is_uncounted or (has_text and written is None)
        if read is None and written is None:
            if not self.observed.is_error or has_text:  # an error alone adds nothing to the answer
                self.observed.note_uncounted()
            return
        if read is not None:
            if read < (self._input or 0):  # of two figures for one prompt the dearer counts
                self.observed.note_least(TokenUsage(input_tokens=self._input))
            self._input = read
        if written is not None:
            so_far = self._output or 0
            # A negative count is no truth, and must not hide in a sum.
            self._output = min(so_far, written) if min(so_far, written) < 0 else so_far + written
        counts = {INPUT: self._input, OUTPUT: self._output}
        self.observed.note_running(msgspec.Raw(_encode(counts)), usage_in)
        if self._is_uncounted:
            self.observed.note_uncounted()

    def _end(self) -> Iterator[AnswerEvent]:
        """Yield the end of an answer that began and had no error."""
        observed = self.observed
        # The relay asks for the end again until nothing comes.
        if observed.is_done or observed.is_error or not self._has_begun:
            return
        observed.is_done = True
        is_full = self._output is not None and self._output == self._most_tokens
        native = self._word or ("length" if is_full else "stop")
        observed.finish_reason = self._word or None
        yield Finished(finish=Finish.LENGTH if native == "length" else Finish.STOP, native=native)
        has_counts = not self._is_uncounted and (self._input, self._output) != (None, None)
        if has_counts or self._has_unread:
            usage = TokenUsage(
                input_tokens=self._input,
                output_tokens=self._output,
                unexplained_tokens=UNREADABLE if self._has_unread else None,
            )
            observed.note_final(usage)
            yield Used(usage=usage)
        yield Ended()


def generate_events(
    body: bytes, observed: Observed, *, answer_id: str, most_tokens: int | None
) -> Sequence[AnswerEvent]:
    """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""
    members = object_of(body, most_bytes=MAX_WHOLE_BYTES)
    if members is None:
        observed.note_unread()
        raise UnreadableAnswer("no JSON object, or too large a one")
    observed.collects_text = True
    if not (members.keys() & _SHAPE) and not is_error(members.get("error")):
        note_unknown(observed, body, usage_in)
        raise UnreadableAnswer(NO_ANSWER)
    events = TritonReader(answer_id, most_tokens=most_tokens, observed=observed).whole(members)
    if any(body.count(b'"%b"' % name.encode()) > 1 for name in (INPUT, OUTPUT)):
        note_first_reading(observed, body, usage_in)
    return events


def usage_in(body: msgspec.Raw | bytes) -> TokenUsage | None:
    """Return the counts that an answer reports, None if it reports none."""
    members = object_of(bytes(body)) or {}
    read, written = _counts(members)
    unexplained = UNREADABLE if _has_unread(members) else None
    if (read, written, unexplained) == (None, None, None):
        return None
    return TokenUsage(input_tokens=read, output_tokens=written, unexplained_tokens=unexplained)


def _counts(members: dict[str, Any]) -> tuple[int | None, int | None]:
    """Return the counts of the prompt and the answer in a piece, or in an error in it."""
    holder = _holder(members)
    return count_in(holder, INPUT), count_in(holder, OUTPUT)


def _has_unread(members: dict[str, Any]) -> bool:
    """Return True if a count is there and is no number."""
    holder = _holder(members)
    return any(
        holder.get(name) is not None and count_in(holder, name) is None for name in (INPUT, OUTPUT)
    )


def _holder(members: dict[str, Any]) -> dict[str, Any]:
    """Return the object that has the counts: the piece, or an error in it."""
    error = object_in(members, "error")
    return error if INPUT in error or OUTPUT in error else members
