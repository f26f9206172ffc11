"""Commands of an operator in trouble: each finding names its next step and has its exit code."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from gateway.cli.up.demo_policy import Demo, document
from gateway.services.policy.apply import apply_policy
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests.attacks.test_postgres_behind_a_pooler import serve
from tests.cli.conftest import Cli
from tests.cli.test_price_commands import spend
from tests.gateway_process import free_port


def test_a_newer_database_is_a_finding_of_the_check(cli: Cli, database: Database) -> None:
    """A rollback of the release finds it so. Exit code 2 means a wrong use of the command."""
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.alembic_version SET version_num = '20990101_0000'")
        )
    ran = cli("db", "check", "--format", "json")
    assert (ran.code, '"is_current": false' in ran.out) == (1, True)
    assert "upgraded by a newer Tollgate" in ran.err


def test_an_older_database_is_refused_by_each_command_that_asks(
    cli: Cli, database: Database, database_url: str, tmp_path: Path
) -> None:
    """The steps that lead from it are no longer there, so `db upgrade` cannot be the advice."""
    with database.begin() as connection:
        connection.execute(
            text("UPDATE tollgate.alembic_version SET version_num = '20261128_1520'")
        )
    check, doctor, upgrade = cli("db", "check"), cli("doctor"), cli("db", "upgrade")
    ran = serve(database_url, tmp_path)
    assert (check.code, doctor.code, upgrade.code, ran.code) == (1, 1, 2, 2)
    for said in (check.err, doctor.out, upgrade.err, ran.err):
        words = " ".join(said.replace("│", " ").split())
        assert "is at revision 20261128_1520" in words
        assert "Nothing was changed. Upgrade it with commit d92c3ad7" in words


def test_a_route_without_events_is_not_repriced_in_silence(
    applied: Cli, database: Database
) -> None:
    """A mistyped name looked like a month without differences."""
    month = spend(database)
    ran = applied("price", "reprice", "--month", month, "--route", "nope", "--dry-run")
    assert (ran.code, f"No event of {month} has route 'nope'" in ran.err) == (1, True)


def test_a_wrong_format_is_named_in_plain_words(cli: Cli) -> None:
    """The prefix of a library's error says nothing."""
    ran = cli("db", "check", "--format", "xml")
    assert (ran.code, "Value error" in ran.err) == (2, False)
    assert "'xml' is not one of 'table', 'json', 'csv'" in ran.err


def test_an_age_is_shown_in_hours(applied: Cli, database: Database) -> None:
    """`3600.123` is no age that a person reads; JSON keeps the seconds."""
    spend(database, cost_nusd=None, held_nusd=1, lines=())
    assert "1 h 0 min" in applied.ok("report", "unsettled")


def test_the_doctor_of_a_stopped_demo_names_up(cli: Cli, database: Database) -> None:
    """Its engine is a child of `tollgate up`, and nothing else starts it."""
    demo = Demo(
        engine_url=f"http://127.0.0.1:{free_port()}",
        engine_model="tiny",
        engine_key="file:/srv/engine-key",
        context_window=4096,
        has_external=False,
        may_fall_back=False,
    )
    apply_policy(
        parse(document(demo)),
        policies=PolicyStore(database),
        prices=PriceStore(database),
        builtin=builtin_price,
        author="a test",
        message="",
        now=datetime.now(UTC),
        is_demo=True,
    )
    assert "tollgate up, which starts the demo's engine too" in cli("doctor").out
