"""Scheduled statements on real parts: Postgres, a mail server, a webhook's socket, a folder, and
the child process that makes them. Each closed version of a month is sent once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email import message_from_bytes
from email import policy as mail_policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest
from aiosmtpd.controller import Controller

from gateway.domain.alerts.delivery import GIVE_UP_AFTER, AttachedFile, NotDelivered
from gateway.domain.alerts.mail import MailAccount, MailServer
from gateway.domain.reports.schedule import DueStatement, new_schedule
from gateway.errors import BadUsage, NothingFound
from gateway.providers.alerts.mail import Mail
from gateway.providers.alerts.webhook import Webhook
from gateway.services.reports.statement_job import StatementJob
from gateway.serving.statement_child import statements_of
from gateway.serving.statements import OF_DATABASE, Wanted, made_by_child, senders
from gateway.settings import Settings
from gateway.storage.ledger.months import MonthStore
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.leadership import Leadership
from gateway.storage.postgres.locks import TableLock
from gateway.storage.reports.schedules import ScheduleStore, StatementDeliveries
from tests.cli.conftest import Cli
from tests.exports.statements.statement_ledger import OCTOBER, SEPTEMBER, fill
from tests.fakes import FakeClock
from tests.gateway_process import free_port
from tests.storage.ledger.months.test_month_states import close

TOKEN = "T0KEN-OF-THE-RECEIVER"


class Receiver(ThreadingHTTPServer):
    """A receiver of webhooks: keeps each body and its headers, and answers with the next status."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], Any]] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.received.append((dict(self.headers.items()), json.loads(body)))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{TOKEN}"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A running receiver of webhooks."""
    made = Receiver()
    yield made
    made.shutdown()
    made.server_close()


@dataclass
class Postbox:
    """The handler of a real SMTP server: keeps mails."""

    mails: list[EmailMessage] = field(default_factory=list)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        parsed = message_from_bytes(envelope.content, policy=mail_policy.default)
        assert isinstance(parsed, EmailMessage)
        self.mails.append(parsed)
        return "250 kept"


@dataclass
class Stand:
    """A ledger with schedules, and the workers that send them."""

    url: str
    home: Path
    clock: FakeClock = field(default_factory=FakeClock)
    databases: list[Database] = field(default_factory=list)
    mail_port: int = field(default_factory=free_port)
    given_up: list[datetime] = field(default_factory=list)

    def settings(self) -> Settings:
        return Settings(home=self.home, database_url=self.url)

    def database(self, role: str) -> Database:
        self.databases.append(Database(self.url, role=role))
        return self.databases[-1]

    def worker(
        self, make: Callable[[DueStatement], Any] | None = None, *, leads: bool | None = None
    ) -> StatementJob:
        database = self.database("tollgate_gateway")
        server = MailServer(host="127.0.0.1", port=self.mail_port, is_tls=False, user=None)
        account = MailAccount(server=server, sender="tollgate@example.com", password=None)
        return StatementJob(
            store=StatementDeliveries(database),
            make=make or self.make,
            senders=senders(
                Webhook(self.clock.now), Mail(account), secret=lambda: "env:A_STATEMENT_SECRET"
            ),
            is_leader=Leadership(database, TableLock.LEADER_STATEMENTS).is_mine
            if leads is None
            else lambda: bool(leads),
            clock=self.clock,
            draw=lambda: 1.0,
            on_given_up=lambda: self.given_up.append(self.clock.now()),
        )

    async def make(self, due: DueStatement) -> Sequence[AttachedFile]:
        """Make the files as the child does, in a thread: it takes no interpreter of its own."""
        wanted = Wanted(
            settings=self.settings().model_dump_json(include=OF_DATABASE),
            month=due.month,
            version=due.version,
            cost_centre=due.cost_centre,
        )
        made = await asyncio.to_thread(statements_of, wanted)
        return [
            AttachedFile(
                name=one.name, media_type=one.media_type, content=base64.b64decode(one.content)
            )
            for one in made
        ]

    def add(self, name: str, to: str, cost_centre: str = "all") -> None:
        schedule = new_schedule(name=name, cost_centre=cost_centre, every="month", to=to)
        ScheduleStore(self.database("tollgate_admin")).add(schedule)

    def rows(self) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT name, to_char(month, 'YYYY-MM'), version, tries, delivered_at IS NOT NULL, "
                "given_up_at IS NOT NULL FROM finance.statement_deliveries "
                "ORDER BY name, month, version"
            ).fetchall()


@pytest.fixture
def stand(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stand]:
    """A ledger of two months, of which September is closed."""
    monkeypatch.setenv("A_STATEMENT_SECRET", "a secret of the tests")
    fill(database)
    close(database, SEPTEMBER)
    made = Stand(url=database_url, home=tmp_path / "home")
    yield made
    for one in made.databases:
        one.close()


async def test_each_closed_version_is_sent_once_by_all_gateways_together(
    stand: Stand, database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    """Two gateways look at the same moment, again and again; a month closed before is history."""
    box, folder = Postbox(), tmp_path / "statements"
    folder.mkdir()
    stand.add("books", f"folder:{folder}")
    stand.add("erp", receiver.url)
    stand.add("owner", "mailto:ana@example.com,bo@example.com", "CC-0042")
    server = Controller(box, hostname="127.0.0.1", port=stand.mail_port)
    server.start()
    # Both believe that they lead: the claim in Postgres alone must keep them apart.
    workers = [stand.worker(leads=True) for _ in range(2)]
    try:
        assert await asyncio.gather(*(one.run_once() for one in workers)) == [True, True]
        assert stand.rows() == []
        close(database, OCTOBER)
        for _ in range(2):
            assert await asyncio.gather(*(one.run_once() for one in workers)) == [True, True]
        MonthStore(database).reopen(OCTOBER, reason="one is missing")
        await workers[0].run_once()
        close(database, OCTOBER)
        await asyncio.gather(*(one.run_once() for one in workers))
    finally:
        server.stop()
    assert stand.rows() == [
        (name, "2026-10", version, 1, True, False)
        for name in ("books", "erp", "owner")
        for version in (1, 2)
    ]
    names = [
        f"statement-{centre}-2026-10-v{version}.pdf"
        for version in (1, 2)
        for centre in ("CC-0042", "CC-1207")
    ]
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)
    assert len(receiver.received) == 2
    headers, body = receiver.received[0]
    assert headers["webhook-signature"].startswith("v1,")
    assert headers["webhook-id"] == body["id"]
    assert (body["type"], body["month"], body["version"]) == ("cost.statement", "2026-10", 1)
    for one in body["files"]:
        content = base64.b64decode(one["content_base64"])
        assert content == (folder / one["name"]).read_bytes()
        assert one["sha256"] == hashlib.sha256(content).hexdigest()
    first, second = box.mails
    assert (first["To"], first["Message-ID"] != second["Message-ID"]) == (
        "ana@example.com, bo@example.com",
        True,
    )
    (attached,) = first.iter_attachments()
    assert attached.get_filename() == names[0]
    assert attached.get_content() == (folder / names[0]).read_bytes()


async def test_a_failed_try_is_repeated_and_given_up_after_a_day(
    stand: Stand, database: Database, receiver: Receiver, tmp_path: Path
) -> None:
    """As an alert is; a receiver that fails holds no other one back."""
    folder = tmp_path / "statements"
    stand.add("books", f"folder:{folder}")  # it does not exist yet
    stand.add("erp", receiver.url)
    stand.add("owner", "mailto:ana@example.com")  # and no mail server runs
    receiver.statuses = [503, 204]
    close(database, OCTOBER)
    worker = stand.worker()
    assert await worker.run_once()
    assert [row[3:] for row in stand.rows()] == [(1, False, False)] * 3
    assert await worker.run_once()
    assert [row[3] for row in stand.rows()] == [1, 1, 1], "not before its pause is over"
    folder.mkdir()
    stand.clock.advance(2)
    await worker.run_once()
    assert [row[3:] for row in stand.rows()] == [
        (2, True, False),
        (2, True, False),
        (2, False, False),
    ]
    assert receiver.received[0][1] == receiver.received[1][1]
    stand.clock.advance(GIVE_UP_AFTER.total_seconds())
    await worker.run_once()
    assert stand.rows()[2][3:] == (3, False, True)
    stand.clock.advance(GIVE_UP_AFTER.total_seconds())
    await worker.run_once()
    assert stand.rows()[2][3] == 3
    assert len(stand.given_up) == 1
    with psycopg.connect(stand.url) as connection:
        found = connection.execute("SELECT name, last_error FROM finance.report_schedules")
        errors = dict(found.fetchall())
    assert "There is no folder" in errors["books"]
    assert "503" in errors["erp"]
    assert "mail server could not be reached" in errors["owner"]
    assert TOKEN not in str(errors)


async def test_a_clock_that_was_wrong_holds_no_statement_back(
    stand: Stand, database: Database, tmp_path: Path
) -> None:
    """A machine that woke up in 2036 noted its next try there: after the clock was right again,
    the statement waited for ten years.
    """
    folder = tmp_path / "statements"
    stand.add("books", f"folder:{folder}")
    close(database, OCTOBER)
    worker, ten_years_s = stand.worker(), timedelta(days=3652).total_seconds()
    stand.clock.advance(ten_years_s)
    await worker.run_once()
    assert [row[3:] for row in stand.rows()] == [(1, False, False)]
    stand.clock.advance(-ten_years_s)
    folder.mkdir()
    await worker.run_once()
    assert [row[3:] for row in stand.rows()] == [(2, True, False)]
    assert len(list(folder.iterdir())) > 0


async def test_a_removed_schedule_sends_nothing_more(
    stand: Stand, database: Database, tmp_path: Path
) -> None:
    """Somebody who left must not get next month's statement."""
    folder = tmp_path / "statements"
    stand.add("books", f"folder:{folder}")
    close(database, OCTOBER)
    worker = stand.worker()
    await worker.run_once()
    store = ScheduleStore(stand.database("tollgate_admin"))
    store.remove("books")
    folder.mkdir()
    stand.clock.advance(60)
    assert await worker.run_once()
    assert list(folder.iterdir()) == []
    assert stand.rows() == [("books", "2026-10", 1, 1, False, False)], "its history stays"
    with pytest.raises(NothingFound, match="none yet"):
        store.remove("books")
    # A new one of that name begins with the next closed month.
    stand.add("books", f"folder:{folder}")
    with pytest.raises(BadUsage, match="schedule remove books"):
        stand.add("books", f"folder:{folder}")
    await worker.run_once()
    assert list(folder.iterdir()) == []


async def test_a_gateway_that_does_not_lead_sends_nothing(
    stand: Stand, database: Database, receiver: Receiver
) -> None:
    """And one whose record was lost sends the same message again, with the same id."""
    stand.add("erp", receiver.url)
    close(database, OCTOBER)
    leader, other = stand.worker(), stand.worker()
    assert await leader.run_once()
    assert not await other.run_once()
    assert len(receiver.received) == 1


async def test_the_child_makes_the_files_or_says_why_not(
    stand: Stand, database: Database, tmp_path: Path
) -> None:
    """It reads the ledger by the gateway's own settings, and nothing of it stays in the gateway."""
    stand.add("owner", f"folder:{tmp_path}", "CC-0042")
    close(database, OCTOBER)
    store = StatementDeliveries(stand.database("tollgate_gateway"))
    store.open(now=stand.clock.now())
    now = stand.clock.now()
    due = store.take(now=now, until=now + timedelta(minutes=1))
    assert due is not None
    assert store.take(now=now, until=now + timedelta(minutes=1)) is None
    assert await made_by_child(stand.settings(), due) == await stand.make(due)
    wrong = Settings(home=stand.home, database_url="postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(NotDelivered, match="made again"):
        await made_by_child(wrong, due)


def test_the_commands_add_list_and_remove(
    cli: Cli, database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    """They show the receivers of statements, and no token of an address, the audit log neither."""
    for name, to in (("books", f"folder:{tmp_path}"), ("erp", receiver.url)):
        cli.ok(
            *("report", "schedule", "add", "--name", name, "--cost-centre", "all"),
            *("--every", "month", "--to", to),
        )
    rows = json.loads(cli.ok("report", "schedule", "list", "--format", "json"))
    assert [(row["name"], row["cost_centre"], row["state"]) for row in rows] == [
        ("books", "all", "waits for a closed month and a gateway"),
        ("erp", "all", "waits for a closed month and a gateway"),
    ]
    assert rows[1]["to"].endswith("/…")
    cli.ok("report", "schedule", "remove", "erp")
    assert cli("report", "schedule", "remove", "erp").code == 1
    log = cli.ok("audit", "list", "--format", "json")
    assert "report_schedule.add" in log
    assert "report_schedule.delete" in log
    assert TOKEN not in log


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--to": "mailto:ana@example.com"}, "TOLLGATE_SMTP_URL"),
        ({"--to": "http://public.example/x"}, "unencrypted"),
        ({"--to": "folder:here"}, "absolute"),
        ({"--to": "nowhere"}, "mailto:"),
        ({"--every": "week"}, "--every month"),
        ({"--name": "a b"}, "name of a schedule"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused_at_once(
    cli: Cli, changes: dict[str, str], words: str
) -> None:
    """It would be found out when the month is closed."""
    given = {
        "--name": "books",
        "--cost-centre": "all",
        "--every": "month",
        "--to": "folder:/srv",
    } | changes
    ran = cli("report", "schedule", "add", *(word for pair in given.items() for word in pair))
    assert (ran.code, words in ran.err) == (2, True), ran
    assert json.loads(cli.ok("report", "schedule", "list", "--format", "json")) == []
