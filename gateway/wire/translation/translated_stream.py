"""Joins the reader of an upstream's dialect with the writer of a caller's into one stream."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.wire.dialect import AnswerPart, EventTooLarge, UnreadableAnswer
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    AnswerReader,
    AnswerWriter,
    Failed,
    LargeEventReader,
)


class TranslatedStream(Struct):
    """An upstream's stream in one dialect, written for the caller in another."""

    reader: AnswerReader
    writer: AnswerWriter
    _has_failed: bool = False

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
        for event in () if self._has_failed else events:
            try:
                parts += self.writer.write((event,))
            except (EventTooLarge, UnreadableAnswer) as problem:
                self._has_failed = self.observed.is_error = True
                message = f"The upstream's answer could not be translated: {problem}."
                parts += self.writer.write((Failed(code="upstream_error", message=message),))
                break
        return parts
