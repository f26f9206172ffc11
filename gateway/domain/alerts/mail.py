"""Declares the mail server of alerts, and reads its URL and addresses; sends no mail."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

MOST_RECIPIENTS = 20
_PORTS = {"smtp": 587, "smtps": 465}
# The unquoted form of RFC 5321 §4.1.2, of at most 254 characters. Quoted local parts and
# internationalised ones need an extension that servers may lack.
ADDRESS = (
    r"(?=.{3,254}$)[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_URL = "smtp[s]://USER@HOST:PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """A server that takes mails; `is_tls` means TLS from the first byte. Without `user` nobody
    signs in.
    """

    host: str
    port: int
    is_tls: bool
    user: str | None

    @property
    def is_loopback(self) -> bool:
        """Return True if the server is on this machine, so that no network sees the mails."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class MailAccount:
    """A server with the sender's address, and the reference to the password of its user."""

    server: MailServer
    sender: str
    password: str | None


def mail_server(url: str) -> MailServer:
    """Return the server that a URL names.

    Raises `ValueError`; its message does not quote the URL, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"it is no address of a mail server, {_URL}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"it is no address of a mail server, {_URL}")
    if parts.password is not None:
        raise ValueError(
            "it holds a password; put that into a file, and the file's path into "
            "TOLLGATE_SMTP_PASSWORD_FILE"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"it has more than {_URL}")
    user = unquote(parts.username or "") or None
    if user is not None and not (user.isascii() and user.isprintable()):
        raise ValueError("its user is not printable ASCII")
    return MailServer(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        is_tls=parts.scheme == "smtps",
        user=user,
    )


def is_mail_address(text: str) -> bool:
    """Return True for a plain address, `name@host`, that fits into a header as it stands."""
    return re.fullmatch(ADDRESS, text) is not None
