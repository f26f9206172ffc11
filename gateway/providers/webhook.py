"""Posts budget alerts to the policy's webhook, signed by Standard Webhooks.

No content leaves here, so no permit is needed.

It does not use the HTTP client for content. It follows no redirect, uses no proxy of the
environment, and has no switch for TLS verification: an alert goes to the declared address or is not
sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from gateway.domain.budgets.alerts import BudgetAlert, NotDelivered, payload
from gateway.domain.policy.policy import Alerts
from gateway.domain.routing.decide import DEFAULT_PORTS

TIMEOUT_S = 5.0  # for everything: address, connection, request and the head of the answer
SECRET_PREFIX = "whsec_"  # noqa: S105 - marks a secret in base64; it is not one itself
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")


class Webhook:
    """Sends alerts, each on a new connection.

    Trusts the machine's certificates, or `SSL_CERT_FILE`.
    """

    def __init__(self, now: Callable[[], datetime], *, timeout_s: float = TIMEOUT_S) -> None:
        self._now, self._timeout_s = now, timeout_s
        self._tls = ssl.create_default_context()

    async def send(self, alert: BudgetAlert, alerts: Alerts) -> None:
        """Deliver one alert: the receiver answered 2xx in time. Raises `NotDelivered`."""
        key = await asyncio.to_thread(signing_key, alerts.secret)
        body = msgspec.json.encode(payload(alert))
        status = await self._post(
            alerts.webhook,
            signed(body, key=key, alert_id=str(alert.alert_id), at=self._now()),
            body,
        )
        if 300 <= status < 400:
            raise NotDelivered(
                f"The webhook answered {status}. No redirect is followed: declare the address "
                "it leads to."
            )
        if not 200 <= status < 300:
            raise NotDelivered(f"The webhook answered {status}.")

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> int:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        head = _head(parts.path or "/", parts.netloc, headers, length=len(body))
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(
                    parts.hostname,
                    parts.port or DEFAULT_PORTS[parts.scheme],
                    ssl=self._tls if is_tls else None,
                )
                try:
                    writer.write(head + body)
                    return await _status(reader)
                finally:
                    writer.close()
        except TimeoutError:
            raise NotDelivered(
                f"The webhook did not answer within {self._timeout_s:g} s."
            ) from None
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise NotDelivered("The webhook's answer was cut, or has no end.") from None
        except (OSError, UnicodeError) as broken:  # UnicodeError: an invalid host name
            raise NotDelivered(
                f"The webhook could not be reached: {type(broken).__name__}."
            ) from None


def signing_key(reference: str) -> bytes:
    """Return a reference's signing key, read now, so that a rotated secret needs no restart.

    Raises `NotDelivered`.

    After `whsec_` it is base64, as in the specification; any other text is used unchanged.
    """
    kind, _, name = reference.partition(":")
    try:
        secret = os.environ.get(name, "") if kind == "env" else Path(name).expanduser().read_text()
    except (OSError, ValueError) as broken:
        raise NotDelivered(
            _unusable(reference, getattr(broken, "strerror", None) or "cannot be read")
        ) from None
    secret = secret.strip()
    if not secret:
        raise NotDelivered(_unusable(reference, "is empty or not set"))
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
    """Return the headers that prove a body's sender and time (Standard Webhooks 1.0.0, symmetric
    scheme).
    """
    timestamp = str(int(at.timestamp()))
    digest = hmac.digest(key, f"{alert_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": alert_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


async def _status(reader: asyncio.StreamReader) -> int:
    """Return the answer's status, after informational answers (1xx).

    Raises the errors of `readuntil`, or `NotDelivered`.
    """
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        found = _STATUS.match(head)
        if found is None:
            raise NotDelivered("The webhook's answer is not HTTP.")
        if found[1] >= b"200":
            return int(found[1])


def _head(path: str, host: str, headers: Mapping[str, str], *, length: int) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        "user-agent: tollgate",
        "content-type: application/json",
        f"content-length: {length}",
        "connection: close",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _unusable(reference: str, what: str) -> str:
    return (
        f"The alerts' secret {reference} {what} where the gateway runs. Set it; the alert "
        "is sent again."
    )
