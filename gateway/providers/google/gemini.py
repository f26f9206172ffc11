"""Translates conversations for Google's Gemini models, on AI Studio (`gemini`) and on Vertex AI
(`vertex`), and reads their answers, usage and errors; it sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import UUID

import msgspec

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request
from gateway.errors import RequestError, UpstreamAuth
from gateway.providers.google.google_tokens import GoogleTokens
from gateway.providers.translated_dialect import TranslatedDialect, output_maximum
from gateway.providers.upstream_errors import request_error
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.dialect import Translation, UpstreamRequest
from gateway.wire.gemini.answer import GeminiReader, gemini_events, usage_in
from gateway.wire.gemini.error import read_error, retry_delay_s
from gateway.wire.gemini.request import GENERATION, MAXIMUM, with_maximum, write_gemini_request
from gateway.wire.observed import Observed
from gateway.wire.translation.answer_events import AnswerEvent, AnswerReader
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses

_RESTRICTED = "The key's restrictions leave the gateway out."
# Reasons in Google's errors that no prompt causes, with status 400, 401 or 403, and their causes:
# googleapis/googleapis, google/api/error_reason.proto, looked up 2026-11-25. API_KEY_EXPIRED is
# google.api.servicecontrol.v1.CheckError's.
_ACCOUNT_REASONS = {
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "The token's scope leaves out this API.",
    "ACCOUNT_STATE_INVALID": "The account is disabled or deleted.",
    "API_KEY_ANDROID_APP_BLOCKED": _RESTRICTED,
    "API_KEY_EXPIRED": "The key has expired.",
    "API_KEY_HTTP_REFERRER_BLOCKED": _RESTRICTED,
    "API_KEY_INVALID": "The key is unknown, expired or deleted.",
    "API_KEY_IOS_APP_BLOCKED": _RESTRICTED,
    "API_KEY_IP_ADDRESS_BLOCKED": _RESTRICTED,
    "API_KEY_SERVICE_BLOCKED": "The key's restrictions leave out this API.",
    "BILLING_DISABLED": "The project's billing is disabled.",
    "CONSUMER_INVALID": "The project is unknown or deleted.",
    "CONSUMER_SUSPENDED": "Google has suspended the project.",
    "SERVICE_DISABLED": "The API is disabled in the project.",
    "USER_PROJECT_DENIED": "The account may not use the project.",
}
_ACCOUNT = "FAILED_PRECONDITION"
_PROBE: Mapping[str, Any] = {
    "contents": [{"role": "user", "parts": [{"text": "."}]}],
    GENERATION: {MAXIMUM: 1},
}


class Gemini(TranslatedDialect):
    """Calls Gemini on AI Studio, with a key."""

    sent_as = dialect = "generateContent"
    models: ClassVar[str] = "/models/"

    def write(
        self, conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None
    ) -> Mapping[str, Any]:
        """Return the generateContent request for a conversation, without the maximum of output
        tokens.
        """
        return write_gemini_request(conversation, losses, model=model, most_tokens=most_tokens)

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

        Raises `UpstreamAuth` without a credential.
        """
        assert translation is not None, "no caller speaks this dialect"
        facts = request.body.facts
        most = output_maximum(facts, output_cap_tokens)
        body = with_maximum(translation.body, most, model=deployment.model)
        return UpstreamRequest(
            url=self._url(deployment, is_stream=facts.is_stream),
            headers=await self.headers(
                deployment,
                request.request_id,
                is_stream=facts.is_stream,
                traceparent=request.traceparent,
            ),
            body=msgspec.json.encode(body),
            is_streamed=facts.is_stream,
            answer_type="application/json",
            translation=translation,
        )

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content with at most one output token."""
        return UpstreamRequest(
            url=self._url(deployment, is_stream=False),
            headers=await self.headers(deployment, probe_id, is_stream=False),
            body=msgspec.json.encode(_PROBE),
        )

    async def headers(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        is_stream: bool,
        traceparent: str | None = None,
    ) -> dict[str, str]:
        """Return the headers with the deployment's key."""
        return upstream_headers(
            deployment, request_id, is_stream=is_stream, traceparent=traceparent
        )

    def reader(self) -> AnswerReader:
        """Return a reader of one streamed answer."""
        return GeminiReader()

    def events(self, body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
        """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""
        return gemini_events(body, observed)

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return usage_in(body)

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map Google's error by status and type, never by the text of its message."""
        error = read_error(body)
        name = deployment.name
        cause = _ACCOUNT_REASONS.get(error.code or "") if status in (400, 401, 403) else None
        if cause is not None or (status == 400 and error.type == _ACCOUNT):
            hint = "" if cause is None else f" {cause}"
            return UpstreamAuth(
                f"{name} refused the gateway's own credential or account (HTTP {status}, "
                f"{error.code or error.type}).{hint} Ask an admin."
            )
        if status == 404:  # the model stands in the address, which no caller chooses
            error = replace(error, param="model")
        delay_s = retry_delay_s(body)
        if delay_s is not None and "retry-after" not in headers:
            headers = {**headers, "retry-after": str(delay_s)}
        return request_error(deployment, status, headers, error)

    def _url(self, deployment: Deployment, *, is_stream: bool) -> str:
        """Return the address of the model's method. A model's name is one part of the path."""
        method = ":streamGenerateContent?alt=sse" if is_stream else ":generateContent"
        model = quote(deployment.model, safe="")
        return deployment.base_url.rstrip("/") + self.models + model + method


class Vertex(Gemini):
    """Calls Gemini on Vertex AI, with an access token of a service account."""

    models = "/publishers/google/models/"

    def __init__(self, tokens: GoogleTokens) -> None:
        """Make the adapter; `tokens` exchanges a service account's key for access tokens."""
        self._tokens = tokens

    async def headers(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        is_stream: bool,
        traceparent: str | None = None,
    ) -> dict[str, str]:
        """Return the headers with an access token; waits for it if none is valid."""
        token = await self._tokens.token(deployment)
        return upstream_headers(
            deployment,
            request_id,
            is_stream=is_stream,
            traceparent=traceparent,
            access_token=token,
        )

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map Google's error by status and type; a refused access token is not used again."""
        if status == 401:
            self._tokens.note_refused(deployment)
        return super().error(deployment, status, headers, body=body)
