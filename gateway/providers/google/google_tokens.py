"""Fetches and renews the access tokens of Google's service accounts, for Vertex AI.

A service account's key signs a statement, and Google's token host exchanges it for a token of an
hour (RFC 7523; https://developers.google.com/identity/protocols/oauth2/service-account, looked up
2026-11-24). The exchange goes to the named hosts alone.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.domain.policy.policy import Deployment
from gateway.providers.access_tokens.renewal import AccessTokens, Grant, TokenRefused, unusable
from gateway.providers.access_tokens.token_host import FORM, TokenHost, grant_of
from gateway.providers.credentials import SecretUnusable, read_secret

TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
METADATA_URL = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
)
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LIFETIME_S = 3600  # the longest that Google grants
KEY_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"  # the platform's own name for it
STS_URL = "https://sts.googleapis.com/v1/token"
IMPERSONATION = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
WORKLOAD = "external_account"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class GoogleTokens:
    """The access tokens of all service accounts.

    `token_url`, `sts_url`, `metadata_url` and Google's address of impersonation are the only ones
    that it calls.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        *,
        token_url: str = TOKEN_URL,
        sts_url: str = STS_URL,
        metadata_url: str = METADATA_URL,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        """Start without a token; `now` dates the signed statements."""
        self._now, self._host = now, TokenHost()
        self._token_url, self._sts_url, self._metadata_url = token_url, sts_url, metadata_url
        self._tokens = AccessTokens("google", clock_s=clock_s)

    async def token(self, deployment: Deployment) -> str:
        """Return a valid access token for a deployment; waits only if there is none yet.

        Raises `UpstreamAuth` with the reference of the credential, never its value.
        """
        try:
            secret = _secret_of(deployment)
            return await self._tokens.token(secret.key, lambda: self._exchange(secret.content))
        except (SecretUnusable, TokenRefused) as problem:
            raise unusable(deployment, problem) from None

    def note_refused(self, deployment: Deployment) -> None:
        """Drop a deployment's token that its upstream refused."""
        with suppress(SecretUnusable):
            self._tokens.note_refused(_secret_of(deployment).key, deployment=deployment.name)

    def fetch(self, deployment: Deployment) -> Grant:
        """Return a new token for a deployment, and keep none. Blocks for a few seconds at most.
        Raises `SecretUnusable` or `TokenRefused`.
        """
        return self._exchange(_secret_of(deployment).content)

    def check_key(self, deployment: Deployment) -> None:
        """Read a deployment's key and sign with it; nothing is sent. Raises `SecretUnusable` or
        `TokenRefused` if it cannot be exchanged.
        """
        self._form(_account(_secret_of(deployment).content))

    def _exchange(self, secret: str) -> Grant:
        """Return a new token. Blocks for a few seconds at most. Raises `TokenRefused`."""
        if not secret:
            return self._from_metadata_server()
        account = _account(secret)
        is_workload, form = account["type"] == WORKLOAD, urlencode(self._form(account)).encode()
        found = self._fetched("POST", self._sts_url if is_workload else self._token_url, FORM, form)
        impersonation = account.get("service_account_impersonation_url") if is_workload else None
        if impersonation is None:
            return found
        headers = {"authorization": f"Bearer {found.text}", "content-type": "application/json"}
        body = msgspec.json.encode({"scope": [SCOPE], "lifetime": f"{LIFETIME_S}s"})
        return self._fetched("POST", str(impersonation), headers, body)

    def _form(self, account: Mapping[str, Any]) -> dict[str, str]:
        """Return the form that asks for an account's token. Raises `TokenRefused` or
        `SecretUnusable`.
        """
        if account["type"] == WORKLOAD:
            return self._workload_form(account)
        if account.get("token_uri", self._token_url) != self._token_url:
            raise TokenRefused(f"names another token host than {self._token_url}")
        return {"grant_type": GRANT, "assertion": self._statement(account)}

    def _workload_form(self, account: Mapping[str, Any]) -> dict[str, str]:
        """Return the form of a workload identity: the platform's statement in a file, exchanged at
        Google's token service, and then for a service account's token if the file names one.
        """
        impersonation = account.get("service_account_impersonation_url")
        if account.get("token_url") != self._sts_url or not (
            impersonation is None or str(impersonation).startswith(IMPERSONATION)
        ):
            raise TokenRefused("names another token host than Google's")
        return {
            "grant_type": EXCHANGE,
            "audience": str(account.get("audience")),
            "scope": SCOPE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token_type": str(account.get("subject_token_type")),
            "subject_token": _subject_token(account),
        }

    def _from_metadata_server(self) -> Grant:
        """Return the token of the machine's own service account."""
        return self._fetched("GET", self._metadata_url, {"metadata-flavor": "Google"}, b"")

    def _statement(self, account: Mapping[str, Any]) -> str:
        """Return the signed statement (JWT, RS256) that asks for a token."""
        issued_s = int(self._now().timestamp())
        header = {"alg": "RS256", "typ": "JWT", "kid": str(account.get("private_key_id", ""))}
        claims = {
            "iss": account.get("client_email"),
            "scope": SCOPE,
            "aud": self._token_url,
            "iat": issued_s,
            "exp": issued_s + LIFETIME_S,
        }
        signed = b".".join(_base64url(msgspec.json.encode(part)) for part in (header, claims))
        signature = _private_key(account).sign(signed, PKCS1v15(), hashes.SHA256())
        return (signed + b"." + _base64url(signature)).decode()

    def _fetched(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Grant:
        """Return the token in the answer to one request. Raises `TokenRefused`."""
        members = self._host.members(method, url, headers, body)
        text, lifetime_s = members.get("access_token"), members.get("expires_in")
        if text is None and "accessToken" in members:  # a service account's, for the asked lifetime
            text, lifetime_s = members["accessToken"], LIFETIME_S
        host = urlsplit(url).hostname or ""
        grant = grant_of(text, lifetime_s, most_s=LIFETIME_S, host=host)
        # Google pads short tokens with dots on the metadata server, and takes them without.
        return grant._replace(text=grant.text.rstrip("."))


class _Secret(NamedTuple):
    """A credential's content, empty for the machine's own identity, and the key of its token."""

    content: str
    key: bytes


def _secret_of(deployment: Deployment) -> _Secret:
    """Return the secret of a deployment's credential. Raises `SecretUnusable`."""
    reference = deployment.api_key
    named = _ambient_file() if reference is None else reference
    try:
        content = "" if named is None else read_secret(named)
    except SecretUnusable as problem:
        if reference is None:
            raise SecretUnusable(f"names a file in {KEY_FILE_VARIABLE} that {problem}") from None
        raise
    return _Secret(content, sha256(f"{named}\n{content}".encode()).digest())


def _ambient_file() -> str | None:
    """Return the reference to the key file that the platform names, None for the machine's own
    identity.
    """
    path = os.environ.get(KEY_FILE_VARIABLE)
    return f"file:{path}" if path else None


def _account(secret: str) -> dict[str, Any]:
    """Return the members of a service account's key file. Raises `TokenRefused`."""
    try:
        account = _decode(secret.encode())
    except (msgspec.DecodeError, RecursionError):
        raise TokenRefused("is not a service account's key in JSON") from None
    if account.get("type") not in ("service_account", WORKLOAD):
        raise TokenRefused("is neither a service account's key nor a workload identity")
    return account


def _subject_token(account: Mapping[str, Any]) -> str:
    """Return the platform's statement about a workload, from the file that its identity names.
    Raises `TokenRefused` or `SecretUnusable`.
    """
    source = account.get("credential_source")
    path = source.get("file") if isinstance(source, dict) else None
    if not isinstance(path, str):
        raise TokenRefused("is a workload identity whose statement is not in a file")
    content = read_secret(f"file:{path}")
    form = source.get("format") if isinstance(source, dict) else None
    if not isinstance(form, dict) or form.get("type") != "json":
        return content
    try:
        token = _decode(content.encode()).get(str(form.get("subject_token_field_name")))
    except (msgspec.DecodeError, RecursionError):
        token = None
    if not isinstance(token, str):
        raise TokenRefused("is a workload identity whose file has no statement")
    return token


def _private_key(account: Mapping[str, Any]) -> RSAPrivateKey:
    """Return the RSA key of a service account. Raises `TokenRefused`."""
    try:
        key = load_pem_private_key(str(account.get("private_key")).encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TokenRefused("has no readable private key") from None
    if not isinstance(key, RSAPrivateKey):
        raise TokenRefused("has a private key that is not RSA")
    return key


def _base64url(value: bytes) -> bytes:
    """Return bytes in base64 for addresses, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=")
