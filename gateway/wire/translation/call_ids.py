"""Gives each tool call of an answer an id that no other call of its conversation has.

Some servers send no ids, one id for several calls, or the same ids in each answer (TGI sends `0`,
text-generation servers count from 0). A result of a tool names its call by the id alone, and
Anthropic answers 400 to a conversation with one id twice.
"""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec
from msgspec import Struct

from gateway.domain.request.request import RequestBody
from gateway.wire.translation.answer_events import AnswerEvent, CallStarted, Started

# Members of ids in a request of any dialect, at any depth: an id too many costs a made one.
_SENT_ID = re.compile(rb'id"\s*:\s*"([^"\\]+)"')


class CallIds(Struct):
    """Tells the calls of one answer apart."""

    _given: set[str] = set()
    _sent: frozenset[bytes] | None = None

    def told_apart(self, event: AnswerEvent, *, read: RequestBody, own: Started) -> AnswerEvent:
        """Return the event; a call's start with an id that is none of the request `read` and of no
        other call. `own` has the gateway's own id of the request.
        """
        if not isinstance(event, CallStarted):
            return event
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
