"""Commands take each name that a policy allows as it is: filters, statements, schedules, moves of
cost, files for other programs, and paths of `policy set`.
"""

from __future__ import annotations

import csv
import html
import json
from pathlib import Path

import pytest

from gateway.domain.words import FORMULA_STARTS
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.integration.edge.test_names_everywhere import CENTRES, MODELS, PROJECTS, TEAMS, document
from tests.storage.factories import event


@pytest.fixture
def named(cli: Cli, database: Database, tmp_path: Path) -> Cli:
    """A policy with all of these names, and one attempt of each team."""
    file = tmp_path / "policy.yaml"
    file.write_text(document("http://127.0.0.1:1"))
    cli.ok("policy", "apply", str(file), "--yes", "--message", "m")
    places = enumerate(zip(TEAMS, CENTRES, MODELS, strict=False))
    Ledger(database).write(
        [
            event(at, team=team, cost_centre=centre, route=model, cost_nusd=10**9, lines=())
            for at, (team, centre, model) in places
        ]
    )
    return cli


def test_each_cost_centre_has_its_reports_and_files(named: Cli, tmp_path: Path) -> None:
    """Finance names it as it stands in the policy, whatever text it is."""
    page = tmp_path / "statement.html"
    for at, centre in enumerate(CENTRES):
        where = f"cost_centre={centre}"
        spent = json.loads(named.ok("report", "spend", "--where", where, "--format", "json"))
        assert spent["total"]["attempts"] == 1, centre
        month = ("--month", "2026-11")
        named.ok("report", "statement", "--cost-centre", centre, *month, "--out", str(page))
        assert html.escape(centre) in page.read_text()
        to = ("--every", "month", "--to", f"folder:{tmp_path}")
        named.ok("report", "schedule", "add", "--name", f"s{at}", "--cost-centre", centre, *to)
        what = ("--amount-usd", "1", "--reason", "a test")
        named.ok("reallocation", "add", *month, "--from", centre, "--to", "CC-1", *what)
    listed = json.loads(named.ok("report", "schedule", "list", "--format", "json"))
    assert {row["cost_centre"] for row in listed} == {*CENTRES}
    focus = tmp_path / "focus.csv"
    named.ok("export", "focus", "--month", "2026-11", "--out", str(focus))
    with focus.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert {f"'{one}" if one.startswith(FORMULA_STARTS) else one for one in CENTRES} <= {*cells}


def test_each_team_route_and_project_is_an_argument(named: Cli, tmp_path: Path) -> None:
    """Names with dots, blanks and slashes are whole words, also in the paths of `policy set`."""
    file = str(tmp_path / "policy.yaml")
    for team in TEAMS:
        assert json.loads(named.ok("key", "create", team, "--format", "json"))["team"] == team
        named.ok("policy", "set", file, f"teams.{team}.priority", "low")
    for model in MODELS:
        named.ok("policy", "explain", "--team", "t", "--route", model)
        named.ok("policy", "set", file, f"routes.{model}.objective", "priority")
    for project in PROJECTS:
        path = f"teams.t.projects.{project}.budgets.month.limit_usd"
        named.ok("policy", "set", file, path, "5")
        shown = named.ok("budget", "show", f"t/project:{project}/month", "--format", "json")
        assert json.loads(shown)["budget"] == f"t/project:{project}/month"
