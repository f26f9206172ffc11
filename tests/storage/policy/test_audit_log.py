"""The audit log in Postgres: every administrative act is one row in it, and no row ever changes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import text

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.ledger.audit_chain import AuditAct, ChainHead, ChainWalk
from gateway.domain.policy.api_keys import StoredKey
from gateway.domain.policy.price_book import Dated, NewEntry, PriceOrigin
from gateway.domain.pricing.price_corrections import Adjustment
from gateway.errors import DatabaseUnavailable
from gateway.storage.budgets.budgets import BudgetStore
from gateway.storage.ledger import adjustments
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.repricing import RepriceStore
from gateway.storage.policy import pepper
from gateway.storage.policy.audit import AuditLog
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock
from tests.storage.factories import NOON, PEPPER, event, key, price, request_id

JOURNAL = UUID(int=7)
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "audit.md"
# Tables that only a gateway or a migration writes, or whose rows follow from an act on another
# table.
#
# A new table belongs here or gets a trigger `…_noted_for_audit` in its migration.
NOT_ACTS = {
    "alembic_version",
    "alert_deliveries",
    "audit_log",
    "audit_notes",
    "budget_accounts",
    "budget_alerts",
    "budget_corrections",
    "budget_losses",
    "budget_overlaps",
    "budget_periods",
    "busy_rollup",
    "closed_gpu_hours",
    "closes_begun",
    "closed_idle_costs",
    "deployment_prices",
    "dirty_days",
    "dirty_hours",
    "dirty_months",
    "engine_probes",
    "engine_samples",
    "gpu_hours",
    "refusal_counts",
    "refusals",
    "idempotency_claims",
    "leases",
    *(f"lock_{lock}" for lock in TableLock),  # never written
    "ledger_server",
    "limit_slots",
    "limit_ticks",
    "limit_windows",
    "limit_workers",
    "policy_team_limits",  # of a version, whose apply is noted
    "prices",
    "provider_bill_days",  # the import that they belong to is noted
    "provider_bill_lines",
    "spend_rollup",
    "spike_alerts",
    "spike_days",
    "spend_rollup_by_day",
    "spend_rollup_by_end_user",
    "spend_rollup_by_key",
    "spend_rollup_by_month",
    "spend_rollup_by_month_and_end_user",
    "spend_rollup_by_month_and_key",
    "spend_rollup_by_month_and_tag",
    "spend_rollup_by_tag",
    "statement_deliveries",
    "true_ups",  # the places of adjustments, which are noted
    "usage_events",
}


@pytest.fixture
def admin(database_url: str) -> Iterator[Database]:
    """Yield the database in the role of a command."""
    opened = Database(database_url, role_if_member="tollgate_admin", operator="ada")
    yield opened
    opened.close()


@pytest.fixture
def gateway(database_url: str) -> Iterator[Database]:
    """Yield the database in the gateway's role."""
    opened = Database(database_url, role="tollgate_gateway")
    yield opened
    opened.close()


def acts(database: Database) -> list[AuditAct]:
    return AuditLog(database).acts(since=None, action=None, subject=None)


def findings(database: Database, *heads: ChainHead) -> list[str]:
    return [finding.what for finding in ChainWalk(heads).findings(AuditLog(database).rows())]


def run(database: Database, statement: str, **values: Any) -> None:
    with database.begin() as connection:
        connection.execute(text(statement), values)


def rule() -> BudgetRule:
    return BudgetRule(
        rule_id="payments/month",
        scope=BudgetScope.TEAM,
        team="payments",
        owner="payments",
        period=BudgetPeriod.MONTH,
        limit_nusd=10**12,
    )


def apply(database: Database, document: str = "version: 1", **changes: Any) -> int:
    arguments: dict[str, Any] = {
        "author": "ada",
        "message": "first",
        "is_demo": False,
        "expected_version": None,
    }
    return PolicyStore(database).apply(
        document,
        sha256=sha256(document.encode()).hexdigest(),
        budgets=[rule()],
        **arguments | changes,
    )


def test_a_row_records_person_time_reason_and_act(admin: Database, database_url: str) -> None:
    """Postgres answers every audit's questions itself, independent of the program that made the
    change.
    """
    KeyStore(admin).create(key(), created_by="ada")
    assert KeyStore(admin).revoke("k123456789", revoked_by="ada", reason='found in a "log" – ç')
    created, revoked = acts(admin)
    with psycopg.connect(database_url) as owner:
        login = owner.info.user
        assert abs(
            (owner.execute("SELECT now()").fetchone() or (None,))[0] - revoked.at
        ) < timedelta(minutes=1)
    assert (created.seq, created.db_user, created.operator, created.reason) == (
        1,
        login,
        "ada",
        None,
    )
    assert (revoked.seq, revoked.db_user, revoked.operator) == (2, login, "ada")
    assert (revoked.action, revoked.subject, revoked.reason) == (
        "key.revoke",
        "k123456789",
        'found in a "log" – ç',
    )
    assert revoked.details["becomes"]["revoked_by"] == "ada"
    assert findings(admin) == []
    assert AuditLog(admin).head() == ChainHead(2, revoked.hash)


def administer(database: Database) -> None:
    """Perform the administrative acts of a year, except those on the ledger."""
    keys, now = KeyStore(database), NOON
    keys.create(key("k000000001"), created_by="ada")
    keys.create(key("k000000002"), created_by="ada")

    def successor(old: StoredKey) -> Any:
        return replace(key("k000000003"), team=old.record.team)

    keys.rotate("k000000001", make=successor, ends_at=now, by="ada", now=now, reason="quarterly")
    keys.pause("k000000002", paused_by="ada", reason="loops")
    keys.resume("k000000002", reason="fixed")
    keys.revoke("k000000002", revoked_by="ada", reason="leaked")
    pepper.register(database, [PEPPER])
    apply(database)
    BudgetStore(database).grant("payments/month", 5, expires_at=None, reason="launch", now=NOON)
    override = NewEntry(
        origin=PriceOrigin.OVERRIDE,
        deployment="gpt-eu",
        dated=Dated(valid_from=NOON, price=price()),
    )
    listed = NewEntry(
        origin=PriceOrigin.LIST,
        provider="openai",
        model="m",
        dated=Dated(valid_from=NOON, price=price()),
    )
    PriceStore(database).add([override], author="ada", reason="contract")
    PriceStore(database).add([listed, listed, listed], author="ada", reason="price sync")


def test_every_command_that_changes_something_is_one_row(
    admin: Database, gateway: Database
) -> None:
    """An act in two rows would be counted twice, and an act without a row would have no author."""
    administer(admin)
    Ledger(gateway).write([event(1, cost_nusd=None, held_nusd=50), event(5), event(6), event(7)])
    adjustments.resolve(admin, request_id(1), attempt=None, cost=9, reason="invoice 7")
    month = date(NOON.year, NOON.month, 1)
    priced = {
        one.request_id: one
        for one in RepriceStore(admin).events(month, route=None, deployment=None)
    }
    found = [
        Adjustment(event=priced[request_id(n)], amount_nusd=n, reason=f"price {n}")
        for n in (5, 6, 7)
    ]
    RepriceStore(admin).post(month, found, author="ada", reason="the contract came late")
    JournalTable(gateway).register(JOURNAL, replica="gateway-2")
    JournalTable(admin).declare_lost(JOURNAL, reason="its disk died")
    assert [(act.action, act.subject, act.reason) for act in acts(admin)] == [
        ("key.create", "k000000001", None),
        ("key.create", "k000000002", None),
        ("key.rotate", "k000000001", "quarterly"),
        ("key.pause", "k000000002", "loops"),
        ("key.resume", "k000000002", "fixed"),
        ("key.revoke", "k000000002", "leaked"),
        ("pepper.register", PEPPER.pepper_id, None),
        ("policy.apply", "1", "first"),
        ("budget.grant", "payments/month", "launch"),
        ("price.add", "gpt-eu", "contract"),
        ("price.import", "policy", "price sync"),
        ("adjustment.resolution", f"{request_id(1)}/1", "invoice 7"),
        ("price.reprice", f"{month:%Y-%m}", "the contract came late"),
        ("journal.lost", str(JOURNAL), "its disk died"),
    ]
    by_action = {act.action: act for act in acts(admin)}
    assert {act.operator for act in acts(admin)} == {"ada"}
    assert by_action["key.rotate"].details["new_key"]["key_id"] == "k000000003"
    assert by_action["key.rotate"].details["becomes"].keys() == {"expires_at"}
    assert by_action["price.import"].details["entries"] == 3
    assert by_action["price.reprice"].details["entries"] == 3
    assert by_action["price.reprice"].details["amount_nusd"] == 18
    assert by_action["adjustment.resolution"].details["amount_nusd"] == 9
    assert by_action["policy.apply"].details.keys() >= {
        "sha256",
        "message",
        "author",
        "is_demo",
        "version",
    }
    assert findings(admin) == []


def test_the_same_policy_again_is_no_act(admin: Database) -> None:
    """A pipeline applies every minute; a log full of unchanged policies hides real acts."""
    apply(admin)
    apply(admin)
    assert [act.action for act in acts(admin)] == ["policy.apply"]


def test_neither_keys_nor_digests_nor_documents_are_in_the_log(admin: Database) -> None:
    """The log is exported and read by people who may not act as a team."""
    record = key(digest=bytes(range(32)))
    KeyStore(admin).create(record, created_by="ada")
    KeyStore(admin).rotate(
        record.key_id,
        make=lambda _: key("k2", digest=bytes(range(32))),
        ends_at=NOON,
        by="ada",
        now=NOON,
    )
    apply(admin, "teams: [a secret plan]")
    written = json.dumps([(act.line, act.details) for act in acts(admin)])
    assert bytes(range(32)).hex() not in written
    assert "a secret plan" not in written


def test_demo_keys_and_policies_are_marked(admin: Database) -> None:
    """An auditor must see at once which acts were only for show."""
    KeyStore(admin).create(key(is_demo=True), created_by="tollgate up")
    apply(admin, is_demo=True)
    assert [act.details["is_demo"] for act in acts(admin)] == [True, True]


@pytest.mark.parametrize(
    ("statement", "action", "subject"),
    [
        ("UPDATE tollgate.api_keys SET team = 'fraud'", "key.update", "k123456789"),
        ("UPDATE tollgate.api_keys SET digest = '\\x00'", "key.update", "k123456789"),
        ("UPDATE tollgate.api_keys SET expires_at = 'infinity'", "key.expire", "k123456789"),
        ("UPDATE tollgate.api_keys SET paused_at = now()", "key.pause", "k123456789"),
        ("DELETE FROM tollgate.api_keys", "key.delete", "k123456789"),
        ("TRUNCATE tollgate.api_keys", "key.truncate", "api_keys"),
        ("UPDATE tollgate.policies SET document = 'x'", "policy.update", "1"),
        ("DELETE FROM tollgate.policies", "policy.delete", "1"),
        ("UPDATE tollgate.budgets SET limit_nusd = 9", "budget_rule.update", "payments/month"),
        ("UPDATE tollgate.budget_grants SET amount_nusd = 9", "budget.update", "payments/month"),
        ("DELETE FROM tollgate.budget_grants", "budget.delete", "payments/month"),
        ("DELETE FROM tollgate.peppers", "pepper.delete", PEPPER.pepper_id),
        ("UPDATE tollgate.periods SET state = 'closed'", "month.update", None),
        (
            "INSERT INTO tollgate.periods (month, state) VALUES ('2020-01-01', 'closed')",
            "month.create",
            "2020-01-01",
        ),
        (
            "UPDATE tollgate.dead_letters SET resolution = 'booked by hand'",
            "dead_letter.update",
            None,
        ),
        ("DELETE FROM tollgate.journals", "journal.delete", str(JOURNAL)),
        ("UPDATE tollgate.journals SET state = 'lost'", "journal.lost", str(JOURNAL)),
        (
            "INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, "
            "occurred_at, amount_nusd, kind, reason, author) VALUES (gen_random_uuid(), "
            "'payments', 'c', '2026-11-01', now(), -5, 'goodwill', 'because', 'ada')",
            "adjustment.goodwill",
            "payments",
        ),
    ],
)
def test_a_change_by_psql_is_in_the_log_too(
    database: Database, gateway: Database, statement: str, action: str, subject: str | None
) -> None:
    """The holder of the owner's password can give a team more money without Tollgate."""
    KeyStore(database).create(key(), created_by="ada")
    apply(database)
    BudgetStore(database).grant("payments/month", 5, expires_at=None, reason="x", now=NOON)
    pepper.register(database, [PEPPER])
    Ledger(gateway).write([event(1)])
    Ledger(gateway).write_documents([b"no document"])
    JournalTable(gateway).register(JOURNAL, replica="gateway-2")
    before = acts(database)
    run(database, statement)
    (last,) = acts(database)[len(before) :]
    assert (last.action, last.operator, last.reason) == (action, None, None)
    assert subject in (last.subject, None)
    assert findings(database) == []


def test_every_table_is_watched_or_known_to_hold_no_acts(database: Database) -> None:
    """Changes in a newly added table must not go unseen."""
    with database.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT c.relname, count(t.oid) FILTER (WHERE t.tgname LIKE '%noted_for_audit') "
                "FROM pg_class c LEFT JOIN pg_trigger t ON t.tgrelid = c.oid WHERE c.relnamespace "
                "= 'tollgate'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition "
                "GROUP BY 1"
            )
        )
        watched = {str(row[0]): row[1] > 0 for row in rows}
    unwatched = {name for name, is_watched in watched.items() if not is_watched}
    assert unwatched <= NOT_ACTS, (
        "give it a trigger as the audit migrations do, or say in NOT_ACTS why not"
    )
    assert {
        "policies",
        "api_keys",
        "budget_grants",
        "price_entries",
        "adjustments",
    } <= watched.keys() - unwatched


def test_a_gateways_own_work_is_not_in_the_log(gateway: Database, database: Database) -> None:
    """A million requests an hour must not hide that hour's one administrative act."""
    JournalTable(gateway).register(JOURNAL, replica="gateway-2")
    Ledger(gateway).write([event(1, cost_nusd=None, held_nusd=50), event(2)])
    Ledger(gateway).write_documents([encode_event(event(2, cost_nusd=1))], journal_id=JOURNAL)
    assert adjustments.expire_holds(gateway, ttl=timedelta(0)) == 1
    run(database, "UPDATE tollgate.journals SET heartbeat = now() - interval '2 days'")
    assert JournalTable(gateway).lose_silent(timedelta(days=1)) == 1
    PriceStore(gateway).record_in_force({"gpt-eu": price()}, policy_version=1, at=NOON)
    assert acts(database) == []


def test_a_gateway_waits_for_no_act(admin: Database, gateway: Database) -> None:
    """An administrator who leaves a transaction open must not delay any event."""
    with admin.begin() as holding:
        holding.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        holding.execute(text("INSERT INTO tollgate.peppers (pepper_id) VALUES ('p')"))
        with gateway.begin() as busy:
            busy.execute(text("SET LOCAL lock_timeout = '50ms'"))
            held = busy.execute(
                text(
                    "SELECT count(*) FROM pg_locks "
                    "WHERE relation = 'tollgate.lock_audit_log'::regclass AND database = "
                    "(SELECT oid FROM pg_database WHERE datname = current_database())"
                )
            ).scalar_one()
        Ledger(gateway).write([event(1), event(2, cost_nusd=None, held_nusd=5)])
        assert adjustments.expire_holds(gateway, ttl=timedelta(0)) == 1
    assert held == 1, "the act held the log's lock all the while"


def test_acts_at_the_same_time_have_numbers_without_gaps(admin: Database) -> None:
    """A gap would look like a removed row."""
    ready = threading.Barrier(8)

    def create(worker: int) -> None:
        ready.wait()
        for n in range(10):
            KeyStore(admin).create(key(f"k{worker}{n:08}"), created_by="ada")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, range(8)))
    assert [act.seq for act in acts(admin)] == list(range(1, 81))
    assert findings(admin) == []


def test_a_rolled_back_change_leaves_no_row(database: Database) -> None:
    """The log records real changes, and leaves no gap for a rolled-back one."""
    KeyStore(database).create(key(), created_by="ada")
    with (
        pytest.raises(Exception, match="division by zero"),
        database.begin(reason="never") as connection,
    ):
        connection.execute(
            text(
                "UPDATE tollgate.api_keys SET revoked_at = now() + interval '1 s' / (1 - attempts) "
                "FROM (SELECT 1 AS attempts) AS one"
            )
        )
    KeyStore(database).pause("k123456789", paused_by="ada")
    assert [(act.seq, act.action, act.reason) for act in acts(database)] == [
        (1, "key.create", None),
        (2, "key.pause", None),
    ]


def test_several_acts_in_one_transaction_are_logged_in_order(database: Database) -> None:
    """A script that performs three acts in one transaction must make three rows."""
    with database.begin(reason="clean up") as connection:
        connection.execute(text("INSERT INTO tollgate.peppers (pepper_id) VALUES ('b'), ('a')"))
        connection.execute(text("DELETE FROM tollgate.peppers WHERE pepper_id = 'b'"))
    assert [(act.action, act.subject, act.reason) for act in acts(database)] == [
        ("pepper.register", "b", "clean up"),
        ("pepper.register", "a", "clean up"),
        ("pepper.delete", "b", "clean up"),
    ]


@pytest.mark.parametrize(
    "statement", ["UPDATE {} SET reason = 'x'", "DELETE FROM {}", "TRUNCATE {}"]
)
def test_the_owner_cannot_change_the_log_by_mistake(database: Database, statement: str) -> None:
    """One careless psql session must not be able to rewrite the history."""
    KeyStore(database).create(key(), created_by="ada")
    with pytest.raises(Exception, match="the audit log is never changed"):
        run(database, statement.format("tollgate.audit_log"))
    assert findings(database, *[ChainHead(1, acts(database)[0].hash)]) == []


# Edits by the owner of the tables after switching the triggers off, as a superuser could.
EDITS = (
    *(
        f"UPDATE tollgate.audit_log SET {column} = {value} WHERE seq = {{seq}}"
        for column, value in (
            ("at", "at + interval '1 microsecond'"),
            ("at", "'infinity'"),
            ("at", "at - interval '4000 years'"),
            ("db_user", "'eve'"),
            ("operator", "'eve'"),
            ("operator", "NULL"),
            ("reason", "reason || ' '"),
            ("action", "'key.other'"),
            ("subject", "upper(subject)"),
            ("details", "details || '{{\"x\": 1}}'"),
            ("details", "'{{}}'"),
            ("line", "line || ' '"),
            ("line", "replace(line, 'ada', 'eve')"),
            ("previous", "hash"),
            ("hash", "previous"),
            ("hash", "upper(hash)"),
            ("hash", "encode(sha256(convert_to(line, 'UTF8')), 'hex')"),
            ("(operator, line)", "ROW('eve', replace(line, 'ada', 'eve'))"),
        )
    ),
    "DELETE FROM tollgate.audit_log WHERE seq = {seq}",
    "DELETE FROM tollgate.audit_log WHERE seq >= {seq}",
    "UPDATE tollgate.audit_log SET seq = seq + 1000 WHERE seq >= {seq}",
    "UPDATE tollgate.audit_log AS one SET (action, subject, details) = (SELECT action, subject, "
    "details FROM tollgate.audit_log AS other WHERE other.seq = 13 - one.seq) WHERE seq = {seq}",
    "WITH moved AS (DELETE FROM tollgate.audit_log WHERE seq = {seq} RETURNING *) INSERT INTO "
    "tollgate.audit_log SELECT seq + 500, at, db_user, operator, reason, action, subject, details, "
    "line, previous, hash FROM moved",
)


def test_edits_with_the_triggers_off_are_found(database: Database, admin: Database) -> None:
    """No database can stop its superuser, so a superuser's edits must be detectable."""
    for n in range(6):
        KeyStore(admin).create(key(f"k{n:09}"), created_by="ada", reason="for the test")
        KeyStore(admin).revoke(f"k{n:09}", revoked_by="ada", reason="leaked")
    kept = AuditLog(database).head()
    assert kept is not None
    assert findings(database, kept) == []
    run(database, "CREATE TABLE tollgate.kept AS SELECT * FROM tollgate.audit_log")
    run(database, "ALTER TABLE tollgate.audit_log DISABLE TRIGGER USER")
    run(database, "ALTER TABLE tollgate.audit_log ALTER hash DROP NOT NULL")
    missed = []
    for edit in EDITS:
        for seq in (1, 7, 12):
            run(database, edit.format(seq=seq))
            if not findings(database, kept):
                missed.append((edit, seq))
            run(database, "TRUNCATE tollgate.audit_log")
            run(database, "INSERT INTO tollgate.audit_log SELECT * FROM tollgate.kept ORDER BY seq")
            assert findings(database, kept) == []
    assert missed == []


def test_an_auditor_checks_an_export_without_tollgate(
    admin: Database, database_url: str, tmp_path: Path
) -> None:
    """The test runs the guide's ten lines on a real export: the proof must not depend on the
    program that wrote the log.
    """
    guide = GUIDE.read_text()
    program = guide.partition("```python\n")[2].partition("```")[0]
    query = guide.partition("\\copy (")[2].partition(") TO")[0]

    def checked() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    administer(admin)
    export = f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)".encode()
    with psycopg.connect(database_url) as owner, owner.cursor().copy(export) as copy:
        (tmp_path / "audit.csv").write_bytes(b"".join(bytes(part) for part in copy))
    assert len(program.splitlines()) <= 10
    assert checked().stdout == f"{len(acts(admin))} rows, head {AuditLog(admin).head()}\n"
    written = (tmp_path / "audit.csv").read_text()
    (tmp_path / "audit.csv").write_text(written.replace("leaked", "nothing"))
    assert "was changed" in checked().stderr


def test_only_the_reader_role_reads_and_no_role_writes(
    database_url: str, gateway: Database
) -> None:
    """The auditor has a role that reads the finance views; a gateway cannot read the log at all."""
    reader = Database(database_url, role="tollgate_reader")
    run(reader, "SELECT * FROM finance.audit_log")
    for narrow in (reader, gateway):
        with pytest.raises(DatabaseUnavailable, match="may not do this"):
            run(narrow, "SELECT tollgate.append_audit('key.create', 'x', '{}')")
        with pytest.raises(DatabaseUnavailable, match="may not do this"):
            run(
                narrow,
                "INSERT INTO tollgate.audit_notes (is_first, action, subject, details) VALUES "
                "(true,'a','b','{}')",
            )
    reader.close()
