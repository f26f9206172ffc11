"""Gives each tool call of an answer an id that no other call of its conversation has, and
arguments.

Some servers send no ids, one id for several calls, or the same ids in each answer (TGI sends `0`,
text-generation servers count from 0). A result of a tool names its call by the id alone, and
Anthropic answers 400 to a conversation with one id twice. Anthropic and Bedrock stream no arguments
for a tool without any, and parsers of chats and responses need `{}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

import msgspec
from msgspec import Struct

from gateway.domain.request.request import RequestBody
from gateway.wire.translation.answer_events import (
    AnswerEvent,
    CallArguments,
    CallStarted,
    Finish,
    Finished,
    Started,
)

# Members of ids in a request of any dialect, at any depth: an id too many costs a made one.
_SENT_ID = re.compile(rb'id"\s*:\s*"([^"\\]+)"')


class CallIds(Struct):
    """Tells the calls of one answer apart, and completes them."""

    _given: set[str] = set()
    _sent: frozenset[bytes] | None = None
    _empty: dict[int, int] = {}  # the choices of the calls without arguments so far

    def events(
        self, event: AnswerEvent, *, read: RequestBody, own: Started
    ) -> Iterator[AnswerEvent]:
        """Yield the event; a call's start with an id that is none of the request `read` and of no
        other call. `own` has the gateway's own id of the request. Before a choice's end come `{}`
        for its calls without arguments, unless its maximum may have cut them off.
        """
        if isinstance(event, CallStarted):
            self._empty[event.call] = event.choice
            event = self._told_apart(event, read=read, own=own)
        elif isinstance(event, CallArguments):
            if event.text.strip():
                self._empty.pop(event.call, None)
        elif isinstance(event, Finished) and event.finish is not Finish.LENGTH:
            for call in [one for one, choice in self._empty.items() if choice == event.choice]:
                del self._empty[call]
                yield CallArguments(call=call, text="{}", choice=event.choice)
        yield event

    def _told_apart(self, event: CallStarted, *, read: RequestBody, own: Started) -> CallStarted:
        """Return the start of a call with an id of its own."""
        call_id = event.call_id
        if not call_id or call_id in self._given or self._is_sent(call_id, read.body):
            seed = f"{own.answer_id}.{event.choice}.{event.call}"
            call_id = "call_" + sha256(seed.encode()).hexdigest()[:24]
        self._given.add(call_id)
        return (
            event if call_id == event.call_id else msgspec.structs.replace(event, call_id=call_id)
        )

    def _is_sent(self, call_id: str, body: bytes) -> bool:
        """Return True if the request has this id."""
        if self._sent is None:
            self._sent = frozenset(_SENT_ID.findall(body))
        return call_id.encode() in self._sent
