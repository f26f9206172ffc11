"""Sends one alert by mail to the policy's addresses, or raises `NotDelivered`;
`services/ledger/alert_channel.py` retries.

Off this machine a mail goes only through TLS with a certificate that verifies. A server cannot hold
a try beyond its deadline, whether it is silent, drips, or answers without end, nor fill memory. No
text of the server is quoted: an answer to a sign-in may repeat the password.
"""

from __future__ import annotations

import asyncio
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.message import EmailMessage
from email.policy import SMTP
from functools import cached_property, partial

from gateway.domain.alerts.composed_mail import compose
from gateway.domain.alerts.delivery import AlertMessage, NotDelivered
from gateway.domain.alerts.mail import MailAccount, MailServer
from gateway.domain.policy.policy import Alerts
from gateway.providers.credentials import SecretUnusable, read_secret

TIMEOUT_S = 10.0  # for everything: address, connection, TLS, sign-in, and the answer to the mail
LATEST_ANSWER_S = 2.0  # an address may be looked up for longer than its deadline, in its thread
PROBE_S = 5.0
QUIT_S = 0.5  # the mail is accepted by then
OK_GREETING = 220
MOST_ANSWER_BYTES = 64 * 1024
REMEDY = "See docs/runbooks/budget-alerts.md; it is tried again."


class Mail:
    """Sends alerts by mail, each on a new connection.

    Trusts the machine's certificates, or `SSL_CERT_FILE`.
    """

    def __init__(self, account: MailAccount | None, *, timeout_s: float = TIMEOUT_S) -> None:
        """Make the sender. Without an account each try names the missing setting."""
        self._account, self._timeout_s = account, timeout_s
        # One thread: a lookup of an address that hangs holds up mails alone, and one at a time.
        self._thread = ThreadPoolExecutor(1, "alert-mail")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """Load the trusted certificates when first needed: it takes 20 ms."""
        return ssl.create_default_context()

    async def send(self, message: AlertMessage, alerts: Alerts) -> str | None:
        """Deliver one alert: the server accepted it for at least one address.

        Returns the refused addresses in words, None if none was. Raises `NotDelivered`.
        """
        return await self.mail(message, alerts.email)

    async def mail(self, message: AlertMessage, recipients: Sequence[str]) -> str | None:
        """Deliver a message to addresses, as `send` does."""
        account = self._account
        if account is None:
            raise NotDelivered(
                "TOLLGATE_SMTP_URL is not set where the gateway runs. Set it; the alert is sent "
                "again."
            )
        mail = compose(message, sender=account.sender, recipients=recipients)
        until_s = time.monotonic() + self._timeout_s
        session = MailSession(account.server, tls=lambda: self._tls, until_s=until_s)
        deliver = partial(self._deliver, session, mail, account, recipients)
        try:
            async with asyncio.timeout(self._timeout_s + LATEST_ANSWER_S):
                refused = await asyncio.get_running_loop().run_in_executor(self._thread, deliver)
        except TimeoutError:
            raise self._too_late() from None
        except asyncio.CancelledError:
            session.abort()  # else the process would wait for the thread before it ends
            raise
        return _refused(refused) if refused else None

    def _deliver(
        self,
        session: MailSession,
        mail: EmailMessage,
        account: MailAccount,
        recipients: Sequence[str],
    ) -> Mapping[str, int]:
        """Send a mail and return the refused addresses with the server's status. Raises
        `NotDelivered`.
        """
        password = _password(account)
        try:
            session.open(password)
            answers = session.sendmail(account.sender, recipients, mail.as_bytes(policy=SMTP))
            session.end(time.monotonic() + QUIT_S)
            return {address: status for address, (status, _) in answers.items()}
        except (OSError, EndlessAnswer, UnicodeError) as broken:  # smtplib's errors are OSErrors
            if session.is_over:
                raise self._too_late() from None
            raise NotDelivered(f"{_fault(broken)} {REMEDY}") from None
        finally:
            session.close()

    def _too_late(self) -> NotDelivered:
        """Return the error of a try that reached its deadline."""
        return NotDelivered(
            f"The mail server did not take the mail within {self._timeout_s:g} s. {REMEDY}"
        )


def mail_problem(account: MailAccount, *, timeout_s: float = PROBE_S) -> str | None:
    """Return the reason that the account could not mail an alert, None if it could: connect, sign
    in, and send nothing.
    """
    until_s = time.monotonic() + timeout_s
    session = MailSession(account.server, tls=ssl.create_default_context, until_s=until_s)
    try:
        session.open(_password(account))
        session.end(until_s)
    except NotDelivered as problem:
        return str(problem)
    except (OSError, EndlessAnswer, UnicodeError) as broken:
        return _fault(broken)
    finally:
        session.close()
    return None


class MailSession(smtplib.SMTP):
    """A connection to a mail server with one deadline over every step, in seconds of
    `time.monotonic`.

    It raises `TimeoutError` or `SMTPException` at the deadline.
    """

    def __init__(
        self, server: MailServer, *, tls: Callable[[], ssl.SSLContext], until_s: float
    ) -> None:
        super().__init__(local_hostname="localhost")  # without a host it connects to nothing
        self._server, self._tls, self._until_s = server, tls, until_s

    def open(self, password: str | None) -> None:
        """Connect, start TLS unless the server is on this machine, and sign in if it has a user."""
        self._host = self._server.host  # smtplib verifies the certificate of STARTTLS for it
        status, greeting = self.connect(self._server.host, self._server.port)
        if status != OK_GREETING:
            raise smtplib.SMTPConnectError(status, greeting)
        assert self.sock is not None, "connect has opened it"
        # RFC 5321 §4.1.3: the address, because a full name would have to be looked up.
        own = self.sock.getsockname()[0]
        self.local_hostname = f"[IPv6:{own}]" if ":" in own else f"[{own}]"
        if not self._server.is_tls and not self._server.is_loopback:
            self.starttls(context=self._tls())
        if self._server.user is not None and password is not None:
            self.login(self._server.user, password)

    def end(self, until_s: float) -> None:
        """Say goodbye until then; a server that does not answer has the mail all the same."""
        self._until_s = min(self._until_s, until_s)
        with suppress(OSError, EndlessAnswer):
            self.quit()

    @property
    def is_over(self) -> bool:
        """Return True after the deadline."""
        return time.monotonic() >= self._until_s

    def abort(self) -> None:
        """End the session from another thread: its next step fails, and so does a read that
        waits.
        """
        self._until_s = 0.0
        sock = self.sock
        with suppress(OSError):
            if sock is not None:
                # Not the method of an encrypted socket, whose other half is in use.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def getreply(self) -> tuple[int, bytes]:
        """Return one answer of the server, bounded in time and size."""
        if self.file is None:
            assert self.sock is not None, "an answer comes through a connection"
            self.file = Answers(self.sock, self._left_s)
        reply = super().getreply()
        if self.sock is not None:
            self.sock.settimeout(self._left_s())  # for what is sent next, and for STARTTLS
        return reply

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Return a connection to the first address of the server that answers. `smtplib` calls
        this.
        """
        problem: OSError | None = None
        for kind, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            found = socket.socket(kind, socket.SOCK_STREAM)
            try:
                found.settimeout(self._left_s())
                found.connect(address)
                if not self._server.is_tls:
                    return found
                found.settimeout(self._left_s())
                return self._tls().wrap_socket(found, server_hostname=host)
            except OSError as broken:
                found.close()
                problem = broken
        raise problem or OSError("the host has no address")

    def _left_s(self) -> float:
        """Return the time that is left, above 0. Raises `TimeoutError`."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the deadline is over")
        return left_s


class Answers:
    """The lines of a server's answers. Takes the place of a file in `smtplib`, whose reads of a
    line are bounded in neither time nor number.
    """

    def __init__(self, sock: socket.socket, left_s: Callable[[], float]) -> None:
        self._sock, self._left_s = sock, left_s
        self._waiting, self._read = b"", 0

    def readline(self, most: int) -> bytes:
        """Return the next line, empty at the end.

        Raises `OSError`, or `EndlessAnswer` for more than `most` bytes.
        """
        while b"\n" not in self._waiting:
            if len(self._waiting) >= most:
                raise EndlessAnswer
            self._sock.settimeout(self._left_s())
            piece = self._sock.recv(4096)
            self._read += len(piece)
            if self._read > MOST_ANSWER_BYTES:
                raise EndlessAnswer
            if not piece:
                break
            self._waiting += piece
        end = self._waiting.find(b"\n") + 1 or len(self._waiting)
        line, self._waiting = self._waiting[:end], self._waiting[end:]
        return line

    def close(self) -> None:
        """Do nothing: the session closes its socket."""


class EndlessAnswer(Exception):
    """The server's answers have no end. It is no `OSError`, which smtplib takes for a lost
    connection.
    """


def _password(account: MailAccount) -> str | None:
    """Return the password of the account, read now, so that a rotated one needs no restart. Raises
    `NotDelivered`.
    """
    if account.server.user is None:
        return None
    if account.password is None:
        raise NotDelivered(
            "TOLLGATE_SMTP_PASSWORD_FILE is not set where the gateway runs, and the mail server's "
            "URL names a user. Set it; it is tried again."
        )
    try:
        return read_secret(account.password)
    except SecretUnusable as problem:
        raise NotDelivered(
            f"The mail server's password {account.password} {problem} where the gateway runs. "
            "Set it; it is tried again."
        ) from None


def _fault(broken: Exception) -> str:
    """Return a failed try in a sentence, without any text of the server."""
    match broken:
        case smtplib.SMTPResponseException(smtp_code=-1):
            return "The mail server's answer is not SMTP."
        case smtplib.SMTPNotSupportedError():
            return "The mail server offers no STARTTLS, or no sign-in that is known."
        case smtplib.SMTPAuthenticationError(smtp_code=code):
            return f"The mail server answered {code} to the sign-in."
        case smtplib.SMTPSenderRefused(smtp_code=code, sender=sender):
            return f"The mail server answered {code} to the sender {sender}."
        case smtplib.SMTPRecipientsRefused(recipients=answers):
            return _refused({address: code for address, (code, _) in answers.items()})
        case smtplib.SMTPResponseException(smtp_code=code):
            return f"The mail server answered {code}."
        case EndlessAnswer():
            return "The mail server's answers have no end."
        case smtplib.SMTPServerDisconnected():
            return "The mail server ended the connection before it took the mail."
        case UnicodeError():
            return "The mail server's password is not ASCII, which its sign-in needs."
        case _:
            return f"The mail server could not be reached: {type(broken).__name__}."


def _refused(answers: Mapping[str, int]) -> str:
    """Return the addresses that the server refused, in a sentence."""
    each = ", ".join(f"{address} ({status})" for address, status in answers.items())
    return f"The mail server refused {each}."
