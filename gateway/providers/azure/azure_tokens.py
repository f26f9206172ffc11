"""Fetches and renews the access tokens of the identity that Azure gives to the gateway's process.

Three forms, looked up 2026-11-25 in azure-identity 1.27.0 (`_credentials/workload_identity.py`,
`app_service.py`, `imds.py`, `_constants.py`), in its own order: a workload's federated statement
(Kubernetes), App Service and Container Apps, and a virtual machine's metadata server (IMDS).
The environment variables are the platform's own. A token is fetched at their hosts alone: a local
address for a managed identity, and one of Microsoft's authorities for a federated one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from hashlib import sha256
from ipaddress import ip_address
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from gateway.domain.policy.policy import Deployment
from gateway.domain.providers.facts import host_of
from gateway.providers.access_tokens.renewal import AccessTokens, Grant, TokenRefused, unusable
from gateway.providers.access_tokens.token_host import FORM, TIMEOUT_S, TokenHost, grant_of
from gateway.providers.credentials import SecretUnusable, read_secret

IMDS_HOST = "http://169.254.169.254"
IMDS_PATH = "/metadata/identity/oauth2/token"
IMDS_VERSION, APP_SERVICE_VERSION = "2018-02-01", "2019-08-01"
# Of the public cloud, Azure Government and Azure China.
AUTHORITIES = frozenset(
    {
        "https://login.microsoftonline.com",
        "https://login.microsoftonline.us",
        "https://login.chinacloudapi.cn",
    }
)
# The audience of Azure OpenAI's tokens in each cloud: that of Cognitive Services
# (@azure/ai-form-recognizer, src/constants.ts, KnownFormRecognizerAudience, 2026-11-25).
RESOURCES = {
    ".azure.us": "https://cognitiveservices.azure.us",
    ".azure.cn": "https://cognitiveservices.azure.cn",
}
RESOURCE = "https://cognitiveservices.azure.com"
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
LIFETIME_S = 86_400  # a managed identity's token is valid for a day
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,127}")


class Identity(NamedTuple):
    """The environment's description of the process's identity; an absent variable is empty."""

    token_file: str
    tenant_id: str
    client_id: str
    authority: str
    endpoint: str
    header: str
    imds_host: str

    def __repr__(self) -> str:
        """Return no part of the header, which is a secret."""
        return "Identity(...)"


class AzureTokens:
    """The access tokens of the process's own identity, one for each cloud's Azure OpenAI.

    `imds_host`, `authorities` and the environment's local address are the only ones that it calls.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        *,
        imds_host: str = IMDS_HOST,
        authorities: Collection[str] = AUTHORITIES,
        clock_s: Callable[[], float] = monotonic,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Start without a token; `now` is compared with the time at which a token ends, and
        `timeout_s` bounds one request.
        """
        self._now, self._host = now, TokenHost(timeout_s)
        self._imds_host, self._authorities = imds_host, authorities
        self._tokens = AccessTokens("azure", clock_s=clock_s)

    async def token(self, deployment: Deployment) -> str:
        """Return a valid access token for a deployment; waits only if there is none yet.

        Raises `UpstreamAuth`.
        """
        identity, resource = _identity(os.environ), _resource_of(deployment)
        try:
            return await self._tokens.token(
                _key(identity, resource), lambda: self._exchange(identity, resource)
            )
        except (SecretUnusable, TokenRefused) as problem:
            raise unusable(deployment, problem) from None

    def note_refused(self, deployment: Deployment) -> None:
        """Drop a deployment's token that its upstream refused."""
        key = _key(_identity(os.environ), _resource_of(deployment))
        self._tokens.note_refused(key, deployment=deployment.name)

    def fetch(self, deployment: Deployment) -> Grant:
        """Return a new token for a deployment, and keep none. Blocks for a few seconds at most.
        Raises `SecretUnusable` or `TokenRefused`.
        """
        return self._exchange(_identity(os.environ), _resource_of(deployment))

    def _exchange(self, identity: Identity, resource: str) -> Grant:
        """Return a new token. Blocks for a few seconds at most. Raises `TokenRefused` or
        `SecretUnusable`.
        """
        if identity.token_file:
            return self._of_workload(identity, resource)
        if identity.endpoint:
            return self._of_app_service(identity, resource)
        url = _local(identity.imds_host or self._imds_host, "AZURE_POD_IDENTITY_AUTHORITY_HOST")
        query = _query(IMDS_VERSION, resource, identity)
        return self._granted("GET", f"{url.rstrip('/')}{IMDS_PATH}?{query}", {"metadata": "true"})

    def _of_app_service(self, identity: Identity, resource: str) -> Grant:
        """Return the token of an identity of App Service or Container Apps."""
        if not identity.header:  # Azure Arc's form, which is another one
            raise TokenRefused("has IDENTITY_ENDPOINT without IDENTITY_HEADER")
        url = _local(identity.endpoint, "IDENTITY_ENDPOINT")
        query = _query(APP_SERVICE_VERSION, resource, identity)
        return self._granted("GET", f"{url}?{query}", {"x-identity-header": identity.header})

    def _of_workload(self, identity: Identity, resource: str) -> Grant:
        """Return the token of a workload: the platform's statement in a file, exchanged at an
        authority of Microsoft's.
        """
        if not (identity.client_id and _TENANT.fullmatch(identity.tenant_id)):
            raise TokenRefused(
                "is a workload identity without AZURE_CLIENT_ID or a valid AZURE_TENANT_ID"
            )
        authority = identity.authority.rstrip("/")
        authority = authority if "://" in authority else f"https://{authority}"
        if authority not in self._authorities:
            raise TokenRefused("has an AZURE_AUTHORITY_HOST that is none of Microsoft's")
        try:
            statement = read_secret(f"file:{identity.token_file}")
        except SecretUnusable as problem:
            raise SecretUnusable(
                f"names a file in AZURE_FEDERATED_TOKEN_FILE that {problem}"
            ) from None
        form = {
            "grant_type": "client_credentials",
            "client_id": identity.client_id,
            "client_assertion_type": ASSERTION_TYPE,
            "client_assertion": statement,
            "scope": f"{resource}/.default",
        }
        url = f"{authority}/{identity.tenant_id}/oauth2/v2.0/token"
        return self._granted("POST", url, FORM, urlencode(form).encode())

    def _granted(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Grant:
        """Return the token in the answer to one request. Raises `TokenRefused`."""
        members = self._host.members(method, url, headers, body)
        return grant_of(
            members.get("access_token"),
            self._lifetime_s(members),
            most_s=LIFETIME_S,
            host=urlsplit(url).hostname or "",
        )

    def _lifetime_s(self, members: Mapping[str, Any]) -> float | None:
        """Return the seconds for which a token is valid, None if the answer does not state them.

        App Service states only the end, and the metadata server writes numbers as text.
        """
        lasts_s, ends_s = (_number(members.get(name)) for name in ("expires_in", "expires_on"))
        left_s = None if ends_s is None else ends_s - self._now().timestamp()
        return min((one for one in (lasts_s, left_s) if one is not None), default=None)


def _identity(variables: Mapping[str, str]) -> Identity:
    """Return the identity that the environment describes."""
    return Identity(
        token_file=variables.get("AZURE_FEDERATED_TOKEN_FILE", ""),
        tenant_id=variables.get("AZURE_TENANT_ID", ""),
        client_id=variables.get("AZURE_CLIENT_ID", ""),
        authority=variables.get("AZURE_AUTHORITY_HOST", "") or "login.microsoftonline.com",
        endpoint=variables.get("IDENTITY_ENDPOINT", ""),
        header=variables.get("IDENTITY_HEADER", ""),
        imds_host=variables.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", ""),
    )


def _key(identity: Identity, resource: str) -> bytes:
    """Return the key of an identity's token, which has no part of its secrets."""
    return sha256("\n".join((*identity, resource)).encode()).digest()


def _resource_of(deployment: Deployment) -> str:
    """Return the audience of a deployment's tokens, by the cloud of its host."""
    host = host_of(deployment.base_url)
    return next((name for end, name in RESOURCES.items() if host.endswith(end)), RESOURCE)


def _query(version: str, resource: str, identity: Identity) -> str:
    """Return the query for a managed identity's token. An id names one of several identities."""
    query = {"api-version": version, "resource": resource}
    return urlencode(query | ({"client_id": identity.client_id} if identity.client_id else {}))


def _local(url: str, variable: str) -> str:
    """Return the address of a platform's token host. Raises `TokenRefused` unless it is the address
    of this machine or of its own network: the request has a secret and no encryption.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        is_local = host == "localhost" or not ip_address(host).is_global
    except ValueError:
        is_local = False
    if not is_local or parts.scheme != "http" or "@" in parts.netloc or parts.query:
        raise TokenRefused(f"has an {variable} that is no local http:// address")
    return url


def _number(value: object) -> float | None:
    """Return a number of an answer, which may be written as text; None for anything else."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= 15:
        return float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isinstance(value, int | float) else None
