"""Joins an upstream's dialect that no caller speaks with the callers' dialects, for the adapters of
such upstreams.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NoReturn

from gateway.domain.operation import CONVERSATIONS
from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import RequestBody
from gateway.errors import Untranslatable
from gateway.wire.callers import conversation_of, writer_for
from gateway.wire.dialect import AnswerPart, AnswerStream, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerEvent, AnswerReader
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.translated_stream import TranslatedStream


class TranslatedDialect(ABC):
    """An adapter whose upstream speaks no caller's dialect."""

    bills_errors = False

    @abstractmethod
    def reader(self) -> AnswerReader:
        """Return a reader of one streamed answer."""

    @abstractmethod
    def events(self, body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
        """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer, which writes it in the caller's dialect."""
        return TranslatedStream(self.reader(), writer_for(read, call))

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer in the caller's dialect. Raises `UnreadableAnswer`."""
        events = self.events(body, observed)
        return body if observed.is_error else writer_for(read, call).whole(events)

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> NoReturn:
        """Fail: no request of this dialect is assembled from a stream."""
        raise AssertionError("a plain request of this dialect is sent as a plain one")


def conversation_for(deployment: Deployment, read: RequestBody) -> Conversation:
    """Return a caller's request as a conversation.

    Raises `Untranslatable` for an operation that is none, and `InvalidRequest`.
    """
    operation = read.facts.operation
    if operation not in CONVERSATIONS:
        raise Untranslatable(
            f"{deployment.name} ({deployment.provider_facts.title}) has no place for {operation}. "
            "Use chat, or a route that serves it. Nothing was sent.",
            param="model",
        )
    return conversation_of(read)
