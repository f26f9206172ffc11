"""The contract for scripts and people: help, exit codes, JSON shapes, and secrets that stay
secret.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from gateway.cli.app import run_cli
from gateway.cli.dashboard import environment, is_loopback, run_until_stopped
from gateway.cli.key import duration
from gateway.domain.policy.api_keys import key_id_of
from gateway.errors import BadUsage
from gateway.main import build_toolbox
from gateway.settings import Settings
from tests.cli.conftest import Cli
from tests.policy.documents import EXAMPLE, changed

CLOSED_URL = "postgresql://nobody:hunter2@127.0.0.1:1/nothing"  # port 1 has no listener
NOT_BUILT = ("rollback", "simulate")


def without_database(*arguments: str) -> int:
    return run_cli(lambda: build_toolbox(Settings(database_url=CLOSED_URL)), list(arguments))


def test_help_names_only_commands_that_exist(capfd: pytest.CaptureFixture[str]) -> None:
    """A command in the help that does not exist costs trust in all others."""
    assert without_database("--help") == 0
    text = capfd.readouterr().out
    assert "tollgate db upgrade" in text
    assert "tollgate policy apply" in text
    commands = [
        line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.strip()
    ]
    assert {
        "up",
        "serve",
        "dashboard",
        "engine",
        "doctor",
        "db",
        "policy",
        "team",
        "key",
        "price",
        "report",
    } <= set(commands)
    assert not set(NOT_BUILT) & set(commands)


def test_help_of_a_report_begins_with_its_question(capfd: pytest.CaptureFixture[str]) -> None:
    """The options are the same for every report; what it answers is not."""
    assert without_database("report", "savings", "--help") == 0
    text = " ".join(capfd.readouterr().out.split())
    assert "What did the providers' prompt caches save? Split by model" in text
    assert without_database("report", "prices", "--help") == 0
    assert "Which prices count" in capfd.readouterr().out


def test_help_needs_no_settings() -> None:
    """Whoever broke a setting looks into the help first."""

    def broken() -> None:
        raise BadUsage("TOLLGATE_PORT is wrong.")

    assert run_cli(broken, ["--help"]) == 0  # type: ignore[arg-type]  # never called
    assert run_cli(broken, ["key", "list"]) == 2  # type: ignore[arg-type]  # raises


def test_help_is_quick() -> None:
    """A slow command line is not explored; heavy imports wait for their command."""
    code = (
        "import sys; from gateway.main import run; sys.argv = ['tollgate', "
        "'--version']\ntry: run()\nfinally:\n"
    )
    code += (
        " print([m for m in ('sqlalchemy', 'alembic', 'fastapi', 'genai_prices', "
        "'psycopg') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["tollgate 0.1.0", "[]"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["frobnicate"], 2),
        (["report"], 2),
        (["key", "create"], 2),
        (["key", "list", "--format", "xml"], 2),
        (["key", "list"], 3),
        (["team", "list"], 3),
        (["report", "spend"], 3),
        (["db", "check"], 3),
        (["doctor"], 3),
        (["policy", "validate", "no-such-file.yaml"], 2),
        (["policy", "explain"], 2),
        (["policy", "explain", "not-an-id"], 2),
        (["month", "status"], 3),
        (["month", "status", "November"], 2),
        (["journal", "list"], 3),
        (["budget", "list"], 3),
        (["budget", "grant", "x", "1"], 2),
        (["journal", "lost", "no-id", "--reason", "x"], 2),
        (["reconcile", "dead-letters"], 3),
        (["reconcile", "retry", "no-id"], 2),
        (["reconcile", "resolve", "no-id", "--as", "zero", "--reason", "x"], 2),
        (["report", "nonsense"], 1),
        (["report", "spend", "--by", "nonsense"], 2),
        (["report", "spend", "--month", "yesterday"], 2),
        (["report", "events", "--where", "team"], 2),
        (["report", "events", "--offset", "-1"], 2),
        (["report", "events", "--offset", str(2**63)], 2),
        (["report", "list"], 0),
        (["--version"], 0),
    ],
)
def test_exit_codes_tell_findings_from_faults(
    arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """CI must tell a rejected document from a database that is away."""
    assert without_database(*arguments) == code
    printed = capfd.readouterr()
    assert (printed.out + printed.err).strip(), "no command ends without a word"
    assert "Traceback" not in printed.err
    assert "hunter2" not in printed.out + printed.err, "a password must not reach a log"


def test_a_message_offers_only_what_its_command_takes(capfd: pytest.CaptureFixture[str]) -> None:
    """`month status all` was answered with `or all`; a wrong offset was called a wrong page."""
    assert without_database("month", "status", "all") == 2
    assert capfd.readouterr().err == (
        "'all' is not a month. Write it as YYYY-MM, for example 2026-11.\n"
    )
    assert without_database("report", "spend", "--month", "x") == 2
    assert "or 'all'" in capfd.readouterr().err
    assert without_database("report", "spend", "--offset", "-3") == 2
    assert capfd.readouterr().err == "A page starts at row 0 or later; got -3.\n"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("report", "spend", "--team", "demo"), "(Possible options: --where team=VALUE)"),
        (
            ("export", "events", "--cost-centre", "x"),
            "(Possible options: --where cost_centre=VALUE",
        ),
        (("export", "events", "--demo"), "(Possible options: --month, --to)"),
        (("month", "status", "--team", "x"), "No such option: --team"),
    ],
)
def test_a_dimension_that_is_no_option_leads_to_its_filter(
    arguments: tuple[str, ...], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A newcomer guesses `--team`, as of other commands, and was offered `--demo` and `--to`."""
    assert without_database(*arguments) == 2
    shown = capfd.readouterr().err
    assert hint in shown
    assert ("--where" in shown) == ("--where" in hint)


@pytest.mark.parametrize("command", [["show"], ["export"], ["rollback", "--yes"]])
@pytest.mark.parametrize("number", ["0", "77", "2147483648", "9" * 20])
def test_a_number_that_is_no_version_is_a_finding(
    applied: Cli, command: list[str], number: str
) -> None:
    """A number beyond the column printed the statement and asked for a report of the defect."""
    ran = applied("policy", *command, number)
    assert ran.code == 1
    assert ran.err.startswith(f"There is no policy version {number}.")


def test_debug_shows_the_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A developer of Tollgate needs it, while others do not want it."""
    monkeypatch.setenv("TOLLGATE_DEBUG", "1")
    assert without_database("key", "list") == 3
    assert "Traceback" in capfd.readouterr().err


def test_an_upgrade_makes_tables_pepper_and_partitions_once(
    cli_at: Callable[[str], Cli], empty_database_url: str, tmp_path: Path
) -> None:
    """The first command after the installation; the second run must change nothing."""
    cli = cli_at(empty_database_url)
    assert cli("db", "check").code == 1
    first = json.loads(cli.ok("db", "upgrade", "--format", "json"))
    assert first["applied"]
    assert first["pepper_new"] is True
    pepper = tmp_path / "home" / "pepper"
    assert pepper.stat().st_mode & 0o777 == 0o600
    secret = pepper.read_text()
    second = json.loads(cli.ok("db", "upgrade", "--format", "json"))
    assert (second["applied"], second["partitions"], second["pepper_new"]) == ([], [], False)
    assert pepper.read_text() == secret
    assert json.loads(cli.ok("db", "check", "--format", "json"))["is_current"] is True


def test_a_lost_pepper_is_never_replaced_beside_keys(applied: Cli, tmp_path: Path) -> None:
    """A new pepper would turn every key away, and look like the right one afterwards."""
    applied.ok("key", "create", "payments")
    pepper = tmp_path / "home" / "pepper"
    pepper.unlink()
    ran = applied("db", "upgrade")
    assert ran.code == 2
    assert "Restore it" in ran.err
    assert not pepper.exists()


def test_an_apply_prints_version_and_hash(cli: Cli, policy_file: Path) -> None:
    """Pipelines keep the version; printing JSON does not ask."""
    printed = json.loads(cli.ok("policy", "apply", str(policy_file), "--format", "json"))
    assert list(printed) == ["version", "sha256"]
    assert printed["version"] == 1
    again = json.loads(cli.ok("policy", "apply", str(policy_file), "--format", "json"))
    assert again == printed


def test_an_apply_that_cannot_ask_applies_nothing(cli: Cli, policy_file: Path) -> None:
    """A cron job must not change a policy only because no refusal came."""
    ran = cli("policy", "apply", str(policy_file))
    assert ran.code == 2
    assert "--yes" in ran.err
    assert "+ team payments" in ran.err
    assert cli("policy", "show").code == 1


def test_an_apply_shows_the_changes(applied: Cli, policy_file: Path) -> None:
    """The admin confirms the difference."""
    policy_file.write_text(changed("data_class: internal", "data_class: public"))
    ran = applied("policy", "apply", str(policy_file), "--yes")
    assert (
        "Compared with version 1:\n  ~ team search\n      data_class: internal → public\n"
        in ran.err
    )
    assert [
        row["version"] for row in json.loads(applied.ok("policy", "history", "--format", "json"))
    ] == [2, 1]


def test_a_rejected_document_changes_nothing_and_gives_the_line(
    applied: Cli, policy_file: Path
) -> None:
    """The gateway keeps the last good policy."""
    policy_file.write_text(changed("region: eu-de", "region: eu-dee"))
    ran = applied("policy", "apply", str(policy_file), "--yes")
    assert ran.code == 1
    assert "line 13: error: deployments[0].region" in ran.err
    assert "did you mean 'eu-de'?" in ran.err
    assert len(json.loads(applied.ok("policy", "history", "--format", "json"))) == 1


def test_validate_reports_findings_as_data(cli: Cli, policy_file: Path) -> None:
    """Editors and CI read them; no database is needed."""
    policy_file.write_text(changed("version: 1", "version: 2"))
    ran = cli("policy", "validate", str(policy_file), "--format", "json")
    assert ran.code == 1
    assert json.loads(ran.out) == {
        "valid": False,
        "findings": [
            {
                "line": 1,
                "field": "version",
                "message": "must be 1, the only version this Tollgate reads",
                "is_error": True,
            }
        ],
    }
    table = cli("policy", "validate", "-", given=EXAMPLE)
    assert table.code == 0
    assert "note: teams: unlimited: payments, search" in table.out
    assert "note: deployments: deployment 'partner'" not in table.out
    rows = list(
        csv.DictReader(
            io.StringIO(cli.ok("policy", "validate", "-", "--format", "csv", given=EXAMPLE))
        )
    )
    assert rows[0]["is_error"] == "false"


def test_show_prints_a_policy_again(applied: Cli, tmp_path: Path) -> None:
    """The policy in force can be exported, changed and applied."""
    assert applied.ok("policy", "show") == EXAMPLE
    effective = tmp_path / "effective.yaml"
    effective.write_text(applied.ok("policy", "show", "1", "--effective"))
    assert "input_overhead_tokens: 64" in effective.read_text()
    assert applied("policy", "validate", str(effective)).code == 0
    shown = json.loads(applied.ok("policy", "show", "--format", "json"))
    assert shown["policy"]["deployments"][2]["price"]["input_usd_per_mtok"] == 0.80
    assert "deployments[2].price.input_usd_per_mtok,0.80" in applied.ok(
        "policy", "show", "--format", "csv"
    )
    assert applied("policy", "show", "9").code == 1


def test_a_decision_is_explained_without_sending(applied: Cli) -> None:
    """Residency questions are asked before the data moves."""
    asked = (
        "policy",
        "explain",
        "--team",
        "payments",
        "--route",
        "gpt-4o",
        "--class",
        "restricted",
    )
    explained = json.loads(applied.ok(*asked, "--tokens", "1000000", "--format", "json"))
    assert explained["policy_version"] == 1
    assert (explained["route"], explained["data_class"], explained["is_refused"]) == (
        "assistant",
        "restricted",
        False,
    )
    assert [(c["rank"], c["deployment"]) for c in explained["candidates"]] == [
        (1, "qwen-eu"),
        (None, "gpt-eu"),
    ]
    first = explained["candidates"][0]
    # The prompt is 0.043055556; without a length of the answer the expected one is in the cost.
    assert first["cost_usd"] == first["expected"]["cost_nusd"] / 10**9 == 0.043231911
    table = applied(*asked)
    assert "self-hosted" in table.out
    assert "Goes to qwen-eu." in table.err


def test_a_new_key_is_shown_once_and_kept_nowhere(
    applied: Cli, database_url: str, tmp_path: Path
) -> None:
    """Whoever reads the database or the home must not be able to call as a team."""
    created = json.loads(
        applied.ok("key", "create", "payments", "--project", "p", "--expires", "90d", "-f", "json")
    )
    assert list(created) == ["key", "key_id", "team", "project", "expires_at"]
    assert key_id_of(created["key"]) == created["key_id"]
    secret = created["key"].rpartition("_")[2]
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
            "WHERE schemaname IN ('tollgate', 'finance')"
        ).fetchall()
        rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for (table,) in tables]
    assert created["key_id"] in repr(rows)
    assert secret not in repr(rows)
    assert secret not in "".join(
        p.read_text() for p in (tmp_path / "home").rglob("*") if p.is_file()
    )
    assert secret not in applied.ok("key", "list", "--format", "json")


def test_a_key_can_be_revoked_by_id_or_by_itself(applied: Cli) -> None:
    """In an incident people paste the key that they have."""
    first = json.loads(applied.ok("key", "create", "payments", "--format", "json"))
    second = json.loads(applied.ok("key", "create", "search", "--format", "json"))
    applied.ok("key", "revoke", first["key_id"])
    ran = applied("key", "revoke", second["key"])
    assert ran.code == 0
    assert second["key"] not in ran.out + ran.err
    assert json.loads(applied.ok("key", "list", "--format", "json")) == []
    states = [
        row["state"] for row in json.loads(applied.ok("key", "list", "--all", "--format", "json"))
    ]
    assert states == ["revoked", "revoked"]
    assert "revoked before" in applied("key", "revoke", first["key_id"]).err
    assert applied("key", "revoke", "AAAAAAAAAA").code == 1


def test_a_key_needs_a_team_of_the_policy(applied: Cli) -> None:
    """A key of a team that does not exist would be refused at its first call."""
    ran = applied("key", "create", "payment")
    assert ran.code == 1
    assert "Did you mean 'payments'?" in ran.err
    assert applied("key", "create", "payments", "--expires", "soon").code == 2
    assert applied("key", "create", "payments", "--project", "a=b").code == 2


def test_lists_are_objects_and_rows(applied: Cli) -> None:
    """The same data for people, programs and spreadsheets."""
    teams = json.loads(applied.ok("team", "list", "--format", "json"))
    assert teams[0] == {
        "team": "payments",
        "cost_centre": "CC-1207",
        "data_class": "confidential",
        "routes": ["assistant"],
        "live_keys": 0,
    }
    table = applied.ok("team", "list").splitlines()
    assert table[0].split() == ["team", "cost_centre", "data_class", "routes", "live_keys"]
    assert not any("\x1b" in line or "│" in line or line != line.rstrip() for line in table)
    shown = json.loads(applied.ok("team", "show", "payments", "--format", "json"))
    assert shown["routes"][0]["allowed"] == ["qwen-eu", "gpt-eu"]
    prices = list(csv.DictReader(io.StringIO(applied.ok("price", "list", "--format", "csv"))))
    assert [p["usd_per_mtok"] for p in prices if p["deployment"] == "partner"] == [
        "0.80",
        "0.20",
        "3.20",
    ]
    assert {p["source"] for p in prices if p["deployment"] == "partner"} == {"policy"}
    assert "$0.0430556" in applied.ok("price", "list"), "a small rate is not rounded to nothing"


def test_a_cell_cannot_become_a_formula(applied: Cli, policy_file: Path) -> None:
    """Finance opens these files in a spreadsheet."""
    policy_file.write_text(changed("cost_centre: CC-1207", 'cost_centre: "=HYPERLINK(1)"'))
    applied.ok("policy", "apply", str(policy_file), "--yes")
    assert "'=HYPERLINK(1)" in applied.ok("team", "list", "--format", "csv")


def test_the_help_of_a_report_lists_what_it_takes(cli: Cli) -> None:
    """An option that a report always refuses is not offered, and is there for the next report."""
    refused = ("--from", "--to ", "--compare", "--why ", "--as-closed ", "--close-version")

    def options(report: str) -> str:
        return cli.ok("report", report, "--help").partition("Examples:")[0]

    assert "--by" in options("forecast")
    assert [name for name in (*refused, "--currency CODE") if name in options("forecast")] == []
    assert [name for name in refused if name in options("spend")] == list(refused)
    assert "--by" not in options("months")
    assert "the attempt's own cost centre" in " ".join(options("events").split())


def test_reports_have_the_agreed_shape(applied: Cli) -> None:
    """Checks and finance's scripts read columns, rows and total."""
    report = json.loads(
        applied.ok(
            "report", "spend", "--by", "team,model", "--month", "2026-11", "--format", "json"
        )
    )
    assert [column["name"] for column in report["columns"]][:2] == ["team", "model"]
    assert {"unit"} <= set(report["columns"][0])
    assert (report["rows"], report["total"]["attempts"]) == ([], 0)
    assert applied.ok("report", "spend") == "No events.\n"
    assert applied.ok("report", "closes") == "No rows.\n"
    assert {
        row["name"] for row in json.loads(applied.ok("report", "list", "--format", "json"))
    } >= {"spend", "events"}
    assert applied("report", "receipt", "01973b2e-6c1f-7c3a-9d3f-0242ac120002").code == 1


def test_demo_data_is_seen_only_as_demo(applied: Cli) -> None:
    """Generated figures must never reach a real total. The time stands still: a second run adds the
    events since the first.
    """
    moment = applied.toolbox.now()
    applied = Cli(replace(applied.toolbox, now=lambda: moment))
    made = json.loads(applied.ok("demo-data", "--small", "--format", "json"))
    assert made["new_events"] > 1000
    assert json.loads(applied.ok("demo-data", "--format", "json"))["new_events"] == 0
    assert (
        json.loads(applied.ok("report", "overview", "--format", "json"))["total"]["attempts"] == 0
    )
    demo = applied("report", "spend", "--demo")
    assert demo.out.splitlines()[-1].startswith("total")
    assert "Demo data" in demo.err
    event = next(
        csv.DictReader(
            io.StringIO(applied.ok("report", "events", "--demo", "--limit", "1", "-f", "csv"))
        )
    )
    receipt = applied.ok("report", "receipt", event["request_id"])
    assert f"Team {event['team']}" in receipt
    assert "/ 1,000,000" in receipt
    explained = json.loads(applied.ok("policy", "explain", event["request_id"], "--format", "json"))
    assert explained["route"] == event["route"]


def test_doctor_gives_the_next_step(cli: Cli, policy_file: Path) -> None:
    """One command for every person with an unknown problem."""
    checks = {row["check"]: row for row in json.loads(cli("doctor", "--format", "json").out)}
    assert checks["policy"]["status"] == "fail"
    assert checks["policy"]["what to do"] == "tollgate policy apply FILE"
    policy_file.write_text(changed('"env:OPENAI_API_KEY"', '"env:TOLLGATE_TEST_NO_SUCH_VARIABLE"'))
    cli.ok("policy", "apply", str(policy_file), "--yes")
    ran = cli("doctor", "--format", "json")
    assert ran.code == 1
    status = {row["check"]: row["status"] for row in json.loads(ran.out)}
    expected = ("database", "migrations", "pepper", "partitions", "clock", "policy", "prices")
    assert [status[name] for name in expected] == ["ok"] * len(expected)
    assert status["secret gpt-eu"] == "fail"
    assert status["reach qwen-eu"] == "fail", "nothing listens on the engine's port in this test"


@pytest.mark.parametrize(("text", "hours"), [("12h", 12), ("90d", 2160), ("2w", 336)])
def test_durations_are_hours_days_or_weeks(text: str, hours: int) -> None:
    """A month has no fixed length, and `m` could be minutes."""
    assert duration(text).total_seconds() == hours * 3600
    for wrong in ("", "0d", "d", "3m", "-1d", "1.5d", "999999d"):
        with pytest.raises(BadUsage):
            duration(wrong)


def test_the_dashboard_listens_here_unless_people_sign_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows every team's spend to whoever reaches it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    factory = lambda: build_toolbox(Settings(database_url=CLOSED_URL, dashboard_host="0.0.0.0"))  # noqa: E731
    assert run_cli(factory, ["dashboard"]) == 2
    assert [
        is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "10.0.0.1")
    ] == [True] * 3 + [False] * 2


def test_the_dashboard_gets_no_provider_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs one address, so it gets no more."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("TOLLGATE_DATABASE_URL", CLOSED_URL)
    made = environment("postgresql://reader@localhost/x")
    assert made["TOLLGATE_REPORTS_URL"] == "postgresql://reader@localhost/x"
    assert not {"OPENAI_API_KEY", "TOLLGATE_DATABASE_URL"} & set(made)


def test_a_stopped_dashboard_leaves_no_child(tmp_path: Path) -> None:
    """A port that a forgotten child holds keeps the next start from working."""
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = (
        "import os, sys; from gateway.cli.dashboard import run_until_stopped\n"
        f"sys.exit(run_until_stopped([sys.executable, '-c', {child!r}], dict(os.environ)))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(15) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_child_that_ends_by_itself_passes_its_code_on() -> None:
    """A supervisor must see that the dashboard failed."""
    assert run_until_stopped([sys.executable, "-c", "raise SystemExit(7)"], dict(os.environ)) == 7
