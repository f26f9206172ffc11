"""Joins the reader of an upstream's dialect with the writer of a caller's into one stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.wire.dialect import AnswerPart, EventTooLarge, UnreadableAnswer
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    AnswerReader,
    AnswerWriter,
    CallStarted,
    Ended,
    Failed,
    Finish,
    Finished,
    LargeEventReader,
    Used,
)

# The ends of one choice that its upstream states more than once: the last of these counts.
_RANKS = (Finish.STOP, Finish.TOOL_CALLS, Finish.LENGTH, Finish.CONTENT_FILTER)


class LateEnds(Struct):
    """Holds the ends of choices back until the stream ends: content may follow an end, and another
    end, and a writer completes its items at the first one.
    """

    _held: dict[int, Finished] = {}
    _callers: set[int] = set()  # the choices with a tool call

    def events(self, events: Iterable[AnswerEvent]) -> Iterator[AnswerEvent]:
        """Yield the events, one end of each choice behind all its content."""
        for event in events:
            if isinstance(event, Finished):
                known = self._held.get(event.choice)
                if known is None or _rank(event) >= _rank(known):
                    self._held[event.choice] = event
                continue
            if isinstance(event, CallStarted):
                self._callers.add(event.choice)
            elif isinstance(event, Used | Ended | Failed):
                yield from self._ends()
            yield event

    def _ends(self) -> Iterator[AnswerEvent]:
        """Yield the held ends. A plain stop beside a tool call ends with the call."""
        for choice, end in self._held.items():
            is_call = end.finish is Finish.STOP and choice in self._callers
            yield replace(end, finish=Finish.TOOL_CALLS) if is_call else end
        self._held.clear()


def _rank(end: Finished) -> int:
    """Return the weight of an end against others of its choice."""
    return _RANKS.index(end.finish)


class TranslatedStream(Struct):
    """An upstream's stream in one dialect, written for the caller in another."""

    reader: AnswerReader
    writer: AnswerWriter
    _has_failed: bool = False
    _ends: LateEnds = field(default_factory=LateEnds)

    @property
    def content_type(self) -> str:
        """The media type of the caller's stream."""
        return self.writer.content_type

    @property
    def observed(self) -> Observed:
        """The usage, end and text that were read from the stream so far."""
        return self.reader.observed

    def feed(self, data: bytes) -> Sequence[AnswerPart]:
        """Return the parts of the caller's answer that the upstream's `data` completes. Raises
        `EventTooLarge`.
        """
        try:
            events = self.reader.feed(data)
        except EventTooLarge as problem:
            problem.before = self._written(problem.before)
            raise
        return self._written(events)

    def keep_large(self, data: bytes) -> bool:
        """Keep more of an event that was too large for `feed`; return True if `data` ends it.
        Raises `EventTooLarge`, always if the dialect's reader takes no large events.
        """
        if isinstance(self.reader, LargeEventReader):
            return self.reader.keep_large(data)
        raise EventTooLarge("an event that is too large to be translated")

    def feed_large(self) -> Sequence[AnswerPart]:
        """Return the parts of the caller's answer in a large event that has ended."""
        assert isinstance(self.reader, LargeEventReader), "it has kept the event"
        return self._written(self.reader.feed_large())

    def end(self) -> Sequence[AnswerPart]:
        """Return the last parts of the caller's answer, when the upstream's body has ended."""
        return self._written(self.reader.end())

    def _written(self, events: Sequence[AnswerEvent]) -> Sequence[AnswerPart]:
        """Return the parts of the caller's answer for these events.

        An answer that the caller's dialect cannot carry ends with an error. The reader goes on: the
        usage follows.
        """
        parts: list[AnswerPart] = []
        for event in () if self._has_failed else self._ends.events(events):
            try:
                parts += self.writer.write((event,))
            except (EventTooLarge, UnreadableAnswer) as problem:
                self._has_failed = self.observed.is_error = True
                message = f"The upstream's answer could not be translated: {problem}."
                parts += self.writer.write((Failed(code="upstream_error", message=message),))
                break
        return parts
