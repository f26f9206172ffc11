"""Makes the headers of a request to an upstream, with the deployment's credential."""

from __future__ import annotations

from uuid import UUID

from gateway.domain.ids import text_of
from gateway.domain.policy.policy import Deployment
from gateway.providers.credentials import resolve


def upstream_headers(
    deployment: Deployment,
    request_id: UUID,
    *,
    is_stream: bool,
    traceparent: str | None = None,
) -> dict[str, str]:
    """Return the headers of an upstream request, with the deployment's credential."""
    headers = _headers(request_id, is_stream=is_stream, traceparent=traceparent)
    secret = resolve(deployment)
    if secret is not None:
        key_header = deployment.provider_facts.key_header
        is_bearer = key_header == "authorization"
        headers[key_header] = f"Bearer {secret}" if is_bearer else secret
    return headers


def bearer_headers(
    token: str, request_id: UUID, *, is_stream: bool, traceparent: str | None = None
) -> dict[str, str]:
    """Return the headers of an upstream request, with an access token as its credential."""
    headers = _headers(request_id, is_stream=is_stream, traceparent=traceparent)
    headers["authorization"] = f"Bearer {token}"
    return headers


def _headers(
    request_id: UUID, *, is_stream: bool, traceparent: str | None = None
) -> dict[str, str]:
    """Return the headers of an upstream request without its credential."""
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream" if is_stream else "application/json",
        "accept-encoding": "identity",  # the gateway reads the bytes on the way
        "user-agent": "tollgate",
        "x-request-id": text_of(request_id),
    }
    if traceparent is not None:
        headers["traceparent"] = traceparent
    return headers
