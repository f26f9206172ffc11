"""Puts the events of an answer in an order for dialects with one block open at a time.

A block that was begun in messages or responses ends before the next one begins: the official SDKs
take the newest block for the one that ends. Chats tell the pieces of calls apart by their index, so
an upstream may mix them, or send text between the pieces of one call.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from gateway.wire.dialect import EventTooLarge, UnreadableAnswer
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Ended,
    Failed,
    Finished,
    Omitted,
    Picture,
    RefusalPiece,
    Started,
    TextPiece,
    ThoughtPiece,
    Used,
)

MAX_WAITING_CHARS = 32 * 2**20  # of one answer, as of a plain one
MAX_CALLS = 16_384  # of one answer: each is kept until its end
EVENT_CHARS = 256  # about the memory of an event without its text

_MARK = re.compile(r'\\(?:.|\Z)|["{}\[\]]', re.S)


class OpenJson(Struct):
    """A JSON text that comes in pieces: it is complete when its outer object or list ends."""

    is_complete: bool = False
    _depth: int = 0
    _is_in_text: bool = False
    _is_escaped: bool = False  # the last character was a backslash

    def add(self, text: str) -> None:
        """Take in the next piece."""
        start = 1 if self._is_escaped and text else 0
        self._is_escaped = self._is_escaped and not text
        for match in _MARK.finditer(text, start):
            mark = match[0]
            if mark == '"':
                self._is_in_text = not self._is_in_text
            elif mark == "\\":
                self._is_escaped = True
            elif not self._is_in_text and len(mark) == 1:
                self._depth += 1 if mark in "{[" else -1
                self.is_complete = self._depth == 0


class _Run(Struct):
    """The events of one call, or those of other content between two calls, that the caller has not
    seen. `arguments` are a call's.
    """

    events: list[AnswerEvent] = []
    arguments: OpenJson | None = None
    is_shown: bool = False

    @property
    def may_end(self) -> bool:
        """Whether other content may follow."""
        return self.arguments is None or self.arguments.is_complete


class BlockOrder(Struct):
    """Orders the events of one answer; other choices than the first are left out.

    An event behind a call whose arguments are not complete waits for them, at the latest until the
    choice ends.
    """

    _calls: dict[int, _Run] = {}
    _shown: _Run | None = None  # the run that the caller sees now
    _waiting: deque[_Run] = msgspec.field(default_factory=deque)
    _waited_chars: int = 0

    def events(self, event: AnswerEvent) -> Iterator[AnswerEvent]:
        """Yield the events that the caller gets now.

        Raises `EventTooLarge` if too much waits or there are too many calls, and `UnreadableAnswer`
        for arguments that go on after their end and after other content.
        """
        if isinstance(event, Started | Used | Failed):
            yield event
        elif isinstance(event, Ended):
            yield from self._release(is_last=True)
            yield event
        elif event.choice != 0:
            return
        elif isinstance(event, Omitted):
            yield event
        elif isinstance(event, Finished):
            yield from self._release(is_last=True)
            yield event
        elif isinstance(event, CallArguments):
            if (call := self._calls.get(event.call)) is not None:
                yield from self._more(call, event)
        elif isinstance(event, CallStarted):
            run = self._calls[event.call] = _Run(arguments=OpenJson())
            if len(self._calls) > MAX_CALLS:
                raise EventTooLarge(f"an answer of more than {MAX_CALLS} tool calls")
            self._waiting.append(run)
            yield from self._wait(run, event, chars=0)
        else:
            yield from self._content(event)

    def _content(
        self, event: TextPiece | RefusalPiece | ThoughtPiece | Picture
    ) -> Iterator[AnswerEvent]:
        """Yield the events that may follow now that other content than a call came."""
        last = self._waiting[-1] if self._waiting else self._shown
        is_in_call = last is not None and last.arguments is not None
        if is_in_call and isinstance(event, TextPiece) and not event.text:
            return  # the probabilities of the call's own tokens
        if not self._waiting or is_in_call:
            self._waiting.append(_Run())
        chars = len(event.data if isinstance(event, Picture) else event.text)
        yield from self._wait(self._waiting[-1], event, chars=chars)

    def _more(self, call: _Run, event: CallArguments) -> Iterator[AnswerEvent]:
        """Yield the events that may follow now that a call's arguments went on."""
        assert call.arguments is not None, "a call has arguments"
        if call.is_shown and call is not self._shown and event.text.strip():
            raise UnreadableAnswer("a tool call's arguments went on after their end")
        call.arguments.add(event.text)
        if call is self._shown:
            yield event
            yield from self._release()
        elif not call.is_shown:
            yield from self._wait(call, event, chars=len(event.text))

    def _wait(self, run: _Run, event: AnswerEvent, *, chars: int) -> Iterator[AnswerEvent]:
        """Add an event to a run that waits, and yield the events that may follow."""
        run.events.append(event)
        yield from self._release()
        if self._waiting:
            self._waited_chars += EVENT_CHARS + chars
        if self._waited_chars > MAX_WAITING_CHARS:
            raise EventTooLarge(f"more than {MAX_WAITING_CHARS} letters behind a tool call")

    def _release(self, *, is_last: bool = False) -> Iterator[AnswerEvent]:
        """Yield the events that wait for nothing more: at the end of a choice all of them."""
        while self._waiting and (is_last or self._shown is None or self._shown.may_end):
            self._shown = self._waiting.popleft()
            self._shown.is_shown = True
            yield from self._shown.events
            self._shown.events.clear()
