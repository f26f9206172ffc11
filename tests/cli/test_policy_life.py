"""`policy plan`, `apply`, `rollback`, `test` and `export`, as a person or a pipeline runs them."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.cli.policy.wait_until_live import result_text
from gateway.domain.ledger.journals import ServingWorker
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.policy.documents import EXAMPLE, changed
from tests.storage.factories import event, request_id


@pytest.fixture
def traffic(applied: Cli, database_url: str) -> Cli:
    """Three requests of team payments, an hour ago."""
    database = Database(database_url)
    at = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    events = [
        event(
            number,
            at=at,
            team="payments",
            route="assistant",
            deployment="gpt-eu",
            model="gpt-5.5",
            region="eu",
            features={"input_bound_tokens": 5000, "max_output_tokens": 100, "class_source": "team"},
            decision={"ranked": ["gpt-eu"]},
        )
        for number in range(3)
    ]
    assert Ledger(database).write(events) == 3
    database.close()
    return applied


def test_a_plan_changes_nothing_and_says_so_by_its_exit_code(
    applied: Cli, policy_file: Path
) -> None:
    """A pipeline asks whether there is anything to apply."""
    assert applied("policy", "plan", str(policy_file), "--exit-code").code == 0
    policy_file.write_text(changed("data_class: internal", "data_class: public"))
    ran = applied("policy", "plan", str(policy_file), "--exit-code")
    assert ran.code == 1
    assert "~ team search\n      data_class: internal → public\n" in ran.out
    assert ran.out.splitlines()[-1].startswith("1 change; none of them hurts; --replay 30d")
    assert applied("policy", "plan", str(policy_file)).code == 0
    assert len(json.loads(applied.ok("policy", "history", "--format", "json"))) == 1


def test_a_plan_lists_the_most_harmful_change_first(traffic: Cli, policy_file: Path) -> None:
    """A team with live keys that is removed is the first line, not the last of sixty."""
    traffic.ok("key", "create", "search")
    document = "".join(
        line for line in EXAMPLE.splitlines(keepends=True) if "{name: search" not in line
    )
    policy_file.write_text(document)
    ran = traffic("policy", "plan", str(policy_file))
    assert ran.code == 0, ran
    assert "HURTS: team search is removed and has 1 live key" in ran.out.splitlines()[1]


def test_several_files_are_applied_as_one_document(
    applied: Cli, policy_file: Path, tmp_path: Path
) -> None:
    """The history has the joined document, and the pipeline the hash of each file."""
    base, _, teams = EXAMPLE.partition("teams:\n")
    policy_file.write_text(base)
    other = tmp_path / "the teams.yaml"
    other.write_text("teams:\n" + teams)
    both = (str(policy_file), str(other))
    assert "Next: tollgate policy apply" in applied("policy", "validate", *both).err
    assert applied("policy", "plan", *both, "--exit-code").code == 0
    printed = json.loads(applied.ok("policy", "apply", *both, "--format", "json"))
    assert printed["files"] == [
        {"path": path, "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}
        for path in both
    ]
    exported = applied.ok("policy", "export")
    assert printed["sha256"] == hashlib.sha256(exported.encode()).hexdigest()
    assert (exported, printed["version"]) == (EXAMPLE, 1)  # the files have all of its bytes


def test_an_error_in_several_files_is_a_record_with_its_file(
    applied: Cli, policy_file: Path, tmp_path: Path
) -> None:
    """Pipelines annotate the file and the line."""
    other = tmp_path / "more.yaml"
    other.write_text("teams:\n  - {name: search}\n")
    both = (str(policy_file), str(other))
    ran = applied("policy", "validate", *both, "--format", "json")
    found = json.loads(ran.out)["findings"]
    assert (ran.code, {one["file"] for one in found}) == (1, {str(other)})
    ran = applied("policy", "apply", *both, "--yes")
    assert ran.code == 1
    assert f"{other}, line 2: error: teams[0].name: team 'search' is there twice" in ran.err
    for arguments, problem in (
        ((both[0], both[0]), "is given twice. Name each file of the document once."),
        ((str(tmp_path),), f"is a folder. Name its files, such as {tmp_path}/*.yaml."),
    ):
        ran = applied("policy", "validate", *arguments)
        assert (ran.code, problem in ran.err) == (2, True), ran


def test_a_replay_is_a_table_json_and_csv(traffic: Cli, policy_file: Path) -> None:
    """The same figures for people and programs, and the sentence at the end of each."""
    planned = json.loads(
        traffic.ok("policy", "plan", str(policy_file), "--replay", "2h", "--format", "json")
    )
    replay = planned["replay"]
    assert (planned["changes"], replay["requests"]) == ([], 3)
    (row,) = replay["rows"]
    assert (row["team"], row["route"], row["requests"]) == ("payments", "assistant", 3)
    assert planned["sentence"].endswith(".")
    text = traffic.ok("policy", "plan", str(policy_file), "--replay", "2h")
    assert "payments" in text
    assert text.splitlines()[-1] == planned["sentence"]
    csv = traffic("policy", "plan", str(policy_file), "--replay", "2h", "--format", "csv")
    assert csv.out.startswith("team,route,requests,moved")
    assert planned["sentence"] in csv.err
    assert traffic("policy", "plan", str(policy_file), "--replay", "soon").code == 2
    assert traffic("policy", "plan", str(policy_file), "--replay", "0d").code == 2


def test_a_rollback_is_a_new_version_with_the_old_document(applied: Cli, policy_file: Path) -> None:
    """History only grows; a second rollback goes back again."""
    policy_file.write_text(changed("data_class: internal", "data_class: public"))
    second = applied("policy", "apply", str(policy_file), "--yes")
    assert "No gateway is running" in second.err
    assert "Undo it with: tollgate policy rollback 1" in second.err
    assert applied("policy", "rollback").code == 2, "nobody can be asked here"
    back = applied("policy", "rollback", "--yes")
    assert back.code == 0, back
    assert "~ team search\n      data_class: public → internal\n" in back.err
    assert applied.ok("policy", "export") == EXAMPLE
    applied.ok(
        "policy", "rollback", "2", "--yes", "--no-wait", "--reason", "it was right after all"
    )
    assert applied.ok("policy", "export") == policy_file.read_text()
    history = json.loads(applied.ok("policy", "history", "--format", "json"))
    assert [(one["version"], one["message"]) for one in history][:2] == [
        (4, "it was right after all"),
        (3, "rollback to version 1"),
    ]
    assert applied("policy", "rollback", "4", "--yes").code == 2
    assert applied("policy", "rollback", "99", "--yes").code == 1


def test_nothing_comes_before_the_first_version(applied: Cli) -> None:
    """A rollback that finds nothing changes nothing."""
    ran = applied("policy", "rollback", "--yes")
    assert ran.code == 1
    assert "no version before 1" in ran.err


def test_an_export_is_the_file_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    """Including line ends: its hash is the version's, so a file in git can be compared with the
    running policy.
    """
    path = tmp_path / "odd.yaml"
    path.write_bytes(EXAMPLE.replace("\n", "\r\n").encode() + "# Grüße\r\n\r\n".encode())
    applied = json.loads(cli.ok("policy", "apply", str(path), "--format", "json"))
    exported = CliRunner().invoke(build_app(cli.toolbox), ["policy", "export"])
    assert exported.stdout_bytes == path.read_bytes()
    assert applied["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert cli("policy", "export", "7").code == 1


def test_the_history_names_the_login_and_its_user(applied: Cli, database_url: str) -> None:
    """A shared login says little; the name at the terminal can be set by anyone: both are kept."""
    with psycopg.connect(database_url) as connection:
        (database,) = connection.execute("SELECT current_database()").fetchone() or ("",)
    login = f"{database}_admin_login"  # administration has a login of its own
    (first,) = json.loads(applied.ok("policy", "history", "--format", "json"))
    assert first["author"].split(" ")[0] == login


CASES = """\
cases:
  - {team: payments, route: assistant, class: restricted, expect: [qwen-eu]}
  - {team: payments, route: nowhere, denied: model}
"""


def test_cases_pass_or_exit_with_one(applied: Cli, policy_file: Path, tmp_path: Path) -> None:
    """A policy's expected decisions are in git beside it, and a pipeline stops at a miss."""
    cases = tmp_path / "cases.yaml"
    cases.write_text(CASES)
    assert "2 of 2 as expected" in applied("policy", "test", str(cases)).err
    cases.write_text(CASES.replace("[qwen-eu]", "[gpt-eu]"))
    ran = applied("policy", "test", str(cases), "--format", "json")
    assert ran.code == 1
    missed, met = json.loads(ran.out)
    assert (missed["line"], missed["expected"], missed["got"], missed["is_met"]) == (
        2,
        "gpt-eu",
        "qwen-eu",
        False,
    )
    assert met["is_met"]
    assert applied("policy", "test", str(cases), "--policy", str(policy_file)).code == 1
    cases.write_text("cases:\n  - {team: payments}\n")
    ran = applied("policy", "test", str(cases))
    assert ran.code == 1
    assert "line 2: error: cases[0].route" in ran.err
    assert "Nothing was tested" in ran.err


def worker(replica: str, version: int | None) -> ServingWorker:
    return ServingWorker(
        id=request_id(), replica=replica, policy_version=version, policy_seen_at=None
    )


def test_the_result_of_the_wait_is_printed_in_one_line() -> None:
    """Who lags is named: somebody has to go and look."""
    assert result_text([], [], 0.0).startswith("No gateway is running")
    assert result_text([worker("a", 3)], [], 0.31) == "Live on 1/1 replica in 0.3 s."
    behind = [worker("b", 2), worker("c", None)]
    line = result_text([worker("a", 3), *behind], behind, 10.2)
    assert line.startswith("Live on 1/3 replicas after 10 s. Behind: b (journal ")
    assert "serves version 2; c (journal " in line
    assert "has not reported its version" in line
