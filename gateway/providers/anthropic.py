"""Calls Anthropic's messages and every provider with the same dialect, and reads their answers,
usage and errors; it sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.errors import RequestError
from gateway.providers import native_messages
from gateway.providers.messages_upstream import (
    messages_answer,
    messages_body,
    messages_stream,
    messages_translation,
)
from gateway.providers.upstream_errors import request_error
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.anthropic.answer.messages import message_stream, rewrite_message, usage_in
from gateway.wire.dialect import (
    AnswerPart,
    AnswerStream,
    PlainAnswerAssembler,
    Translation,
    UpstreamRequest,
)
from gateway.wire.observed import Observed
from gateway.wire.openai.error import read_error


class Anthropic:
    """Calls one upstream of Anthropic's dialect and reads its answers."""

    bills_errors = False

    def translate(self, deployment: Deployment, read: RequestBody) -> Translation | None:
        """Return the request as a messages request if the deployment does not speak its dialect,
        else None.

        Raises `Untranslatable` for a field that messages have no place for.
        """
        if read.facts.operation in deployment.native:
            return None
        return messages_translation(deployment, read)

    async def call(
        self,
        deployment: Deployment,
        request: Request,
        *,
        output_cap_tokens: int | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        """Return the HTTP request of one attempt (address, headers, and the caller's body with the
        deployment's model), to be sent by the transport.

        `output_cap_tokens` is the maximum that is sent, None to keep the caller's own.
        """
        read = request.body
        headers = upstream_headers(
            deployment,
            request.request_id,
            traceparent=request.traceparent,
            is_stream=read.facts.is_stream,
        )
        native_messages.add_headers(headers, request)
        if translation is not None:
            headers[native_messages.VERSION_HEADER] = native_messages.VERSION
        return UpstreamRequest(
            url=native_messages.address(deployment.base_url.rstrip("/"), request),
            headers=headers,
            body=native_messages.body(deployment, read, {}, output_cap_tokens)
            if translation is None
            else messages_body(deployment, read, translation, output_cap_tokens=output_cap_tokens),
            is_streamed=read.facts.is_stream,
            answer_type=None if translation is None else "application/json",
            translation=translation,
        )

    async def count_call(self, deployment: Deployment, request: Request) -> UpstreamRequest:
        """Return the call that counts the tokens of a messages request's prompt."""
        return native_messages.count_call(deployment, deployment.base_url.rstrip("/"), request)

    def counted(self, body: bytes) -> int | None:
        """Return the tokens that an answer to that call states, None if it states none."""
        return native_messages.counted(body)

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content with at most one output token."""
        headers = upstream_headers(deployment, probe_id, is_stream=False)
        headers[native_messages.VERSION_HEADER] = native_messages.VERSION
        return UpstreamRequest(
            url=deployment.base_url.rstrip("/") + native_messages.PATH,
            headers=headers,
            body=msgspec.json.encode({"model": deployment.model, **native_messages.PROBE}),
        )

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> PlainAnswerAssembler:
        """Return nothing: no plain request is sent as a stream here."""
        raise AssertionError("no call of this provider is assembled")

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer to this call."""
        if call.translation is not None:
            return messages_stream(read, call)
        return message_stream(model=read.facts.model, request_id=call.headers.get("x-request-id"))

    def rewrite(
        self, read: RequestBody, call: UpstreamRequest, body: bytes, observed: Observed
    ) -> AnswerPart:
        """Return a complete answer for the caller; record its metadata in `observed`.

        Raises `UnreadableAnswer` for one that cannot be an answer.
        """
        if call.translation is not None:
            return messages_answer(read, call, body, observed)
        return rewrite_message(body, observed, model=read.facts.model)

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map an upstream's error by status and type, never by the text of its message."""
        return request_error(deployment, status, headers, read_error(body))

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return usage_in(body)
