"""The doctor tries the mail server of alerts, and commands name a setting of it that is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Sink

from gateway.errors import BadUsage
from gateway.main import build_toolbox
from gateway.settings import Settings, read
from tests.cli.conftest import Cli
from tests.gateway_process import free_port


@pytest.fixture
def mailing(cli: Cli, policy_file: Path) -> Cli:
    """Return a command line with a policy that mails alerts."""
    text = policy_file.read_text()
    policy_file.write_text(f"{text}\nalerts: {{email: [finops@example.com]}}\n")
    cli.ok("policy", "apply", str(policy_file), "--yes")
    return cli


def mail_line(cli: Cli) -> dict[str, str]:
    """Return the doctor's line on mail."""
    rows = json.loads(cli("doctor", "--format", "json").out)
    return {row["check"]: row for row in rows}["mail"]


def test_the_doctor_tries_the_mail_server(mailing: Cli, database_url: str) -> None:
    """An operator sees before the first alert that it cannot be mailed. No mail is sent."""
    found = mail_line(mailing)
    assert (found["status"], "TOLLGATE_SMTP_URL" in found["finding"]) == ("warn", True)
    port = free_port()
    home = mailing.toolbox.options.home
    with_mail = Cli(
        build_toolbox(
            Settings(
                home=home,
                database_url=database_url,
                smtp_url=f"smtp://127.0.0.1:{port}",
                smtp_from="tollgate@example.com",
            )
        )
    )
    found = mail_line(with_mail)
    assert (found["status"], "ConnectionRefusedError" in found["finding"]) == ("fail", True)
    server = Controller(Sink(), hostname="127.0.0.1", port=port)
    server.start()
    try:
        assert mail_line(with_mail)["status"] == "ok"
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"URL": "smtp://mail.example"}, "without TOLLGATE_SMTP_FROM"),
        (
            {"URL": "smtp://ops@mail.example", "FROM": "t@example.com"},
            "TOLLGATE_SMTP_PASSWORD_FILE is not set",
        ),
        ({"URL": "smtp://ops:hunter2@mail.example", "FROM": "t@example.com"}, "holds a password"),
        ({"URL": "smtp://mail.example", "FROM": "T <t@example.com>"}, "a plain address"),
    ],
)
def test_a_part_of_the_settings_is_an_error(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str
) -> None:
    """The error names the setting, and never quotes a password."""
    for name, value in given.items():
        monkeypatch.setenv(f"TOLLGATE_SMTP_{name}", value)
    with pytest.raises(BadUsage, match=message) as raised:
        read()
    assert "hunter2" not in str(raised.value)


def test_the_account_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password stays in its file until a mail is sent."""
    assert read().mail_account is None
    monkeypatch.setenv("TOLLGATE_SMTP_URL", "smtps://ops%40example.com@mail.example")
    monkeypatch.setenv("TOLLGATE_SMTP_FROM", "tollgate@example.com")
    monkeypatch.setenv("TOLLGATE_SMTP_PASSWORD_FILE", "/run/secrets/smtp")
    account = read().mail_account
    assert account is not None
    assert (account.server.user, account.server.port) == ("ops@example.com", 465)
    assert account.password == "file:/run/secrets/smtp"
