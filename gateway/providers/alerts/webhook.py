"""Posts one alert to the policy's webhook, signed by Standard Webhooks, or raises
`NotDelivered`; `services/ledger/alert_channel.py` retries.

No content leaves here, so no permit is needed.

It does not use the HTTP client for content. It follows no redirect, keeps no cookie, uses no proxy
of the environment, and has no switch for TLS verification: an alert goes to the declared address or
is not sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from http import HTTPStatus

import httpx2
import msgspec

from gateway.domain.alerts.delivery import AlertMessage, NotDelivered
from gateway.domain.policy.policy import Alerts
from gateway.providers.credentials import SecretUnusable, read_secret

TIMEOUT_S = 5.0  # for everything: address, connection, request and the head of the answer
HEADERS = {
    "user-agent": "tollgate",
    "content-type": "application/json",
    "connection": "close",
}
REMEDY = "See docs/runbooks/budget-alerts.md; it is tried again."
SECRET_PREFIX = "whsec_"  # noqa: S105 - marks a secret in base64; it is not one itself


class Webhook:
    """Sends alerts to their receiver, each on a new connection.

    Trusts the machine's certificates, or `SSL_CERT_FILE`.
    """

    def __init__(self, now: Callable[[], datetime], *, timeout_s: float = TIMEOUT_S) -> None:
        """Make the sender; `now` dates the signatures, and `timeout_s` bounds each delivery."""
        self._now, self._timeout_s = now, timeout_s

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the trusted certificates when first needed: it takes 20 ms."""
        return ssl.create_default_context()

    async def send(self, message: AlertMessage, alerts: Alerts) -> None:
        """Deliver one alert: the receiver answered 2xx in time. Raises `NotDelivered`."""
        assert alerts.webhook is not None, "the channel is open only with a receiver"
        assert alerts.secret is not None, "a valid policy has both or neither"
        await self.post(message, alerts.webhook, secret=alerts.secret)

    async def post(self, message: AlertMessage, url: str, *, secret: str | None) -> None:
        """Deliver a message to an address, signed if there is a reference to a secret. Raises
        `NotDelivered`.
        """
        alert_id = str(message.alert_id)
        body = msgspec.json.encode(message.payload)
        headers = {"webhook-id": alert_id}
        if secret is not None:
            key = await asyncio.to_thread(signing_key, secret)
            headers = signed(body, key=key, alert_id=alert_id, at=self._now())
        status = await self._post(url, headers, body)
        if 300 <= status < 400:
            raise NotDelivered(
                f"The webhook answered {status}. No redirect is followed: declare the address "
                "it leads to."
            )
        if not 200 <= status < 300:
            raise NotDelivered(f"The webhook answered {status}. {REMEDY}")

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        """Post a body to the receiver and return the answer's status. The answer's body is not
        read.
        """
        try:
            request = httpx2.Request("POST", url, headers={**HEADERS, **headers}, content=body)
            # On an event loop of its own: informational answers without end, which come in pieces
            # of 64 KiB, took up to 109 ms of CPU on the gateway's loop each.
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.to_thread(lambda: asyncio.run(self._status(request)))
        except TimeoutError:
            raise NotDelivered(
                f"The webhook did not answer within {self._timeout_s:g} s. {REMEDY}"
            ) from None
        except httpx2.RemoteProtocolError as broken:
            raise NotDelivered(f"The webhook's answer {_fault(broken)}. {REMEDY}") from None
        except (httpx2.TransportError, httpx2.InvalidURL, OSError, UnicodeError) as broken:
            raise NotDelivered(
                f"The webhook could not be reached: {type(_cause(broken)).__name__}. {REMEDY}"
            ) from None

    async def _status(self, request: httpx2.Request) -> int:
        """Send one HTTP request within the time limit and return the answer's status."""
        # The transport alone: a client adds headers, and logs the address, which may hold a token.
        async with (
            asyncio.timeout(self._timeout_s),
            httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport,
        ):
            answer = await transport.handle_async_request(request)
            await answer.aclose()
            return answer.status_code


def signing_key(reference: str) -> bytes:
    """Return the signing key that a reference names, read now, so that a rotated secret needs no
    restart.

    Raises `NotDelivered`.

    After `whsec_` it is base64, as in the specification; any other text is used unchanged.
    """
    try:
        secret = read_secret(reference)
    except SecretUnusable as problem:
        raise NotDelivered(_unusable(reference, str(problem))) from None
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if not key:
        raise NotDelivered(_unusable(reference, f"is not base64 behind {SECRET_PREFIX}"))
    return key


def signed(body: bytes, *, key: bytes, alert_id: str, at: datetime) -> dict[str, str]:
    """Return the headers that prove an alert's sender and time (Standard Webhooks 1.0.0, symmetric
    scheme).
    """
    timestamp = str(int(at.timestamp()))
    digest = hmac.digest(key, f"{alert_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": alert_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def _fault(broken: httpx2.RemoteProtocolError) -> str:
    """Return the fault in the head of a receiver's answer, by the status that its parser would send
    a client.

    There is none if no byte was wrong and the connection ended.
    """
    match getattr(_cause(broken), "error_status_hint", None):
        case None:
            return "was cut before the end of its head"
        case HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            return "has no end: its head was not complete after 100 KiB"
        case _:
            return "is not HTTP"


def _cause(error: BaseException) -> BaseException:
    """Return the first error of a chain, such as a certificate that is not valid."""
    while isinstance(error, BaseExceptionGroup):  # one error for each address of a host
        error = error.exceptions[0]
    before = error.__cause__ or error.__context__
    return error if before is None else _cause(before)


def _unusable(reference: str, what: str) -> str:
    """Return the message for an alert whose signing secret cannot be used."""
    return (
        f"The alerts' secret {reference} {what} where the gateway runs. Set it; the alert "
        "is tried again."
    )
