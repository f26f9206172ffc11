"""Budget alerts from the ledger to a receiver: real Postgres, real sockets, and a signature that
the receiver checks.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Sink
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from gateway.domain.alerts.delivery import Channel
from gateway.domain.alerts.mail import MailAccount, MailServer
from gateway.domain.policy.policy import Alerts
from gateway.providers.alerts.mail import Mail
from gateway.providers.alerts.webhook import REMEDY, Webhook
from gateway.services.ledger.alert_channel import AlertChannel, Send
from gateway.services.ledger.alerts import AlertJob
from gateway.storage.alerts.deliveries import AlertDeliveries
from gateway.storage.alerts.spikes import SpikeAlertStore
from gateway.storage.budgets.alerts import BudgetAlertStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from gateway.telemetry.metrics import Metrics
from tests import factories, plain_http
from tests.canary import UPSTREAM_SECRET
from tests.fakes import FakeClock
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway, free_port
from tests.integration.policy import PRICE
from tests.storage.budget_books import declare, hold, spending, team_rule
from tests.waiting import eventually

SHARES = (Decimal("0.5"), Decimal("0.8"), Decimal(1))


class Receiver(ThreadingHTTPServer):
    """A receiver that checks signatures and answers with the next of `statuses`, or with 204 if
    there is none.

    `admission` delays its answers.
    """

    def __init__(self, key: bytes, *, port: int = 0) -> None:
        self.received: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.admission = threading.Event()
        self.admission.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                alert_id, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
                signature = hmac.new(
                    key, f"{alert_id}.{at}.".encode() + body, hashlib.sha256
                ).digest()
                assert (
                    self.headers["webhook-signature"]
                    == f"v1,{base64.b64encode(signature).decode()}"
                )
                found = json.loads(body, parse_float=Decimal)
                assert found["id"] == alert_id
                receiver.received.append(found | {"sent_s": int(at)})
                receiver.admission.wait(30)
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", port), Handler)
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/alerts"

    @property
    def thresholds(self) -> list[str]:
        return [f"{alert['budget']} {alert['threshold']}" for alert in self.received]

    def close(self) -> None:
        self.admission.set()
        self.shutdown()
        self.server_close()


@pytest.fixture
def receivers() -> Iterator[Callable[..., Receiver]]:
    """Yield a function that starts receivers with a secret."""
    running: list[Receiver] = []

    def start(secret: str = "a secret of the tests", *, port: int = 0) -> Receiver:
        running.append(Receiver(secret.encode(), port=port))
        return running[-1]

    yield start
    for receiver in running:
        receiver.close()


@dataclass
class Stand:
    """A ledger and the workers that send its alerts."""

    url: str
    webhook: str
    clock: FakeClock = field(default_factory=FakeClock)
    databases: list[Database] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    number: int = 0
    recipients: tuple[str, ...] = ()
    mail_port: int = field(default_factory=free_port)

    def worker(self) -> AlertJob:
        database = Database(self.url, role="tollgate_gateway")
        self.databases.append(database)
        alerts = Alerts(webhook=self.webhook, secret="env:AN_ALERT_SECRET", email=self.recipients)
        server = MailServer(host="127.0.0.1", port=self.mail_port, is_tls=False, user=None)
        account = MailAccount(server=server, sender="tollgate@example.com", password=None)
        senders: dict[Channel, Send] = {
            Channel.WEBHOOK: Webhook(self.clock.now).send,
            Channel.EMAIL: Mail(account).send,
        }
        channels = [
            AlertChannel(
                channel,
                store=AlertDeliveries(database),
                send=send,
                draw=lambda: 1.0,
                clock=self.clock,
                on_given_up=self.metrics.given_up_alerts.labels(channel).inc,
                on_waiting=self.metrics.undelivered_alerts.labels(channel).set,
            )
            for channel, send in senders.items()
        ]
        return AlertJob(
            budgets=BudgetAlertStore(database),
            spikes=SpikeAlertStore(database),
            channels=channels,
            clock=self.clock,
            is_leader=Leadership(database, TableLock.LEADER_BUDGET_ALERTS).is_mine,
            policy=lambda: factories.version(factories.policy(alerts=alerts)),
            on_raised=self.metrics.count_alert,
        )

    def spend(self, cost_nusd: int) -> None:
        self.number += 1
        Ledger(self.databases[0]).write([spending(self.number, cost_nusd, hold(cost_nusd))])

    def rows(self) -> list[tuple[str, int, str | None, bool]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT threshold::text, tries, last_error, delivered_at IS NOT NULL FROM "
                "finance.budget_alerts ORDER BY threshold"
            ).fetchall()


@pytest.fixture
def stand(
    database: Database,
    database_url: str,
    receivers: Callable[..., Receiver],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stand]:
    """Set up a monthly budget of 1,000 nano-dollars with three thresholds.

    Its webhook has no listener yet.
    """
    declare(database, team_rule(1000, alert_at=SHARES))
    monkeypatch.setenv("AN_ALERT_SECRET", "a secret of the tests")
    made = Stand(database_url, f"http://127.0.0.1:{free_port()}/alerts")
    yield made
    for opened in made.databases:
        opened.close()


def port_of(stand: Stand) -> int:
    return int(stand.webhook.rpartition(":")[2].partition("/")[0])


async def test_from_spending_to_the_receiver(
    stand: Stand, receivers: Callable[..., Receiver]
) -> None:
    """Each threshold arrives once, lowest first, with the ledger's figures."""
    receiver = receivers(port=port_of(stand))
    leader, other = stand.worker(), stand.worker()
    stand.spend(499)
    assert await leader.run_once()
    assert receiver.received == []
    stand.spend(400)
    for _ in range(3):
        assert await leader.run_once()
        assert not await other.run_once()
    assert receiver.thresholds == ["payments/month 0.5", "payments/month 0.8"]
    first = receiver.received[0]
    assert (first["limit_usd"], first["spent_usd"], first["granted_usd"]) == (
        Decimal("0.000001"),
        Decimal("0.000000899"),
        0,
    )
    assert (first["starts_at"], first["ends_at"]) == (
        "2026-11-01T00:00:00Z",
        "2026-12-01T00:00:00Z",
    )
    stand.spend(101)
    await leader.run_once()
    assert receiver.thresholds[2:] == ["payments/month 1"]


async def test_a_recovered_receiver_gets_the_missed_alert(
    stand: Stand, receivers: Callable[..., Receiver]
) -> None:
    """The receiver refuses, then answers 503, then accepts. The alert has one id, and each try
    has its own time.
    """
    job = stand.worker()
    stand.spend(500)
    await job.run_once()
    assert stand.rows() == [
        ("0.5", 1, f"The webhook could not be reached: ConnectionRefusedError. {REMEDY}", False)
    ]
    receiver = receivers(port=port_of(stand))
    receiver.statuses = [503]
    for _ in range(4):
        stand.clock.advance(1)
        await job.run_once()
    assert stand.rows() == [("0.5", 3, f"The webhook answered 503. {REMEDY}", True)]
    assert len(receiver.received) == 2
    assert len({alert["id"] for alert in receiver.received}) == 1
    assert receiver.received[1]["sent_s"] - receiver.received[0]["sent_s"] == 2
    assert receiver.received[0] | {"sent_s": 0} == receiver.received[1] | {"sent_s": 0}


async def test_a_secret_that_is_not_there_yet_is_named_and_tried_again(
    stand: Stand, receivers: Callable[..., Receiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent unsigned, and no alert is lost until an operator sets the variable."""
    receiver = receivers(port=port_of(stand))
    monkeypatch.delenv("AN_ALERT_SECRET")
    job = stand.worker()
    stand.spend(500)
    await job.run_once()
    ((_, tries, error, is_delivered),) = stand.rows()
    assert (tries, is_delivered, receiver.received) == (1, False, [])
    assert error is not None
    assert error.startswith(
        "The alerts' secret env:AN_ALERT_SECRET is empty or not set where the gateway runs."
    )
    monkeypatch.setenv("AN_ALERT_SECRET", "a secret of the tests")
    stand.clock.advance(1)
    await job.run_once()
    assert receiver.thresholds == ["payments/month 0.5"]


async def test_a_new_leader_continues_after_the_first_was_cut_off(
    stand: Stand, receivers: Callable[..., Receiver]
) -> None:
    """The first leader loses its connections after one delivered alert. Neither that alert nor
    its log line may come again.
    """
    receiver = receivers(port=port_of(stand))
    receiver.statuses = [204, 500]
    first, second = stand.worker(), stand.worker()
    stand.spend(900)
    with capture_logs() as logs:
        await first.run_once()
        with psycopg.connect(stand.url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> "
                "pg_backend_pid() AND datname = current_database() AND usename = current_user"
            )
        stand.clock.advance(1)
        assert await second.run_once()
        assert not await first.run_once()
    assert receiver.thresholds == ["payments/month 0.5", "payments/month 0.8", "payments/month 0.8"]
    assert len({alert["id"] for alert in receiver.received}) == 2
    assert len([line for line in logs if line["event"] == "budget_alert"]) == 2


async def test_a_dead_webhook_and_a_dead_mail_server_hold_nothing_of_the_other(
    stand: Stand, receivers: Callable[..., Receiver]
) -> None:
    """Each channel has its own deliveries in Postgres, with its own tries and error."""
    stand.recipients = ("finops@example.com",)
    mailbox = Mailbox()
    server = Controller(mailbox, hostname="127.0.0.1", port=stand.mail_port)
    server.start()
    job = stand.worker()
    stand.spend(500)
    assert await job.run_once()
    server.stop()
    assert mailbox.subjects == ["Tollgate: budget payments/month at 50%"]
    assert deliveries(stand) == [("email", 1, False), ("webhook", 1, True)]
    receiver = receivers(port=port_of(stand))
    stand.spend(400)
    stand.clock.advance(1)
    assert await job.run_once()
    assert receiver.thresholds == ["payments/month 0.5", "payments/month 0.8"]
    assert deliveries(stand) == [
        ("email", 1, False),
        ("email", 1, True),
        ("webhook", 1, False),
        ("webhook", 2, False),
    ]


class Mailbox(Sink):
    """Keeps the subjects of the mails that a real server takes."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.subjects.append(message_from_bytes(envelope.content)["Subject"])
        return "250 kept"


def deliveries(stand: Stand) -> list[tuple[str, int, bool]]:
    """Return each delivery's channel, tries, and whether it waits."""
    with psycopg.connect(stand.url) as connection:
        return connection.execute(
            "SELECT channel, tries, next_try_at IS NOT NULL FROM finance.alert_deliveries "
            "ORDER BY 1, 2, 3"
        ).fetchall()


def policy(upstream: str, webhook: str) -> str:
    """Return a policy with a tiny monthly hard budget and a tiny daily soft one."""
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: one, model: plain-1, provider: openai_compatible, region: unknown, base_url: "{upstream}/v1",
     price: {PRICE}, listed: [fake]}}
routes: [{{name: chat, deployments: [one]}}]
teams:
  - name: payments
    cost_centre: CC-1
    data_class: internal
    routes: [chat]
    budgets:
      - {{period: month, limit_usd: 0.01, alert_at: [0.04]}}
      - {{period: day, limit_usd: 0.0002, kind: soft, alert_at: [0.5, 1.0]}}
alerts: {{webhook: "{webhook}", secret: "env:FAKE_KEY"}}
"""  # noqa: E501


def ask(gateway: Gateway) -> None:
    """Send one request that is charged.

    On a busy machine the first slice may take longer than a caller waits; then the answer is 503,
    which is free.
    """
    body = {
        "model": "chat",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 100,
        "fake": "out=40",
    }
    headers = {"authorization": f"Bearer {gateway.key}"}

    def is_served() -> bool:
        answer = plain_http.post(
            f"{gateway.base_url}/chat/completions", json=body, headers=headers, timeout=30
        )
        assert answer.status_code in (200, 503), answer.text
        return answer.status_code == 200

    eventually(is_served, "an answer")


def test_an_alert_keeps_its_id_across_a_gateway_kill(
    start_gateway: StartGateway,
    fake_upstream: FakeUpstreamProcess,
    receivers: Callable[..., Receiver],
) -> None:
    """A gateway that is killed in the middle of a delivery sends the same alert again under the
    same id.
    """
    receiver = receivers(UPSTREAM_SECRET)
    receiver.admission.clear()
    gateway = start_gateway(policy(fake_upstream.url, receiver.url))
    ask(gateway)
    eventually(lambda: receiver.received, "the first alert")
    gateway.stop(signal.SIGKILL)
    receiver.admission.set()
    # The alert's lease has not expired yet, and the test should not wait for it.
    with psycopg.connect(gateway.database_url) as connection:
        connection.execute(
            "UPDATE tollgate.alert_deliveries SET next_try_at = now() WHERE next_try_at IS NOT NULL"
        )
    gateway.start()
    eventually(lambda: len(receiver.received) == 4, "all alerts")
    assert sorted(receiver.thresholds[1:]) == [
        "payments/day 0.5",
        "payments/day 1",
        "payments/month 0.04",
    ]
    assert receiver.received[0]["id"] in {alert["id"] for alert in receiver.received[1:]}
    ask(gateway)
    delivered = "SELECT count(*) AS n FROM finance.budget_alerts WHERE delivered_at IS NOT NULL"
    eventually(lambda: gateway.query(delivered)[0]["n"] == 3, "the notes of it")
    lines = [line for line in gateway.log_lines() if line["event"] == "budget_alert"]
    assert sorted((line["budget"], line["threshold"], line["level"]) for line in lines) == [
        ("payments/day", "0.5", "warning"),
        ("payments/day", "1", "warning"),
        ("payments/month", "0.04", "warning"),
    ]
    families = {family.name for family in text_string_to_metric_families(gateway.metrics())}
    assert {"tollgate_budget_alerts", "tollgate_budget_alerts_undelivered"} <= families
    assert len(receiver.received) == 4
