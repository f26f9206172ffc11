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
    access_token: str | None = None,
) -> dict[str, str]:
    """Return the headers of an upstream request, with the deployment's key as its credential or
    with the access token that stands for it.
    """
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream" if is_stream else "application/json",
        "accept-encoding": "identity",  # the gateway reads the bytes on the way
        "user-agent": "tollgate",
        "x-request-id": text_of(request_id),
    }
    if traceparent is not None:
        headers["traceparent"] = traceparent
    if access_token is not None:
        headers["authorization"] = f"Bearer {access_token}"
    elif (secret := resolve(deployment)) is not None:
        key_header = deployment.provider_facts.key_header
        headers[key_header] = f"Bearer {secret}" if key_header == "authorization" else secret
    return headers
