"""Joins the reader of an upstream's dialect with the writer of a caller's into one stream."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gateway.wire.dialect import AnswerPart
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerReader, AnswerWriter


class TranslatedStream(Struct, frozen=True):
    """An upstream's stream in one dialect, written for the caller in another."""

    reader: AnswerReader
    writer: AnswerWriter

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
        return self.writer.write(self.reader.feed(data))

    def end(self) -> Sequence[AnswerPart]:
        """Return the last parts of the caller's answer, when the upstream's body has ended."""
        return self.writer.write(self.reader.end())
