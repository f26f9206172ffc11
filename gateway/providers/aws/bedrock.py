"""Translates conversations for AWS Bedrock's Converse, and reads its answers, usage and errors; it
sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec

from gateway.domain.policy.policy import Deployment
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.providers.facts import host_of
from gateway.domain.request.request import Request
from gateway.errors import RequestError, UpstreamAuth, UpstreamError
from gateway.providers.aws.keys import AwsKeys, signed
from gateway.providers.translated_dialect import TranslatedDialect, output_maximum
from gateway.providers.upstream_errors import request_error
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.bedrock.answer import ConverseReader, converse_events, usage_in
from gateway.wire.bedrock.event_stream import CONTENT_TYPE
from gateway.wire.bedrock.request import with_maximum, write_converse_request
from gateway.wire.dialect import Translation, UpstreamRequest
from gateway.wire.observed import Observed
from gateway.wire.openai.error import read_error
from gateway.wire.translation.answer_events import AnswerEvent, AnswerReader
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses

ERROR_TYPE = "x-amzn-errortype"
# Both may come with status 400: the account's quota, and AWS's throttling of any call (AWS's page
# "Common Errors", looked up 2026-11-25; Converse itself sends 429).
_LIMITED = frozenset({"ServiceQuotaExceededException", "ThrottlingException"})
# Types that refuse the gateway itself, whatever the prompt, some with status 400 (looked up
# 2026-11-25). AWS's page "Common Errors", which is alike for all its services, names those with
# access, expiry, subscription and unknown client. Bedrock's user guide, "Troubleshooting Amazon
# Bedrock API Error Codes", adds InvalidClientTokenId. Those of the clock stand in aws-sdk-js-v3,
# packages/service-error-classification/src/constants.ts. The second spellings and ExpiredToken
# stand in aws-sdk-cpp, source/client/CoreErrors.cpp. botocore 1.44.5 has no such list.
_CLOCK = frozenset(
    {
        "InvalidSignatureException",
        "RequestExpired",
        "RequestExpiredException",
        "RequestInTheFuture",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
    }
)
_CREDENTIAL = _CLOCK | {
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotAuthorized",
    "OptInRequired",
    "UnrecognizedClientException",
}
_PROBE = {
    "messages": [{"role": "user", "content": [{"text": "."}]}],
    "inferenceConfig": {"maxTokens": 1},
}


class Bedrock(TranslatedDialect):
    """Calls Converse, with a signature or with a key of Bedrock's own."""

    sent_as = "converse"
    dialect = "Converse"

    def __init__(self) -> None:
        """Start without the platform's identity."""
        self._keys = AwsKeys()

    def write(
        self, conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None
    ) -> Mapping[str, Any]:
        """Return the Converse request for a conversation, without the maximum of output tokens."""
        return write_converse_request(conversation, losses, model=model, most_tokens=most_tokens)

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
        return await self._request(
            deployment,
            request.request_id,
            msgspec.json.encode(with_maximum(translation.body, most)),
            is_stream=facts.is_stream,
            traceparent=request.traceparent,
            translation=translation,
        )

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content with at most one output token."""
        return await self._request(
            deployment, probe_id, msgspec.json.encode(_PROBE), is_stream=False
        )

    async def _request(
        self,
        deployment: Deployment,
        request_id: UUID,
        body: bytes,
        *,
        is_stream: bool,
        traceparent: str | None = None,
        translation: Translation | None = None,
    ) -> UpstreamRequest:
        """Return a POST with its credential. Raises `UpstreamAuth`."""
        path = f"/model/{quote(deployment.model, safe='')}/{self.sent_as}{'-stream' * is_stream}"
        url = deployment.base_url.rstrip("/") + path
        headers = upstream_headers(
            deployment, request_id, is_stream=is_stream, traceparent=traceparent
        )
        if is_stream:
            headers["accept"] = CONTENT_TYPE
        key = await self._keys.key_of(deployment)
        if key is not None:
            headers = signed(key, url, headers, body, region=region_of(deployment))
        return UpstreamRequest(
            url=url,
            headers=headers,
            body=body,
            is_streamed=is_stream,
            answer_type="application/json",
            translation=translation,
        )

    def reader(self) -> AnswerReader:
        """Return a reader of one streamed answer."""
        return ConverseReader()

    def events(self, body: bytes, observed: Observed) -> Sequence[AnswerEvent]:
        """Return the events of a whole answer, and meter it. Raises `UnreadableAnswer`."""
        return converse_events(body, observed)

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return usage_in(body)

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map AWS's error by status and type, never by the text of its message."""
        error = read_error(body)
        kind = headers.get(ERROR_TYPE, "").partition(":")[0]
        if status == 424:  # the model failed, and not the request
            return UpstreamError(f"{deployment.name}: its model failed (HTTP 424).")
        if kind in _CREDENTIAL:
            return _refused_credential(deployment, status, kind)
        if kind in _LIMITED:
            status = 429
        if status == 404:  # the model stands in the address, which no caller chooses
            error = replace(error, param="model")
        return request_error(deployment, status, headers, error)


def _refused_credential(deployment: Deployment, status: int, kind: str) -> UpstreamAuth:
    """Return the error for a type that refuses the gateway's own credential, with the cause."""
    hint = ""
    if kind in _CLOCK:
        hint = " The gateway's clock or the secret key is wrong."
    elif kind == "AccessDeniedException":
        region = region_of(deployment)
        hint = f" It may not use the model {deployment.model} in {region}."
    return UpstreamAuth(
        f"{deployment.name} refused the gateway's own credential (HTTP {status}, {kind}).{hint} "
        "Ask an admin."
    )


def region_of(deployment: Deployment) -> str:
    """Return AWS's name of the region that signs a request: it stands in the host
    (`bedrock-runtime.eu-central-1.amazonaws.com`), else it is the deployment's own region.
    """
    labels = host_of(deployment.base_url).split(".")
    is_named = len(labels) > 2 and labels[0].startswith("bedrock-runtime")
    return labels[1] if is_named else deployment.region
