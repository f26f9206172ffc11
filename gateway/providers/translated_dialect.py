"""Joins an upstream's dialect that no caller speaks with the callers' dialects, for the adapters of
such upstreams; starts every translation's list of losses, and chooses the output maximum to send.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

from gateway.domain.operation import CONVERSATIONS
from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import RequestBody, RequestFacts
from gateway.errors import Untranslatable
from gateway.wire.callers import conversation_of, writer_for
from gateway.wire.dialect import AnswerPart, AnswerStream, Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerEvent, AnswerReader
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.translated_stream import TranslatedStream


def losses_at(deployment: Deployment, dialect: str) -> Losses:
    """Return the empty collection of fields that a deployment's dialect has no place for."""
    where = f"{deployment.name} ({deployment.provider_facts.title}, {dialect})"
    return Losses(where, drops=deployment.drops_untranslatable)


def output_maximum(facts: RequestFacts, output_cap_tokens: int | None) -> int | None:
    """Return the maximum of output tokens to send: the cap, else the caller's own; None without
    both.
    """
    return facts.output_bound_tokens if output_cap_tokens is None else output_cap_tokens


class TranslatedDialect(ABC):
    """An adapter whose upstream speaks no caller's dialect.

    `sent_as` names the upstream's dialect in receipts, `dialect` in messages.
    """

    sent_as: ClassVar[str]
    dialect: ClassVar[str]
    bills_errors = False

    @abstractmethod
    def write(
        self, conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None
    ) -> Mapping[str, Any]:
        """Return the upstream's request for a conversation, without the maximum of output tokens;
        `most_tokens` is the deployment's, for a caller without one.

        Raises `Untranslatable` for a field without a place in it.
        """

    @abstractmethod
    def reader(self) -> AnswerReader:
        """Return a reader of one streamed answer."""

    @abstractmethod
    def events(self, body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
        """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation:
        """Return the upstream's request for a caller's conversation.

        Raises `Untranslatable` for a field without a place in it and for another operation, and
        `InvalidRequest`.
        """
        losses = losses_at(deployment, self.dialect)
        conversation = conversation_for(deployment, read)
        body = self.write(
            conversation, losses, model=deployment.model, most_tokens=deployment.max_output_tokens
        )
        return Translation(sent_as=self.sent_as, body=body, dropped_fields=tuple(losses.fields))

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
