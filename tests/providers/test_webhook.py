"""The webhook over real sockets: signed as the specification requires, sent only to the declared
address, within seconds.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gateway.domain.alerts.delivery import NotDelivered
from gateway.domain.budgets.alerts import BudgetAlert, message_of, payload
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetScope
from gateway.domain.policy.policy import Alerts
from gateway.providers.alerts.webhook import REMEDY, Webhook, signed, signing_key
from tests.fakes import CountingListener
from tests.gateway_process import free_port
from tests.providers.authority import Authority
from tests.providers.scripted import OK, Peer, Script, Server, answering, serving

NOW = datetime(2026, 11, 20, 12, 0, 0, 700_000, tzinfo=UTC)
SECRET = b"thirty-two bytes that are secret"
ALERT = BudgetAlert(
    alert_id=UUID(int=7),
    account_id="payments/month",
    scope=BudgetScope.TEAM,
    team="payments",
    owner="payments",
    kind=BudgetKind.HARD,
    period=BudgetPeriod.MONTH,
    time_zone="UTC",
    starts_at=datetime(2026, 11, 1, tzinfo=UTC),
    ends_at=datetime(2026, 12, 1, tzinfo=UTC),
    threshold=Decimal("0.8"),
    limit_nusd=10**12,
    granted_nusd=0,
    spent_nusd=8 * 10**11,
    raised_at=NOW,
)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """Return a reference to a file with the secret."""
    path = tmp_path / "secret"
    path.write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    return f"file:{path}"


async def deliver(url: str, secret: str, *, timeout_s: float = 5.0) -> None:
    await Webhook(lambda: NOW, timeout_s=timeout_s).send(
        message_of(ALERT), Alerts(webhook=url, secret=secret)
    )


def parsed(request: bytes) -> tuple[str, dict[str, str], bytes]:
    """Return the first line, headers (names in lower case) and body of the received request."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    fields = (line.split(": ", 1) for line in rest)
    return first, {name.lower(): value for name, value in fields}, body


def verify(headers: dict[str, str], body: bytes, secret: str) -> dict[str, Any]:
    """Verify as docs/reference/alerts.md instructs receivers, without the gateway's own code."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert any(hmac.compare_digest(expected, one) for one in headers["webhook-signature"].split())
    return dict(json.loads(body))


async def test_a_receiver_can_verify_an_alerts_signature(secret: str) -> None:
    """Anyone who knows the address can post to it, but only the holder of the secret can sign."""
    async with serving(answering(OK)) as server:
        await deliver(f"http://127.0.0.1:{server.port}/alerts/x", secret)
    (request,) = server.requests
    first, headers, body = parsed(request)
    assert first == "POST /alerts/x HTTP/1.1"
    assert (headers["host"], headers["content-type"]) == (
        f"127.0.0.1:{server.port}",
        "application/json",
    )
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == (
        str(UUID(int=7)),
        str(int(NOW.timestamp())),
    )
    found = verify(headers, body, f"whsec_{base64.b64encode(SECRET).decode()}")
    assert (found["type"], found["id"], found["threshold"]) == (
        "budget.threshold",
        headers["webhook-id"],
        0.8,
    )
    assert list(found) == list(payload(ALERT))
    assert set(headers) == {
        "host",
        "user-agent",
        "content-type",
        "content-length",
        "connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }


def test_the_signature_is_that_of_the_specification() -> None:
    """The test uses the vector of the Standard Webhooks reference libraries."""
    headers = signed(
        b'{"test": 2432232314}',
        key=base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        alert_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        at=datetime.fromtimestamp(1614265330, UTC),
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    "status", ["200 OK", "201 Created", "202 Accepted", "204 No Content", "299 x", "200"]
)
async def test_any_2xx_is_delivered(secret: str, status: str) -> None:
    """Receivers use different success statuses; bytes after the head are not awaited."""
    answer = f"HTTP/1.1 {status}\r\ncontent-length: 1000000\r\n\r\n".encode()
    async with serving(answering(answer)) as server:
        await deliver(f"http://127.0.0.1:{server.port}/", secret)


async def test_informational_answers_are_skipped(secret: str) -> None:
    """An informational status such as 103 comes before the answer, and is not 2xx either."""
    answer = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    async with serving(answering(answer)) as server:
        await deliver(f"http://127.0.0.1:{server.port}/", secret)


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 410, 429, 500, 503])
async def test_anything_else_is_not(secret: str, status: int) -> None:
    """An error page does not mean that the alert was read; the status is reported, the page is
    not.
    """
    answer = f"HTTP/1.1 {status} No\r\ncontent-length: 6\r\n\r\nhidden".encode()
    async with serving(answering(answer)) as server:
        with pytest.raises(NotDelivered, match=f"^The webhook answered {status}\\. ") as raised:
            await deliver(f"http://127.0.0.1:{server.port}/token-in-the-path", secret)
    assert not {"hidden", "token"} & set(str(raised.value).replace("-", " ").split())


async def test_no_redirect_is_followed(secret: str) -> None:
    """Only the address in the policy may receive budgets; its receiver must not redirect them to
    another one.
    """
    elsewhere = CountingListener()
    try:
        location = f"http://127.0.0.1:{elsewhere.port}/"
        answer = (
            f"HTTP/1.1 308 Permanent Redirect\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
        ).encode()
        async with serving(answering(answer)) as server:
            with pytest.raises(NotDelivered, match="No redirect is followed"):
                await deliver(f"http://127.0.0.1:{server.port}/", secret)
        assert elsewhere.connections == 0
    finally:
        elsewhere.close()


async def test_proxies_of_the_environment_are_ignored(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that was set for other purposes would read every budget."""
    proxy = CountingListener()
    for name in (
        "HTTP_PROXY",
        "http_proxy",
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    try:
        async with serving(answering(OK)) as server:
            await deliver(f"http://127.0.0.1:{server.port}/", secret)
        assert proxy.connections == 0
    finally:
        proxy.close()


async def silent(peer: Peer) -> None:
    await peer.request()
    await peer.gone()


async def drips(peer: Peer) -> None:
    """Send a byte now and then, forever, so that no single wait is long."""
    await peer.request()
    while True:
        await peer.send(b"H")
        await asyncio.sleep(0.01)


async def hangs_up(peer: Peer) -> None:
    await peer.request()


async def cuts(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n")


async def resets(peer: Peer) -> None:
    await peer.request()
    peer.reset()


async def floods(peer: Peer) -> None:
    await peer.request()
    while True:
        await peer.send(b"x" * 65536)


async def long_head(peer: Peer) -> None:
    """Send headers forever, each of them valid."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n")
    while True:
        await peer.send(b"x-padding: " + b"x" * 65536 + b"\r\n")


async def babbles(peer: Peer) -> None:
    await peer.request()
    await peer.send(b"220 mail.example ESMTP\r\n\r\n")
    await peer.gone()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (silent, "The webhook did not answer within 0.3 s."),
        (drips, "The webhook did not answer within 0.3 s."),
        (hangs_up, "The webhook's answer was cut before the end of its head."),
        (cuts, "The webhook's answer was cut before the end of its head."),
        (resets, "The webhook could not be reached: ConnectionResetError."),
        (floods, "The webhook's answer has no end: its head was not complete after 100 KiB."),
        (long_head, "The webhook's answer has no end: its head was not complete after 100 KiB."),
        (babbles, "The webhook's answer is not HTTP."),
    ],
)
async def test_a_receiver_that_misbehaves_is_one_that_did_not_take_it(
    secret: str, script: Script, message: str
) -> None:
    """A receiver must not delay the next alert or end the job, and its connection is closed. The
    message names one fault and the page with its remedy.
    """
    async with serving(script) as server:
        with pytest.raises(NotDelivered) as raised:
            await deliver(
                f"http://127.0.0.1:{server.port}/",
                secret,
                timeout_s=0.3 if "0.3 s" in message else 60,  # a loaded machine is slow to cut
            )
        await none_open(server)
    assert str(raised.value) == f"{message} {REMEDY}"


async def none_open(server: Server) -> None:
    await server.until(lambda: server.open_connections == 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", f"{'a' * 64}.internal"])
async def test_a_receiver_that_is_not_there_is_one_that_did_not_take_it(
    secret: str, host: str
) -> None:
    """The connection is refused, or the name does not exist."""
    with pytest.raises(NotDelivered, match="could not be reached"):
        await deliver(f"http://{host}:{free_port()}/", secret)


async def test_the_reason_is_named_if_a_host_has_several_addresses(secret: str) -> None:
    """Both of localhost's addresses refuse; "several errors" would help no operator."""
    with pytest.raises(NotDelivered, match=r"could not be reached: ConnectionRefusedError\. See "):
        await deliver(f"http://localhost:{free_port()}/", secret)


async def test_an_address_is_never_logged(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    """Chat systems put a token into a webhook's path; libraries log addresses at level INFO."""
    caplog.set_level(logging.DEBUG)
    async with serving(answering(OK)) as server:
        await deliver(f"http://127.0.0.1:{server.port}/token-in-the-path", secret)
    assert "receive_response_headers" in caplog.text  # the library's own lines are captured
    assert "token-in-the-path" not in caplog.text


async def test_cancelling_lets_the_connection_go(secret: str) -> None:
    """A gateway that stops must not wait for a receiver."""
    async with serving(silent) as server:
        sending = asyncio.create_task(deliver(f"http://127.0.0.1:{server.port}/", secret))
        await server.until(lambda: server.requests != [] or server.connections == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await none_open(server)


async def test_a_certificate_of_the_trusted_authority_works(
    authority: Authority, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private authority is added through SSL_CERT_FILE, as for providers."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with serving(answering(OK), tls=authority.server("good")) as server:
        await deliver(f"https://localhost:{server.port}/", secret)
    assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["expired", "wrong-host", "self-signed"])
async def test_a_bad_certificate_gets_nothing(
    authority: Authority, secret: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS is never downgraded, and no byte of the alert is sent."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    async with serving(answering(OK), tls=authority.server(kind)) as server:
        with pytest.raises(NotDelivered, match=r"could not be reached: SSLCertVerificationError\."):
            await deliver(f"https://localhost:{server.port}/", secret)
        assert server.requests == []


def test_a_secret_is_base64_behind_its_prefix_and_else_as_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Receivers use the specification's libraries or a few lines of their own; both must derive
    the same key.
    """
    monkeypatch.setenv("A_SECRET", f" whsec_{base64.b64encode(SECRET).decode()}\n")
    assert signing_key("env:A_SECRET") == SECRET
    monkeypatch.setenv("A_SECRET", "a plain secret")
    assert signing_key("env:A_SECRET") == b"a plain secret"


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (None, "is empty or not set"),
        (" ", "is empty or not set"),
        ("whsec_n/base64!", "is not base64"),
        ("whsec_", "is not base64"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_named_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str | None, what: str
) -> None:
    """An unsigned alert is not sent; the message names the variable, and is kept in finance's
    view.
    """
    monkeypatch.delenv("A_SECRET", raising=False)
    if value is not None:
        monkeypatch.setenv("A_SECRET", value)
    listener = CountingListener()
    try:
        with pytest.raises(
            NotDelivered, match=f"^The alerts' secret env:A_SECRET {what}"
        ) as raised:
            await deliver(f"http://127.0.0.1:{listener.port}/", "env:A_SECRET")
        assert listener.connections == 0
    finally:
        listener.close()
    assert "n/base64!" not in str(raised.value)


def test_a_secret_s_file_is_read_each_time(tmp_path: Path) -> None:
    """A rotated secret needs no restart; a missing or unreadable file is named in the error."""
    path = tmp_path / "secret"
    for value in ("one", "two"):
        path.write_text(value)
        assert signing_key(f"file:{path}") == value.encode()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(NotDelivered, match=r"is not text where the gateway runs"):
        signing_key(f"file:{path}")
    path.unlink()
    with pytest.raises(
        NotDelivered, match=rf"file:{path} cannot be read \(No such file or directory\) where"
    ):
        signing_key(f"file:{path}")
