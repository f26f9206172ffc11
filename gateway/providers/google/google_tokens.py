"""Fetches and renews the access tokens of Google's service accounts, for Vertex AI.

A service account's key signs a statement, and Google's token host exchanges it for a token of an
hour (RFC 7523; https://developers.google.com/identity/protocols/oauth2/service-account, looked up
2026-11-24). A token is renewed in the background while it is still valid, so that a request waits
only for the first one. No content leaves here, so no permit is needed; the exchange goes to the
named hosts alone, follows no redirect and uses no proxy of the environment.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import httpcore2
import msgspec
import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.credentials import SecretUnusable, read_secret
from gateway.providers.timed_stream import NETWORK_ERRORS, connect

log = structlog.get_logger()
TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
METADATA_URL = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"
)
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
LIFETIME_S = 3600  # the longest that Google grants
RENEWAL_S, LAST_USE_S = 600.0, 60.0  # seconds before its end: renewed from, and not used after
RETRY_S = 5.0  # between two failed exchanges
TIMEOUT_S = 5.0  # of one exchange, for everything
MOST_BYTES = 64 * 1024
MOST_KEYS = 64
AMBIENT = "ambient"
KEY_FILE_VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"  # the platform's own name for it
STS_URL = "https://sts.googleapis.com/v1/token"
IMPERSONATION = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/"
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
WORKLOAD = "external_account"
FORM = {"content-type": "application/x-www-form-urlencoded"}
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class TokenRefused(Exception):
    """No access token can be had. Its message continues "the credential of NAME ..."."""


class AccessToken(NamedTuple):
    """A token with the second of the monotonic clock at which it ends."""

    text: str
    ends_s: float


class GoogleTokens:
    """Holds the access tokens of all service accounts, and renews them.

    `token_url`, `sts_url`, `metadata_url` and Google's address of impersonation are the only ones
    that it calls. Trusts the machine's
    certificates, or `SSL_CERT_FILE`.
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
        self._now, self._clock_s = now, clock_s
        self._token_url, self._sts_url, self._metadata_url = token_url, sts_url, metadata_url
        self._tokens: dict[bytes, AccessToken] = {}
        self._exchanges: dict[bytes, asyncio.Task[AccessToken]] = {}
        self._failed: dict[bytes, tuple[float, str]] = {}

    async def token(self, deployment: Deployment) -> str:
        """Return a valid access token for a deployment; waits only if there is none yet.

        Raises `UpstreamAuth` with the reference of the credential, never its value.
        """
        try:
            return await self._token(deployment.api_key)
        except (SecretUnusable, TokenRefused) as problem:
            raise UpstreamAuth(
                f"The credential {deployment.api_key or AMBIENT} of deployment {deployment.name} "
                f"{problem}. Ask an admin. Nothing was sent."
            ) from None

    async def _token(self, reference: str | None) -> str:
        """Return a valid token of a credential, the platform's own without a reference. Raises
        `SecretUnusable` or `TokenRefused`.
        """
        named = _ambient_file() if reference is None else reference
        secret = "" if named is None else read_secret(named)
        key = sha256(f"{named}\n{secret}".encode()).digest()
        known, now_s = self._tokens.get(key), self._clock_s()
        is_valid = known is not None and now_s < known.ends_s - LAST_USE_S
        if known is not None and now_s < known.ends_s - RENEWAL_S:
            return known.text
        failed = self._failed.get(key)
        if failed is not None and now_s < failed[0] + RETRY_S:
            if known is not None and is_valid:
                return known.text
            raise TokenRefused(failed[1])
        exchange = self._exchanges.get(key) or self._start(key, secret)
        if known is not None and is_valid:
            return known.text
        # Shielded: one caller that leaves must not end the exchange that others wait for.
        return (await asyncio.shield(exchange)).text

    def _start(self, key: bytes, secret: str) -> asyncio.Task[AccessToken]:
        """Start the exchange for a credential's token, in a thread, and keep it until its end."""
        work = asyncio.to_thread(self._exchange, secret)
        exchange = asyncio.get_running_loop().create_task(work)
        self._exchanges[key] = exchange
        exchange.add_done_callback(lambda task: self._note_end(key, task))
        return exchange

    def _note_end(self, key: bytes, task: asyncio.Task[AccessToken]) -> None:
        """Keep the token of an ended exchange, or the time and reason of its failure."""
        del self._exchanges[key]
        if task.cancelled():
            return
        problem = task.exception()
        if problem is None:
            if len(self._tokens) >= MOST_KEYS:  # keys were rotated
                self._tokens.clear()
            self._tokens[key] = task.result()
            self._failed.pop(key, None)
            return
        is_known = isinstance(problem, TokenRefused | SecretUnusable)
        reason = str(problem) if is_known else "got no access token"
        if len(self._failed) >= MOST_KEYS:
            self._failed.clear()
        self._failed[key] = (self._clock_s(), reason)
        log.warning("google_token_refused", reason=reason)

    def _exchange(self, secret: str) -> AccessToken:
        """Return a new token. Blocks for a few seconds at most. Raises `TokenRefused`."""
        if not secret:
            return self._from_metadata_server()
        account = _account(secret)
        if account["type"] == WORKLOAD:
            return self._of_workload(account)
        if account.get("token_uri", self._token_url) != self._token_url:
            raise TokenRefused(f"names another token host than {self._token_url}")
        form = {"grant_type": GRANT, "assertion": self._statement(account)}
        return self._fetched("POST", self._token_url, FORM, urlencode(form).encode())

    def _of_workload(self, account: Mapping[str, Any]) -> AccessToken:
        """Return the token of a workload identity: the platform's statement in a file, exchanged at
        Google's token service, and for a service account's token if the file names one.
        """
        impersonation = account.get("service_account_impersonation_url")
        if account.get("token_url") != self._sts_url or not (
            impersonation is None or str(impersonation).startswith(IMPERSONATION)
        ):
            raise TokenRefused("names another token host than Google's")
        form = {
            "grant_type": EXCHANGE,
            "audience": str(account.get("audience")),
            "scope": SCOPE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token_type": str(account.get("subject_token_type")),
            "subject_token": _subject_token(account),
        }
        found = self._fetched("POST", self._sts_url, FORM, urlencode(form).encode())
        if impersonation is None:
            return found
        headers = {"authorization": f"Bearer {found.text}", "content-type": "application/json"}
        body = msgspec.json.encode({"scope": [SCOPE], "lifetime": f"{LIFETIME_S}s"})
        return self._fetched("POST", str(impersonation), headers, body)

    def _from_metadata_server(self) -> AccessToken:
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

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the trusted certificates when first needed."""
        return ssl.create_default_context()

    def _fetched(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes
    ) -> AccessToken:
        """Return the token in the answer to one request. Raises `TokenRefused`."""
        asked_s, parts = self._clock_s(), urlsplit(url)
        until_s = monotonic() + TIMEOUT_S
        sent = [
            ("host", parts.netloc),
            ("connection", "close"),
            ("content-length", str(len(body))),
            *headers.items(),
        ]
        received = bytearray()
        try:
            target = httpcore2.URL(url)
            stream = connect(parts, left_s=lambda: _left(until_s), tls=lambda: self._tls)
            with (
                httpcore2.HTTP11Connection(target.origin, stream) as connection,
                connection.stream(method, target, headers=sent, content=body) as answer,
            ):
                status = answer.status
                for piece in answer.iter_stream():
                    received += piece
                    if len(received) > MOST_BYTES:
                        raise TokenRefused(f"got an answer of more than {MOST_BYTES} bytes")
        except NETWORK_ERRORS as broken:
            raise TokenRefused(
                f"cannot be exchanged: {parts.hostname} does not answer ({type(broken).__name__})"
            ) from None
        return _token_in(status, bytes(received), asked_s=asked_s, host=parts.hostname or "")


def _ambient_file() -> str | None:
    """Return the reference to the key file that the platform names, None for the machine's own
    identity.
    """
    path = os.environ.get(KEY_FILE_VARIABLE)
    return f"file:{path}" if path else None


def _left(until_s: float) -> float:
    """Return the seconds until a time of the monotonic clock. Raises `TimeoutException` after
    it.
    """
    left_s = until_s - monotonic()
    if left_s <= 0:
        raise httpcore2.TimeoutException
    return left_s


def _token_in(status: int, body: bytes, *, asked_s: float, host: str) -> AccessToken:
    """Return the token in a token host's answer. Raises `TokenRefused`."""
    try:
        members = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        members = {}
    text, expires_s = members.get("access_token"), members.get("expires_in")
    if text is None and "accessToken" in members:  # a service account's, for the asked lifetime
        text, expires_s = members["accessToken"], LIFETIME_S
    if status != 200:
        error = members.get("error")
        reason = f", {error[:64]}" if isinstance(error, str) and error.isprintable() else ""
        raise TokenRefused(f"was refused by {host} (HTTP {status}{reason})")
    is_token = isinstance(text, str) and text.isascii() and text.isprintable() and bool(text)
    if not is_token or not isinstance(expires_s, int | float):
        raise TokenRefused(f"got no access token from {host}")
    # Google pads short tokens with dots on the metadata server, and takes them without.
    return AccessToken(str(text).rstrip("."), asked_s + min(max(expires_s, 0), LIFETIME_S))


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
