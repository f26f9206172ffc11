"""Commands had no time limit if Postgres accepts the connection and never answers; not even
`doctor` ended.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.errors import DatabaseUnavailable
from gateway.main import build_toolbox
from gateway.settings import Settings
from gateway.storage.postgres import database as module
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.integration.postgres_gate import PostgresGate


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """Yield a gate in front of this test's database."""
    admission = PostgresGate(database_url)
    yield admission
    admission.close()


@pytest.mark.parametrize("command", ["doctor", "budget list", "report spend"])
def test_a_command_ends_when_postgres_never_answers(
    admission: PostgresGate, tmp_path: Path, command: str
) -> None:
    """A cron job hung forever, and so did the next one beside it."""
    cli = Cli(build_toolbox(Settings(home=tmp_path / "home", database_url=admission.url)))
    cli.ok("db", "upgrade")
    admission.answer_logins_only()
    done = cli(*command.split())
    assert done.code == 3
    assert "did not answer in time" in done.out + done.err


def test_a_long_question_of_a_server_that_lives_is_waited_for(database: Database) -> None:
    """A migration may take hours, so a separate connection checks whether the server lives."""
    with database.begin() as connection:
        assert (
            connection.execute(
                text(f"SELECT 7 FROM pg_sleep({module.LOOK_AFTER_S + 1})")
            ).scalar_one()
            == 7
        )


def test_a_server_without_room_for_a_look_is_alive(
    database: Database, admission: PostgresGate
) -> None:
    """An error, too, proves that the server lives."""
    assert database.answers()
    behind = Database(admission.url)
    admission.shut()
    assert behind.answers()
    admission.accept_without_answering()
    assert not behind.answers()
    with pytest.raises(DatabaseUnavailable), behind.begin():
        pass
