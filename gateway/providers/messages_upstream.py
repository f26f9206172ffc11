"""Translates callers' conversations for an upstream of Anthropic's messages, for the adapter of
that dialect.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import RequestBody
from gateway.providers.translated_dialect import conversation_for, losses_at
from gateway.wire.anthropic.translation.upstream_reader import MessagesReader, messages_events
from gateway.wire.anthropic.translation.upstream_request import (
    DEFAULT_MAX_TOKENS,
    with_maximum,
    write_messages_request,
)
from gateway.wire.callers import writer_for
from gateway.wire.dialect import AnswerPart, AnswerStream, Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerEvent
from gateway.wire.translation.translated_stream import TranslatedStream

SENT_AS = "messages"


def messages_translation(deployment: Deployment, read: RequestBody) -> Translation:
    """Return a caller's conversation as a messages request.

    Raises `Untranslatable` for a field without a place in it, and `InvalidRequest`.
    """
    losses = losses_at(deployment, SENT_AS)
    conversation = conversation_for(deployment, read)
    body = write_messages_request(
        conversation, losses, model=deployment.model, most_tokens=deployment.max_output_tokens
    )
    return Translation(sent_as=SENT_AS, body=body, dropped_fields=tuple(losses.fields))


def messages_body(
    deployment: Deployment,
    read: RequestBody,
    translation: Translation,
    *,
    output_cap_tokens: int | None,
) -> bytes:
    """Return the body of a translated request. The dialect requires a maximum: the gateway's, else
    the caller's, else the one that the hold of such a request is made for.
    """
    most = output_cap_tokens or read.facts.output_bound_tokens or DEFAULT_MAX_TOKENS
    body = {"model": deployment.model, **with_maximum(translation.body, most)}
    if read.facts.is_stream:
        body["stream"] = True
    return msgspec.json.encode(body)


def messages_stream(read: RequestBody, call: UpstreamRequest) -> AnswerStream:
    """Return the reader of a streamed answer, which writes it in the caller's dialect."""
    return TranslatedStream(MessagesReader(), writer_for(read, call))


def messages_answer(
    read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
) -> AnswerPart:
    """Return a complete answer in the caller's dialect. Raises `UnreadableAnswer`."""
    events: Sequence[AnswerEvent] = messages_events(body, observed)
    return body if observed.is_error else writer_for(read, call).whole(events)
