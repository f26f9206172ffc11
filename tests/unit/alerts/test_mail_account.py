"""The mail server and the addresses of alerts, as they are written and refused, and the mail."""

from __future__ import annotations

import email
from datetime import UTC, datetime
from email import policy as mail_policy
from uuid import UUID

import pytest

from gateway.domain.alerts.composed_mail import compose
from gateway.domain.alerts.delivery import AlertMessage
from gateway.domain.alerts.mail import MailServer, is_mail_address, mail_server

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_composed_mail_has_the_declared_headers_alone() -> None:
    """Every header is one that the composer names, whatever the texts are."""
    for odd in ("a\nb: c", "\r\n\r\nbody", "\x00\x0b\x85", "", "=?utf-8?q?x?="):
        made = compose(
            AlertMessage(alert_id=UUID(int=1), raised_at=NOW, about=odd, text=odd, payload={}),
            sender="t@example.com",
            recipients=("a@example.com",),
        )
        parsed = email.message_from_bytes(made.as_bytes(policy=mail_policy.SMTP))
        assert len(parsed.keys()) == 9
        assert parsed["To"] == "a@example.com"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail.example", MailServer(host="mail.example", port=587, is_tls=False, user=None)),
        (
            "smtps://ops%40example.com@mail.example:2465/",
            MailServer(host="mail.example", port=2465, is_tls=True, user="ops@example.com"),
        ),
        ("smtp://[::1]:25", MailServer(host="::1", port=25, is_tls=False, user=None)),
    ],
)
def test_the_url_of_a_mail_server(url: str, expected: MailServer) -> None:
    """The user may be an address, with %40 for its @."""
    assert mail_server(url) == expected


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://mail.example", "no address of a mail server"),
        ("smtp://", "no address of a mail server"),
        ("smtp://host:99999", "no address of a mail server"),
        ("smtp://ops:hunter2@mail.example", "TOLLGATE_SMTP_PASSWORD_FILE"),
        ("smtp://mail.example/x", "more than"),
        ("smtp://a%0ab@mail.example", "printable ASCII"),
    ],
)
def test_a_wrong_url_is_not_quoted(url: str, message: str) -> None:
    """It may hold a password."""
    with pytest.raises(ValueError, match=message) as raised:
        mail_server(url)
    assert "hunter2" not in str(raised.value)


def test_only_this_machine_is_spared_tls() -> None:
    """A name is not looked up for that: what it means may change."""
    found = {
        host: MailServer(host=host, port=25, is_tls=False, user=None).is_loopback
        for host in ("localhost", "127.0.0.9", "::1", "mail.example", "0.0.0.0", "10.0.0.1")
    }
    assert [host for host, is_loopback in found.items() if is_loopback] == [
        "localhost",
        "127.0.0.9",
        "::1",
    ]


def test_only_plain_addresses_are_taken() -> None:
    """They stand in a header and in a command of SMTP as they are."""
    assert is_mail_address("a.b+c@mail.example")
    for wrong in (
        "",
        "a",
        "a@b\nBcc: c@d",
        "a@b\n",
        "<a@b>",
        "A <a@b.example>",
        "a@b, c@d",
        "ä@b.example",
        "a@-b",
        "a..b@c",
        "a@" + "b" * 254,
    ):
        assert not is_mail_address(wrong)
