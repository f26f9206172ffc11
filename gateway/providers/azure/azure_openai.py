"""Calls Azure OpenAI with a key, or with the identity that Azure gives to the gateway's process."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from gateway.domain.policy.policy import Deployment
from gateway.errors import RequestError
from gateway.providers.azure.azure_tokens import AzureTokens
from gateway.providers.openai import OpenAI
from gateway.providers.upstream_headers import upstream_headers


class AzureOpenAI(OpenAI):
    """Calls Azure OpenAI, which speaks OpenAI's dialect."""

    def __init__(self, tokens: AzureTokens) -> None:
        """Make the adapter; `tokens` fetches the identity's access tokens."""
        super().__init__()
        self._tokens = tokens

    async def headers(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        is_stream: bool,
        traceparent: str | None = None,
    ) -> dict[str, str]:
        """Return the headers with the deployment's key, or with an access token; waits for the
        token if none is valid.
        """
        token = await self._tokens.token(deployment) if deployment.is_ambient else None
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
        """Map Azure's error by status and type; a refused access token is not used again."""
        if status == 401 and deployment.is_ambient:
            self._tokens.note_refused(deployment)
        return super().error(deployment, status, headers, body=body)
