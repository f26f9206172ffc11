"""Translates conversations for Ollama's own dialect (`/api/chat`), which reports its times; other
operations, and an address with a path, go in OpenAI's dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.providers.openai import OpenAI
from gateway.providers.translated_dialect import conversation_for, losses_at, output_maximum
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.callers import writer_for
from gateway.wire.dialect import AnswerPart, AnswerStream, Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.ollama.answer import OllamaReader, ollama_events, usage_in
from gateway.wire.ollama.request import MAXIMUM, OPTIONS, WINDOW, write_ollama_request
from gateway.wire.translation.translated_stream import TranslatedStream

SENT_AS = "/api/chat"


class Ollama(OpenAI):
    """Calls Ollama in its own dialect for conversations, if the address has no path."""

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        """Return a caller's conversation as a request to `/api/chat`. Other operations are
        translated as by OpenAI's adapter.

        Raises `Untranslatable` for a field without a place in it, and `InvalidRequest`.
        """
        if not deployment.provider_facts.is_own_dialect or (
            read.facts.operation in deployment.native
        ):
            return super().translate(deployment, read)
        losses = losses_at(deployment, SENT_AS)
        body = write_ollama_request(conversation_for(deployment, read), losses)
        return Translation(sent_as=SENT_AS, body=body, dropped_fields=tuple(losses.fields))

    async def call(
        self,
        deployment: Deployment,
        request: Request,
        *,
        output_cap_tokens: int | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        """Return the HTTP request of one attempt. `output_cap_tokens` is the maximum that is sent,
        None to keep the caller's own.
        """
        if translation is None or translation.sent_as != SENT_AS:
            return await super().call(
                deployment, request, output_cap_tokens=output_cap_tokens, translation=translation
            )
        facts = request.body.facts
        most = output_maximum(facts, output_cap_tokens)
        # Without the window the server silently cuts prompts to its own default.
        limits = {MAXIMUM: most, WINDOW: deployment.context_window}
        set_limits = {name: value for name, value in limits.items() if value is not None}
        options: Mapping[str, Any] = {**translation.body[OPTIONS], **set_limits}
        body = {"model": deployment.model, **translation.body, OPTIONS: options}
        return UpstreamRequest(
            url=deployment.base_url.rstrip("/") + SENT_AS,
            headers=upstream_headers(
                deployment,
                request.request_id,
                traceparent=request.traceparent,
                is_stream=facts.is_stream,
            ),
            body=msgspec.json.encode(body),
            is_streamed=facts.is_stream,
            answer_type="application/json",
            translation=translation,
        )

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer to this call."""
        if call.translation is None or call.translation.sent_as != SENT_AS:
            return super().stream(read, call)
        return TranslatedStream(OllamaReader(), writer_for(read, call))

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer for the caller. Raises `UnreadableAnswer`."""
        if call.translation is None or call.translation.sent_as != SENT_AS:
            return super().rewrite(read, call, body, observed)
        events = ollama_events(body, observed)
        return body if observed.is_error else writer_for(read, call).whole(events)

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return super().usage_in(body) or usage_in(body)
