"""`tollgate demo-data` of an organisation: once, exact, marked on every report, with its files."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests.cli.conftest import Cli
from tests.factories import NOW
from tests.storage.factories import event

SIZE = ("--months", "2", "--events", "3000", "--teams", "6")
NOTE = "Demo ledger"


@pytest.fixture
def at_noon(cli: Cli) -> Cli:
    """The command line at a fixed moment."""
    return Cli(replace(cli.toolbox, now=lambda: NOW))


def report(cli: Cli, *arguments: str) -> Any:
    """Return a report as its JSON says it, with exact figures."""
    return json.loads(cli.ok("report", *arguments, "--format", "json"), parse_float=Decimal)


def test_an_organisation_is_written_once(at_noon: Cli, database: Database) -> None:
    """A repeat, also later, adds nothing and says so; the sums are right."""
    made = json.loads(at_noon.ok("demo-data", *SIZE, "--format", "json"))
    assert made == {"days": 50, "new_events": 3000, "files": []}
    later = Cli(replace(at_noon.toolbox, now=lambda: NOW.replace(month=12)))
    ran = later("demo-data", *SIZE, "--format", "json")
    assert json.loads(ran.out) == {"days": 50, "new_events": 0, "files": []}
    assert "nothing was added" in ran.err
    assert rollups.check(database) == ()
    assert report(at_noon, "spend")["total"]["attempts"] == 0
    shown = report(at_noon, "spend", "--demo", "--by", "team")
    assert (shown["dataset"], shown["total"]["attempts"]) == ("demo", 3000)


def test_a_demo_ledger_is_real_but_says_so_everywhere(at_noon: Cli, tmp_path: Path) -> None:
    """Its bill is imported and adds up; a figure of it is never taken for real."""
    out = tmp_path / "files"
    made = json.loads(
        at_noon.ok("demo-data", *SIZE, "--as-ledger", "--out", str(out), "--format", "json")
    )
    assert made["new_events"] == 3000
    kinds = {file["kind"] for file in made["files"]}
    of_providers = {"openai-usage", "openai-costs", "anthropic-usage", "anthropic-cost", "csv"}
    assert kinds == of_providers | {"gpu-bill"}
    assert all(Path(file["path"]).is_file() for file in made["files"])
    assert "Planted gaps" in (out / "README.txt").read_text()

    spend = report(at_noon, "spend")
    assert (spend["dataset"], spend["total"]["attempts"]) == ("demo-ledger", 3000)
    assert spend["notes"][0].startswith(NOTE)
    assert report(at_noon, "spend", "--demo")["dataset"] == "demo"
    for name in ("overview", "events", "budgets", "months", "gpu", "selfhost-vs-api"):
        assert report(at_noon, name)["dataset"] == "demo-ledger", name
        assert NOTE in at_noon("report", name).err
    assert NOTE in at_noon("month", "status", "2026-10").err
    one = report(at_noon, "events", "--limit", "1")["rows"][0]["request_id"]
    receipt = report(at_noon, "receipt", one)
    assert receipt["dataset"] == "demo-ledger"

    (bill,) = (file["path"] for file in made["files"] if file["kind"] == "gpu-bill")
    imported = json.loads(at_noon.ok("engine", "bill", "import", bill, "--yes", "-f", "json"))
    assert imported["hours"] == 2 * 24 * 50
    bill_report = report(at_noon, "gpu-bill")
    by_line = Counter[str]()
    for row in bill_report["rows"]:
        by_line[row["line"]] += row["amount_usd"]
    assert by_line["applied"] == report(at_noon, "gpu")["total"]["applied_usd"] > 0
    assert by_line["empty"] > 0
    billed = bill_report["total"]["amount_usd"]
    assert billed == sum(by_line.values()) == imported["amount_usd"]


def test_the_policy_of_the_files_names_all_of_the_ledger(at_noon: Cli, tmp_path: Path) -> None:
    """With it bills are matched, cost centres have names and hours of GPUs have a price."""
    out = tmp_path / "files"
    at_noon.ok("demo-data", *SIZE, "--as-ledger", "--out", str(out))
    policy = parse((out / "policy.yaml").read_text()).policy
    for by, known in (
        ("team", policy.teams),
        ("route", policy.routes),
        ("deployment", policy.deployments),
        ("cost_centre", policy.cost_centres),
    ):
        assert {row[by] for row in report(at_noon, "spend", "--by", by)["rows"]} <= {*known}, by
    for row in report(at_noon, "spend", "--by", "team,route")["rows"]:
        assert row["route"] in policy.teams[row["team"]].routes
    at_noon.ok("policy", "apply", str(out / "policy.yaml"), "--yes", "--no-wait")
    for path, kind in (
        ("openai-usage.json", "openai-usage"),
        ("openai-costs.json", "openai-costs"),
    ):
        options = ("--provider", "openai", "--kind", kind, "--account", "org-acme")
        at_noon.ok("reconcile", "import", str(out / path), *options)
    shown = json.loads(
        at_noon.ok(
            *("reconcile", "show", "--provider", "openai", "--month", "2026-10", "-f", "json")
        )
    )
    assert {row["cause"] for row in shown["rows"]} >= {"unmetered"}


def test_a_repeat_writes_the_same_files_and_replaces_none(at_noon: Cli, tmp_path: Path) -> None:
    """A person may have edited one."""
    command = ("demo-data", *SIZE, "--as-ledger", "--format", "json", "--out")
    first, second = tmp_path / "first", tmp_path / "second"
    at_noon.ok(*command, str(first))
    again = json.loads(at_noon.ok(*command, str(second)))
    assert again["new_events"] == 0
    assert {path.name: path.read_text() for path in first.iterdir()} == {
        path.name: path.read_text() for path in second.iterdir()
    }
    (first / "openai-costs.json").write_text("{}")
    ran = at_noon(*command, str(first))
    assert ran.code == 1
    assert "openai-costs.json exists with other content" in ran.err
    assert (first / "openai-costs.json").read_text() == "{}"


def test_real_events_are_never_mixed_with_a_demo_ledger(at_noon: Cli, database: Database) -> None:
    """The message names the way out, and nothing is marked."""
    Ledger(database).write([event(1)])
    ran = at_noon("demo-data", *SIZE, "--as-ledger")
    assert ran.code == 1
    assert "has real events" in ran.err
    assert "TOLLGATE_HOME" in ran.err
    assert report(at_noon, "spend")["dataset"] == "real"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--small", "--events", "5"), "--small"),
        (("--out", "x"), "--as-ledger"),
        (("--teams", "401"), "--teams"),
        (("--months", "0"), "--months"),
    ],
)
def test_options_that_do_not_go_together(
    at_noon: Cli, arguments: tuple[str, ...], named: str
) -> None:
    """Wrong usage changes nothing and exits 2."""
    ran = at_noon("demo-data", *arguments)
    assert ran.code == 2
    assert named in ran.err
