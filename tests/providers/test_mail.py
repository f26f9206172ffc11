"""Mail over real sockets, to a real SMTP server: encrypted off this machine, within its deadline,
and without a word of the server or the password in an error.
"""

from __future__ import annotations

import asyncio
import email
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import policy as mail_policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from gateway.domain.alerts.delivery import AlertMessage, NotDelivered
from gateway.domain.alerts.mail import MailAccount, MailServer
from gateway.domain.policy.policy import Alerts
from gateway.providers.alerts.mail import REMEDY, Mail, mail_problem
from tests.gateway_process import free_port
from tests.providers.authority import Authority
from tests.providers.scripted import Peer, Script, serving

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
# This machine by an address that is not a loopback one, so TLS is required.
NETWORK = "0.0.0.0"
PASSWORD = "correct horse"
MESSAGE = AlertMessage(
    alert_id=UUID(int=7),
    raised_at=NOW,
    about="budget payments/month at 80%",
    text="Budget payments/month has reached 80% of its limit.\ntollgate key pause k1",
    payload={},
)
TO = Alerts(email=("finops@example.com", "ana@example.org"))


@dataclass
class Postbox:
    """The handler of a real SMTP server: keeps mails, and refuses addresses that a test names."""

    mails: list[EmailMessage] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)
    answer: str = "250 kept"
    dies_in_data: bool = False

    async def handle_RCPT(  # noqa: N802 - the server's name
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address in self.refused:
            return f"550 no {address} here, {PASSWORD}"
        envelope.rcpt_tos.append(address)
        return "250 known"

    async def handle_DATA(  # noqa: N802 - the server's name
        self, server: SMTP, session: Session, envelope: Envelope
    ) -> str:
        if self.dies_in_data:
            assert server.transport is not None
            server.transport.abort()
            return "421 gone"
        content = envelope.content
        assert isinstance(content, bytes)
        parsed = email.message_from_bytes(content, policy=mail_policy.default)
        assert isinstance(parsed, EmailMessage)
        if self.answer.startswith("250"):
            self.mails.append(parsed)
            self.encrypted.append(session.ssl is not None)
        return self.answer

    def authenticate(
        self, server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: Any
    ) -> AuthResult:
        assert isinstance(data, LoginPassword)
        self.users.append(data.login.decode())
        is_right = data.password == PASSWORD.encode()
        return AuthResult(success=is_right, handled=is_right)  # else the server answers 535


@pytest.fixture
def postbox() -> Postbox:
    return Postbox()


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return an authority that the mail's sender trusts, as an operator adds one."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    return made


@pytest.fixture
def start(postbox: Postbox) -> Iterator[Any]:
    """Yield a function that starts a server with this handler and returns its port."""
    running: list[Controller] = []

    def begin(**options: Any) -> int:
        port = free_port()
        server = Controller(postbox, hostname="127.0.0.1", port=port, **options)
        server.start()
        running.append(server)
        return port

    yield begin
    for server in running:
        server.stop()


def account(
    port: int,
    *,
    host: str = "127.0.0.1",
    user: str | None = None,
    is_tls: bool = False,
    **more: Any,
) -> MailAccount:
    server = MailServer(host=host, port=port, is_tls=is_tls, user=user)
    return MailAccount(server=server, sender="tollgate@example.com", **{"password": None} | more)


@pytest.fixture
def password(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    return f"file:{path}"


async def test_a_mail_reaches_every_address(start: Any, postbox: Postbox) -> None:
    """One mail with the text, the command on its own line, and an id that repetitions share."""
    mail = Mail(account(start()))
    assert [await mail.send(MESSAGE, TO) for _ in range(2)] == [None, None]
    first, again = postbox.mails
    assert first["To"] == "finops@example.com, ana@example.org"
    assert (first["From"], first["Subject"]) == (
        "tollgate@example.com",
        "Tollgate: budget payments/month at 80%",
    )
    assert first.get_content().splitlines()[:2] == MESSAGE.text.splitlines()
    assert first["Message-ID"] == f"<{UUID(int=7)}@example.com>"
    assert first.as_bytes() == again.as_bytes()


async def test_names_make_no_header(start: Any, postbox: Postbox) -> None:
    """A name with newlines, or in another script, is one line of the subject and nothing else."""
    about = "budget zażółć\r\nBcc: thief@example.com\n\nHi\u2028there " + "x" * 500
    await Mail(account(start())).send(
        AlertMessage(
            alert_id=UUID(int=8), raised_at=NOW, about=about, text=f"{about}\n.\nend", payload={}
        ),
        TO,
    )
    (mail,) = postbox.mails
    assert mail["Bcc"] is None
    assert set(mail.keys()) >= {"From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"}
    assert mail["Subject"].startswith("Tollgate: budget zażółć Bcc: thief@example.com Hi there xxx")
    assert "\n.\nend" in mail.get_content()  # a line with a dot alone would end the mail


async def test_off_this_machine_the_mail_is_encrypted(
    start: Any, postbox: Postbox, authority: Authority, password: str
) -> None:
    """The certificate is verified, and the password goes through TLS alone."""
    port = start(
        tls_context=authority.server("this-machine"),
        authenticator=postbox.authenticate,
        auth_required=True,
    )
    to = account(port, host=NETWORK, user="ops@example.com", password=password)
    assert await Mail(to).send(MESSAGE, TO) is None
    assert (postbox.encrypted, postbox.users) == ([True], ["ops@example.com"])
    assert mail_problem(to) is None
    assert len(postbox.mails) == 1


async def test_a_server_without_starttls_gets_nothing(
    start: Any, postbox: Postbox, password: str
) -> None:
    """Somebody between could take the offer of STARTTLS out of the answer."""
    port = start(authenticator=postbox.authenticate, auth_require_tls=False)
    to = account(port, host=NETWORK, user="ops", password=password)
    with pytest.raises(NotDelivered, match="offers no STARTTLS"):
        await Mail(to).send(MESSAGE, TO)
    assert (postbox.mails, postbox.users) == ([], [])


@pytest.mark.parametrize("kind", ["expired", "wrong-host", "self-signed"])
async def test_a_bad_certificate_gets_no_mail(
    start: Any, postbox: Postbox, authority: Authority, kind: str
) -> None:
    """TLS is never downgraded."""
    port = start(tls_context=authority.server(kind))
    with pytest.raises(NotDelivered, match=r"could not be reached: SSLCertVerificationError\."):
        await Mail(account(port, host=NETWORK)).send(MESSAGE, TO)
    assert postbox.mails == []


async def test_smtps_is_tls_from_the_first_byte(
    start: Any, postbox: Postbox, authority: Authority
) -> None:
    """Port 465 speaks TLS before SMTP."""
    port = start(ssl_context=authority.server("good"))
    assert await Mail(account(port, is_tls=True)).send(MESSAGE, TO) is None
    with pytest.raises(NotDelivered, match="SSLCertVerificationError"):
        await Mail(account(port, host=NETWORK, is_tls=True)).send(MESSAGE, TO)
    assert len(postbox.mails) == 1


async def test_a_wrong_password_is_named_and_not_shown(
    start: Any, postbox: Postbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is read at each try, so a rotated password needs no restart."""
    caplog.set_level(logging.DEBUG)
    port = start(authenticator=postbox.authenticate, auth_require_tls=False, auth_required=True)
    path = tmp_path / "password"
    mail = Mail(account(port, user="ops", password=f"file:{path}"))
    with pytest.raises(NotDelivered, match="cannot be read"):
        await mail.send(MESSAGE, TO)
    for wrong, message in (
        ("hunter2", "answered 535 to the sign-in"),
        ("pässword", "is not ASCII"),
    ):
        path.write_text(wrong)
        with pytest.raises(NotDelivered, match=message) as raised:
            await mail.send(MESSAGE, TO)
        assert wrong not in str(raised.value) + caplog.text
        assert raised.value.__cause__ is None
    path.write_text(PASSWORD)
    assert await mail.send(MESSAGE, TO) is None
    assert PASSWORD not in caplog.text


async def test_a_refused_address_costs_the_others_nothing(start: Any, postbox: Postbox) -> None:
    """The mail reaches who can be reached, once, and the refused address is named; without any
    the alert is tried again. The server's words are not quoted.
    """
    mail = Mail(account(start()))
    postbox.refused = {"ana@example.org"}
    assert await mail.send(MESSAGE, TO) == "The mail server refused ana@example.org (550)."
    postbox.refused = set(TO.email)
    with pytest.raises(NotDelivered) as raised:
        await mail.send(MESSAGE, TO)
    assert str(raised.value) == (
        f"The mail server refused finops@example.com (550), ana@example.org (550). {REMEDY}"
    )
    assert len(postbox.mails) == 1


async def test_a_server_that_refuses_or_dies_in_the_mail_has_not_got_it(
    start: Any, postbox: Postbox
) -> None:
    """Only its answer to the whole mail counts."""
    mail = Mail(account(start()))
    postbox.answer = f"452 full, {PASSWORD}"
    with pytest.raises(NotDelivered, match=f"^The mail server answered 452. {REMEDY}$"):
        await mail.send(MESSAGE, TO)
    postbox.dies_in_data = True
    with pytest.raises(NotDelivered, match="ended the connection before it took the mail"):
        await mail.send(MESSAGE, TO)
    assert postbox.mails == []


async def silent(peer: Peer) -> None:
    await peer.gone()


async def drips(peer: Peer) -> None:
    """Send a byte now and then, so that no single wait is long."""
    while True:
        await peer.send(b"2")
        await asyncio.sleep(0.02)


async def greets_for_ever(peer: Peer) -> None:
    """Send lines of one answer that never ends."""
    while True:
        await peer.send(b"220-" + b"x" * 1000 + b"\r\n")


async def one_line_for_ever(peer: Peer) -> None:
    while True:
        await peer.send(b"x" * 65536)


async def hangs_after_the_greeting(peer: Peer) -> None:
    await peer.send(b"220 mail.example ESMTP\r\n")
    await peer.gone()


async def is_busy(peer: Peer) -> None:
    await peer.send(b"554 go away\r\n")
    await peer.gone()


async def is_no_mail_server(peer: Peer) -> None:
    await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")


TOO_LATE = "did not take the mail within 0.4 s"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (silent, TOO_LATE),
        (drips, TOO_LATE),
        (hangs_after_the_greeting, TOO_LATE),
        (greets_for_ever, "answers have no end"),
        (one_line_for_ever, "answers have no end"),
        (is_busy, "answered 554"),
        (is_no_mail_server, "is not SMTP"),
    ],
)
async def test_a_hostile_server_ends_at_the_deadline(script: Script, message: str) -> None:
    """No server holds a try, the event loop or memory. The deadline is one for all steps."""
    async with serving(script) as server:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.01)

        counting = asyncio.create_task(count())
        with pytest.raises(NotDelivered, match=message):
            await Mail(account(server.port), timeout_s=0.4).send(MESSAGE, TO)
        counting.cancel()
        assert turns > 1 or message != TOO_LATE


async def test_a_tls_handshake_that_hangs_ends_at_the_deadline(authority: Authority) -> None:
    """The handshake is a step of its own, in which no line is read."""
    async with serving(silent) as server:
        to = account(server.port, is_tls=True)
        with pytest.raises(NotDelivered, match=TOO_LATE):
            await Mail(to, timeout_s=0.4).send(MESSAGE, TO)


async def test_a_mail_that_cannot_be_sent_names_the_setting() -> None:
    """Nothing is lost until the operator sets it."""
    with pytest.raises(NotDelivered, match="TOLLGATE_SMTP_URL is not set"):
        await Mail(None).send(MESSAGE, TO)
    with pytest.raises(NotDelivered, match="TOLLGATE_SMTP_PASSWORD_FILE is not set"):
        await Mail(account(1, user="ops")).send(MESSAGE, TO)
    with pytest.raises(NotDelivered, match="could not be reached: ConnectionRefusedError"):
        await Mail(account(free_port())).send(MESSAGE, TO)


async def test_a_gateway_that_stops_ends_the_try() -> None:
    """Its thread must not outlive the process's own time to stop."""
    async with serving(silent) as server:
        mail = Mail(account(server.port), timeout_s=600)
        sending = asyncio.create_task(mail.send(MESSAGE, TO))
        await server.until(lambda: server.open_connections == 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        async with asyncio.timeout(20):
            await asyncio.to_thread(mail._thread.shutdown)
