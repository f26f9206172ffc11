"""`tollgate audit` and the role that administration runs in."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from gateway.main import build_toolbox
from gateway.settings import Settings
from tests.cli.conftest import Cli
from tests.policy.documents import ALLOWED


@pytest.fixture
def owner(database_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody with the owner's password and `psql`."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def forge(owner: psycopg.Connection[tuple[object, ...]], statement: str) -> None:
    owner.execute("ALTER TABLE tollgate.audit_log DISABLE TRIGGER USER")
    owner.execute(statement.encode())


def test_an_untouched_log_verifies(applied: Cli) -> None:
    """The everyday answer, with the step that makes it stronger."""
    ran = applied("audit", "verify")
    assert ran.code == 0
    assert "each as it was written" in ran.err
    assert "tollgate audit head" in ran.err
    verdict = json.loads(applied.ok("audit", "verify", "--format", "json"))
    assert (verdict["is_whole"], verdict["findings"], verdict["left_out"]) == (True, [], 0)
    assert f"{verdict['head']['seq']} {verdict['head']['hash']}\n" == applied.ok("audit", "head")
    assert applied.ok("audit", "verify", "--format", "csv").split() == ["seq,what"]


def test_an_edit_is_a_finding(applied: Cli, owner: psycopg.Connection[tuple[object, ...]]) -> None:
    """Exit 1, and the row's number: a nightly job mails that."""
    forge(owner, "UPDATE tollgate.audit_log SET operator = 'eve' WHERE seq = 2")
    ran = applied("audit", "verify", "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out)["findings"] == [
        {"seq": 2, "what": "`operator` is not what its `line` says"}
    ]
    assert "is not as it was written" in ran.err


def test_a_cut_off_end_is_found_against_a_kept_head(
    applied: Cli, owner: psycopg.Connection[tuple[object, ...]], tmp_path: Path
) -> None:
    """Without the head the remainder looks whole."""
    kept = tmp_path / "heads"
    kept.write_text(applied.ok("audit", "head"))
    applied.ok("key", "create", "payments", "--reason", "launch")
    with kept.open("a") as file:
        file.write(applied.ok("audit", "head"))
    assert applied("audit", "verify", "--head-file", str(kept)).code == 0
    last = kept.read_text().splitlines()[-1]
    forge(
        owner,
        "DELETE FROM tollgate.audit_log WHERE seq = (SELECT max(seq) FROM tollgate.audit_log)",
    )
    assert applied("audit", "verify").code == 0
    for asked in (("--head-file", str(kept)), ("--head", last)):
        ran = applied("audit", "verify", *asked)
        assert ran.code == 1
        assert "it is missing: a head was kept of it" in ran.out


def test_a_check_that_cannot_run_is_reported(applied: Cli, tmp_path: Path) -> None:
    """A check that did not run must not look like one that found nothing."""
    assert applied("audit", "verify", "--head", "7 abc").code == 2
    assert applied("audit", "verify", "--head", " ").code == 2
    assert applied("audit", "verify", "--head-file", str(tmp_path / "none")).code == 2
    (tmp_path / "empty").write_text("")
    assert applied("audit", "verify", "--head-file", str(tmp_path / "empty")).code == 2
    (tmp_path / "empty").write_text("\n  \n")
    assert applied("audit", "verify", "--head-file", str(tmp_path / "empty")).code == 2
    away = Cli(
        build_toolbox(Settings(home=tmp_path, database_url="postgresql://x:hunter2@127.0.0.1:1/x"))
    )
    for command in (("verify",), ("head",), ("list",)):
        ran = away("audit", *command)
        assert ran.code == 3
        assert "hunter2" not in ran.err


def test_a_rewritten_log_shows_the_first_findings_and_a_count(
    applied: Cli, owner: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A million lines of findings help no reader: the first are shown, the others counted."""
    forge(
        owner,
        "INSERT INTO tollgate.audit_log SELECT n, now(), '', '', '', '', '', '{}', '', '', '' "
        "FROM generate_series(1000, 2000) AS n",
    )
    verdict = json.loads(applied("audit", "verify", "--format", "json").out)
    assert len(verdict["findings"]) == 1000
    assert verdict["left_out"] > 1000


def test_acts_are_listed_with_person_and_reason(applied: Cli) -> None:
    """An auditor's first question, in a form that a spreadsheet reads."""
    made = json.loads(
        applied.ok("key", "create", "payments", "--reason", "launch", "--format", "json")
    )
    applied.ok("key", "revoke", made["key_id"], "--reason", "=leaked()")
    (created, revoked) = json.loads(
        applied.ok("audit", "list", "--action", "key.", "--format", "json")
    )
    assert (created["reason"], revoked["reason"]) == ("launch", "=leaked()")
    assert created["operator"]
    assert created["details"]["team"] == "payments"
    assert {"line", "previous", "hash"} <= revoked.keys()
    rows = list(
        csv.DictReader(io.StringIO(applied.ok("audit", "list", "--all", "--format", "csv")))
    )
    assert [row["action"] for row in rows][:1] == ["pepper.register"]
    assert rows[-1]["reason"] == "'=leaked()", "a spreadsheet would run it"
    assert json.loads(rows[-1]["line"])["reason"] == "=leaked()"
    assert "key.revoke" in applied.ok("audit", "list", "--subject", made["key_id"])
    assert applied("audit", "list", "--subject", "nobody").err.startswith("No such act.")
    assert applied("audit", "list", "--since", "soon").code == 2


def test_commands_run_in_the_role_of_administration(applied: Cli, database_url: str) -> None:
    """The login may be the owner's; the commands need far fewer rights."""
    checks = {row["check"]: row for row in json.loads(applied("doctor", "--format", "json").out)}
    assert checks["administration"]["status"] == "ok"
    assert "tollgate_admin" in checks["administration"]["finding"]


@pytest.fixture
def narrow(applied: Cli, database_url: str, tmp_path: Path) -> Iterator[Cli]:
    """A command line whose login is an administrator's and nothing else."""
    login = f"ada_{tmp_path.name}"[:60]
    with psycopg.connect(database_url, autocommit=True) as owner:
        name = sql.Identifier(login)
        owner.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE tollgate_admin").format(name)
        )
        head, _, rest = database_url.partition("@")
        url = f"{head.partition('://')[0]}://{login}:secret@{rest}"
        made = Settings(home=tmp_path / "home", database_url=database_url, admin_database_url=url)
        yield Cli(build_toolbox(made))
        owner.execute(sql.SQL("DROP ROLE {}").format(name))


def test_an_administrators_own_login_can_run_every_command(
    narrow: Cli, policy_file: Path, owner: psycopg.Connection[tuple[object, ...]]
) -> None:
    """A login for each person gives `db_user` its value."""
    made = json.loads(narrow.ok("key", "create", "payments", "--format", "json"))
    narrow.ok("key", "pause", made["key_id"])
    narrow.ok("key", "resume", made["key_id"])
    rotated = json.loads(narrow.ok("key", "rotate", made["key_id"], "--format", "json"))
    narrow.ok("key", "revoke", rotated["key_id"])
    narrow.ok("key", "list")
    narrow.ok("team", "list")
    policy_file.write_text(ALLOWED)
    narrow.ok("policy", "apply", str(policy_file), "--yes", "--message", "second")
    narrow.ok("policy", "show")
    narrow.ok(
        "price",
        "add",
        "m-large",
        "--input",
        "1",
        "--output",
        "2",
        "--source",
        "contract",
        "--reason",
        "new",
    )
    narrow.ok("price", "sync", "--yes")
    narrow.ok("price", "list")
    narrow.ok("budget", "list")
    narrow.ok("budget", "grant", "payments/month", "5", "--reason", "launch")
    narrow.ok("budget", "show", "payments/month")
    journal = str(UUID(int=7))
    owner.execute(
        "INSERT INTO tollgate.journals (id, replica) VALUES (%s, 'gateway-2')", (journal,)
    )
    narrow.ok("journal", "lost", journal, "--reason", "its disk died")
    narrow.ok("journal", "list")
    narrow.ok("audit", "verify")
    acts = json.loads(narrow.ok("audit", "list", "--all", "--format", "json"))
    assert {act["db_user"] for act in acts if act["action"].startswith("key.")} == {
        acts[-1]["db_user"]
    }
    assert acts[-1]["db_user"].startswith("ada_")
    checks = {row["check"]: row for row in json.loads(narrow("doctor", "--format", "json").out)}
    assert checks["administration"]["status"] == "ok"


def test_tables_are_upgraded_by_their_owner(narrow: Cli) -> None:
    """The administrator of policies and keys need not own the tables."""
    narrow.ok("db", "upgrade")
    assert "ada_" not in narrow.ok("db", "url")


def test_a_login_that_is_no_member_is_named(
    cli_at: Callable[[str], Cli], cli: Cli, database_url: str, tmp_path: Path
) -> None:
    """Commands with all rights are a warning, with the statement that fixes it."""
    login = f"bob_{tmp_path.name}"[:60]
    with psycopg.connect(database_url, autocommit=True) as owner:
        name = sql.Identifier(login)
        owner.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret' IN ROLE tollgate_gateway").format(name)
        )
        try:
            head, _, rest = database_url.partition("@")
            bob = cli_at(f"{head.partition('://')[0]}://{login}:secret@{rest}")
            checks = {
                row["check"]: row for row in json.loads(bob("doctor", "--format", "json").out)
            }
            assert checks["administration"]["status"] == "warn"
            assert (
                checks["administration"]["what to do"]
                == f'as its owner: GRANT tollgate_admin TO "{login}"'
            )
        finally:
            owner.execute(sql.SQL("DROP ROLE {}").format(name))
