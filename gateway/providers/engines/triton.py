"""Translates completions for Triton's generate extension; an address with a path is its OpenAI
frontend.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.errors import Untranslatable
from gateway.providers.openai import OpenAI
from gateway.providers.translated_dialect import losses_at, output_maximum
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.dialect import AnswerPart, AnswerStream, Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.openai.chat_translation.completions_writer import CompletionsWriter
from gateway.wire.translation.answer_events import own_start
from gateway.wire.translation.translated_stream import TranslatedStream
from gateway.wire.triton.answer import TritonReader, generate_events, usage_in
from gateway.wire.triton.request import MAXIMUM, write_generate_request

SENT_AS = "generate"


class Triton(OpenAI):
    """Calls a model at Triton's generate extension, if the address has no path."""

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        """Return a completions request as a generate request.

        Raises `Untranslatable` for a field without a place in it and for other operations, and
        `InvalidRequest`.
        """
        if not deployment.provider_facts.is_own_dialect:
            return super().translate(deployment, read)
        if read.facts.operation is not Operation.COMPLETIONS:
            raise Untranslatable(
                f"{deployment.name} ({deployment.provider_facts.title}) takes completions alone. "
                "Use them, or a route that serves chats. Nothing was sent.",
                param="model",
            )
        losses = losses_at(deployment, SENT_AS)
        body = write_generate_request(read, losses)
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
        body = translation.body if most is None else {**translation.body, MAXIMUM: most}
        model = quote(deployment.model, safe="")
        method = "generate_stream" if facts.is_stream else "generate"
        return UpstreamRequest(
            url=f"{deployment.base_url.rstrip('/')}/v2/models/{model}/{method}",
            headers=upstream_headers(
                deployment,
                request.request_id,
                traceparent=request.traceparent,
                is_stream=facts.is_stream,
            ),
            body=msgspec.json.encode(body),
            asks_running_usage=facts.is_stream,
            is_streamed=facts.is_stream,
            answer_type="application/json",
            translation=translation,
        )

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer to this call."""
        if call.translation is None or call.translation.sent_as != SENT_AS:
            return super().stream(read, call)
        reader = TritonReader(call.headers["x-request-id"], most_tokens=_sent_maximum(call))
        return TranslatedStream(reader, CompletionsWriter(read, own_start(call)))

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer for the caller. Raises `UnreadableAnswer`."""
        if call.translation is None or call.translation.sent_as != SENT_AS:
            return super().rewrite(read, call, body, observed)
        events = generate_events(
            body,
            observed,
            answer_id=call.headers["x-request-id"],
            most_tokens=_sent_maximum(call),
        )
        return body if observed.is_error else CompletionsWriter(read, own_start(call)).whole(events)

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return super().usage_in(body) or usage_in(body)


def _sent_maximum(call: UpstreamRequest) -> int | None:
    """Return the maximum that was sent, None without one."""
    most: int | None = msgspec.json.decode(call.body).get(MAXIMUM)
    return most
