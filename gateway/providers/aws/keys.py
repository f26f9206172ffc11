"""Signs requests to AWS (Signature Version 4), with a deployment's key or with the identity that
AWS gives to the gateway's own process.

botocore makes the signature and finds the identity. It is imported at the first use: start-up does
not pay for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.credentials import SigningKey, signing_key

SERVICE = "bedrock"
FETCH_S = 10.0  # seconds for the platform's identity; it is then kept until it expires


class AwsKeys:
    """The keys that sign requests to AWS. The platform's identity is fetched once and renewed."""

    def __init__(self) -> None:
        """Start without the platform's identity."""
        self._identity: Any = None
        self._fetching = asyncio.Lock()

    async def key_of(self, deployment: Deployment) -> SigningKey | None:
        """Return the key of a deployment; None if it declares none.

        Raises `UpstreamAuth` if it cannot be read or the platform gives none.
        """
        credentials = deployment.credentials
        if credentials is None or not credentials.is_ambient:
            return signing_key(deployment)
        try:
            async with asyncio.timeout(FETCH_S), self._fetching:
                # botocore waits for the network when it fetches or renews an identity.
                frozen = await asyncio.to_thread(self._frozen)
        except TimeoutError:
            frozen = None
        if frozen is None:
            raise UpstreamAuth(
                f"AWS gives the gateway no identity for {deployment.name}. Ask an admin to attach "
                "a role where it runs, or to name a key. Nothing was sent."
            )
        return SigningKey(frozen.access_key, frozen.secret_key, frozen.token)

    def _frozen(self) -> Any:
        """Return the identity's current key, renewed if it expires soon; None if there is none."""
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            if self._identity is None:
                self._identity = Session().get_credentials()
            return None if self._identity is None else self._identity.get_frozen_credentials()
        except BotoCoreError:
            return None


def signed(
    key: SigningKey, url: str, headers: Mapping[str, str], body: bytes, *, region: str
) -> dict[str, str]:
    """Return the headers of a POST with its signature; the signature covers host, body, content
    type and time.
    """
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(
        method="POST", url=url, data=body, headers={"content-type": headers["content-type"]}
    )
    SigV4Auth(Credentials(*key), SERVICE, region).add_auth(request)
    made = {name.lower(): str(value) for name, value in request.headers.items()}
    return {**headers, **made}
