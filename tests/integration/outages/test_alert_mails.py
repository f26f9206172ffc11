"""Alerts from events to a mailbox: a budget and a spike, a real Postgres, and a real SMTP server
that is off this machine for the gateway, so it must speak STARTTLS and knows one user.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from structlog.testing import capture_logs

from gateway.domain.alerts.delivery import GIVE_UP_AFTER, Channel
from gateway.domain.policy.policy import Alerts
from gateway.providers.alerts.mail import Mail
from gateway.services.ledger.alert_channel import AlertChannel
from gateway.services.ledger.alerts import AlertJob
from gateway.settings import Settings
from gateway.storage.alerts.deliveries import AlertDeliveries
from gateway.storage.alerts.spikes import SpikeAlertStore
from gateway.storage.budgets.alerts import BudgetAlertStore
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from tests import factories
from tests.fakes import FakeClock
from tests.gateway_process import free_port
from tests.integration.outages.test_alert_delivery import SHARES
from tests.providers.authority import Authority
from tests.providers.test_mail import NETWORK, PASSWORD, Postbox
from tests.storage.budget_books import declare, hold, rows, spending, team_rule
from tests.storage.factories import event

TO = ("finops@example.com", "ana@example.org")
SPIKE_DAY = date(2026, 11, 19)
USD = 10**9


@dataclass
class MailStand:
    """A ledger with one budget, the worker that sends its alerts, and the server's port."""

    database: Database
    clock: FakeClock
    job: AlertJob
    port: int
    given_up: list[str] = field(default_factory=list)

    def spend(self, number: int, nusd: int) -> None:
        Ledger(self.database).write([spending(number, nusd, hold(nusd))])

    def deliveries(self) -> list[tuple[Any, ...]]:
        return list(
            rows(
                self.database,
                "SELECT tries, last_error, delivered_at IS NOT NULL, given_up_at IS NOT NULL "
                "FROM finance.alert_deliveries WHERE channel = 'email' ORDER BY tries",
            )
        )


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """Return an authority that the gateway trusts."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.path))
    return made


@pytest.fixture
def stand(
    database: Database, database_url: str, tmp_path: Path, authority: Authority
) -> Iterator[MailStand]:
    """Yield a worker with the mail settings of an operator, whose server does not run yet."""
    declare(database, team_rule(1000, alert_at=SHARES[:1]))
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    port, clock = free_port(), FakeClock()
    account = Settings(
        smtp_url=f"smtp://ops%40example.com@{NETWORK}:{port}",
        smtp_password_file=tmp_path / "password",
        smtp_from="tollgate@example.com",
    ).mail_account
    assert account is not None
    opened = Database(database_url, role="tollgate_gateway")
    alerts = Alerts(email=TO, spikes_above_nusd=50 * USD)
    given_up: list[str] = []
    channel = AlertChannel(
        Channel.EMAIL,
        store=AlertDeliveries(opened),
        send=Mail(account).send,
        draw=lambda: 1.0,
        clock=clock,
        on_given_up=lambda: given_up.append("email"),
        on_waiting=lambda _: None,
    )
    job = AlertJob(
        budgets=BudgetAlertStore(opened),
        spikes=SpikeAlertStore(opened),
        channels=[channel],
        clock=clock,
        is_leader=Leadership(opened, TableLock.LEADER_BUDGET_ALERTS).is_mine,
        policy=lambda: factories.version(factories.policy(alerts=alerts)),
        on_raised=lambda _: None,
    )
    yield MailStand(database, clock, job, port, given_up)
    opened.close()


@pytest.fixture
def postbox() -> Postbox:
    return Postbox()


@pytest.fixture
def serve(
    stand: MailStand, postbox: Postbox, authority: Authority
) -> Iterator[Callable[..., None]]:
    """Yield a function that starts the mail server, in place of the one before."""
    running: list[Controller] = []

    def start(*, has_starttls: bool = True) -> None:
        while running:
            running.pop().stop()
        tls = authority.server("this-machine") if has_starttls else None
        server = Controller(
            postbox,
            hostname="127.0.0.1",
            port=stand.port,
            tls_context=tls,
            authenticator=postbox.authenticate,
            auth_required=has_starttls,
            auth_require_tls=has_starttls,
        )
        server.start()
        running.append(server)

    yield start
    for server in running:
        server.stop()


async def test_a_budget_and_a_spike_arrive_as_mail(
    stand: MailStand, postbox: Postbox, serve: Callable[..., None]
) -> None:
    """From events alone: each mail once, to every address, by TLS, with the command to stop it."""
    serve()
    noon = stand.clock.now()
    Ledger(stand.database).write(
        [
            event(
                back,
                at=noon - timedelta(days=back),
                key_id="k1a2b3c4d5",
                cost_nusd=(121 if back > 1 else 533) * USD,
                lines=(),
            )
            for back in range(1, 58)
        ]
    )
    rollups.refresh(stand.database)
    stand.spend(100, 600)
    for _ in range(3):
        assert await stand.job.run_once()
        stand.clock.advance(1)
    by_subject = {mail["Subject"]: mail for mail in postbox.mails}
    assert sorted(by_subject) == [
        "Tollgate: budget payments/month at 50%",
        f"Tollgate: team payments stands out on {SPIKE_DAY}",
    ]
    assert len(postbox.mails) == 2
    assert {mail["To"] for mail in postbox.mails} == {", ".join(TO)}
    assert (postbox.encrypted, set(postbox.users)) == ([True, True], {"ops@example.com"})
    spike = by_subject[f"Tollgate: team payments stands out on {SPIKE_DAY}"].get_content()
    assert spike.splitlines()[:2] == [
        f"{SPIKE_DAY}: team payments, model gpt-5.5, key k1a2b3c4d5: 340 % above its usual "
        "Thursday, $412.00.",
        "tollgate key pause k1a2b3c4d5",
    ]


async def test_a_server_without_starttls_waits_for_one_that_has_it(
    stand: MailStand, postbox: Postbox, serve: Callable[..., None]
) -> None:
    """Nothing of an alert, and no password, leaves this machine unencrypted; and none is lost."""
    serve(has_starttls=False)
    stand.spend(1, 600)
    await stand.job.run_once()
    ((tries, error, is_delivered, is_given_up),) = stand.deliveries()
    assert (tries, is_delivered, is_given_up) == (1, False, False)
    assert "STARTTLS" in error
    assert (postbox.mails, postbox.users) == ([], [])
    await asyncio.to_thread(serve)
    stand.clock.advance(2)
    await stand.job.run_once()
    assert [one[0::2] for one in stand.deliveries()] == [(2, True)]
    assert (postbox.encrypted, postbox.users) == ([True], ["ops@example.com"])


async def test_a_dead_server_is_tried_for_a_day_and_given_up(
    stand: MailStand, postbox: Postbox, serve: Callable[..., None]
) -> None:
    """Its pauses grow; after a day the log has an error, and later alerts still arrive."""
    stand.spend(1, 600)
    tries: list[int] = []
    with capture_logs() as logs:
        for seconds in (0, 1, 2, 4, 1):  # the last one is within the pause
            stand.clock.advance(seconds)
            await stand.job.run_once()
            tries.append(stand.deliveries()[0][0])
        stand.clock.advance(GIVE_UP_AFTER.total_seconds())
        await stand.job.run_once()
    assert tries == [1, 2, 3, 4, 4]
    assert [one[3] for one in stand.deliveries()] == [True]
    assert stand.given_up == ["email"]
    assert [line["tries"] for line in logs if line["event"] == "alert_given_up"] == [4]
    serve()
    declare(stand.database, team_rule(1000, alert_at=(SHARES[0], SHARES[1])))
    stand.spend(2, 300)
    await stand.job.run_once()
    assert [mail["Subject"] for mail in postbox.mails] == ["Tollgate: budget payments/month at 80%"]
