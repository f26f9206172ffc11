"""The organisation of the tour: a generated ledger with its GPU bill, a rate of the euro, and a
policy with roles and budgets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml

from gateway.services.demo.catalogue import DESTINATIONS, Destination
from gateway.storage.ledger import rollups
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.embedded import EmbeddedPostgres
from tests.dashboard.browser import ROOT

FINANCE, LEAD = "finops", "lead"  # groups of the sign-in
BUDGETED = 8  # teams with a budget
PLACES = {"eu": ["eu-de", "eu-fr", "eu-central-1"], "us": ["us-east"]}
PRICE = {"input_usd_per_mtok": 0.8, "cached_input_usd_per_mtok": 0.2, "output_usd_per_mtok": 3.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Organisation:
    """A running ledger: its address, its newest month, its teams, and the team of the lead."""

    url: str
    month: str
    teams: tuple[str, ...]
    team: str

    def sql(self, statement: str, *values: object) -> str:
        """The one value of a statement, as text."""
        return _sql(self.url, statement, *values)


@contextmanager
def home_of(kept: Path | None, teams: str) -> Iterator[Path]:
    """A home for one ledger. As root, Postgres runs as another user, who must be able to enter."""
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="tollgate-tour-") as made:
            Path(made).chmod(0o711)
            yield Path(made)
        return
    home = kept / teams
    home.mkdir(parents=True, exist_ok=True)
    for folder in (kept, home):
        folder.chmod(0o711)
    yield home


@contextmanager
def organisation(home: Path, *, teams: str, events: int) -> Iterator[Organisation]:
    """Make the ledger of one organisation, or open it again."""
    with EmbeddedPostgres(home) as server:
        url = server.start()
        database = Database(url)
        if migrations.pending(database):
            _make(home, url, teams=teams, events=events)
            rollups.refresh(database)
        database.close()
        month = _sql(url, "SELECT to_char(max(posted_period), 'YYYY-MM') FROM finance.usage_events")
        spent = (
            "SELECT string_agg(team, ' ' ORDER BY cost DESC) FROM (SELECT team, "
            "coalesce(sum(cost_usd), 0) AS cost FROM finance.usage_events GROUP BY team) AS each"
        )
        names = tuple(_sql(url, spent).split())
        yield Organisation(url=url, month=month, teams=names, team=names[0])


def _make(home: Path, url: str, *, teams: str, events: int) -> None:
    """Write the ledger, its GPU bill, its policy and a rate, by the commands."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    variables = own | {"TOLLGATE_HOME": str(home), "TOLLGATE_DATABASE_URL": url}

    def command(*words: str) -> None:
        argv = [sys.executable, "-m", "gateway.main", *words]
        subprocess.run(argv, cwd=ROOT, env=variables, stdout=sys.stderr, check=True)

    files = home / "files"
    command("db", "upgrade")
    size = ("--months", "3", "--events", str(events), "--teams", teams)
    command("demo-data", *size, "--as-ledger", "--out", str(files))
    rate = ("--usd-per-unit", "1.08", "--from", "2025-01-01", "--source", "the tour")
    command("currency", "add", "EUR", *rate)
    policy = home / "policy.yaml"
    policy.write_text(yaml.safe_dump(_policy(url), sort_keys=False), encoding="utf-8")
    command("policy", "apply", str(policy), "--yes")
    command("engine", "bill", "import", str(files / "gpu-bill.csv"), "--yes")


def _policy(url: str) -> Mapping[str, Any]:
    """A policy for the ledger: its deployments and teams, some with a budget, and the roles."""
    with psycopg.connect(_plain(url)) as connection:
        rows = connection.execute(
            "SELECT team, min(cost_centre), min(data_class), coalesce(sum(cost_usd), 0) "
            "FROM finance.usage_events GROUP BY team ORDER BY 4 DESC"
        ).fetchall()
    return _document(rows)


def _document(rows: Sequence[tuple[Any, ...]]) -> Mapping[str, Any]:
    """The policy of teams, each with its cost centre, data class and spending."""
    classes = {str(data_class): {"regions": ["any"]} for _, _, data_class, _ in rows}
    teams = [
        {"name": team, "cost_centre": centre, "data_class": data_class, "routes": ["assistant"]}
        | ({"budgets": [_budget(n, float(spent))]} if n < BUDGETED else {})
        for n, (team, centre, data_class, spent) in enumerate(rows)
    ]
    return {
        "version": 1,
        "regions": PLACES,
        "classes": classes,
        "deployments": [_deployment(name, one) for name, one in DESTINATIONS.items()],
        "routes": [{"name": "assistant", "deployments": ["qwen-eu", "gpt-eu"]}],
        "teams": teams,
        "dashboard": {"finance": [FINANCE], "teams": {rows[0][0]: [LEAD]}},
    }


def _budget(place: int, spent_usd: float) -> Mapping[str, Any]:
    """A monthly budget: of every third team smaller than what it spends."""
    share = 0.2 if place % 3 == 0 else 0.9
    return {"period": "month", "limit_usd": max(1, round(spent_usd * share))}


def _deployment(name: str, one: Destination) -> Mapping[str, Any]:
    """A deployment of the generated ledger as the policy declares it."""
    declared: dict[str, Any] = {
        "name": name,
        "provider": one.provider,
        "base_url": f"https://{name}.example/v1",
        "model": one.model,
        "region": one.region,
    }
    if one.gpu is None:
        return declared | {"api_key": "env:PROVIDER_KEY", "price": dict(PRICE)}
    gpu = {
        "type": one.gpu.type,
        "count": one.gpu.count,
        "usd_per_gpu_hour": float(one.gpu.usd_per_gpu_hour),
        "input_tok_per_s": int(one.gpu.input_tok_per_s),
        "output_tok_per_s": int(one.gpu.output_tok_per_s),
        "target_utilisation": float(one.gpu.target_utilisation),
    }
    return declared | {"gpu": gpu}


def _sql(url: str, statement: str, *values: object) -> str:
    """The one value of a statement, as text."""
    with psycopg.connect(_plain(url)) as connection:
        row = connection.execute(statement, values).fetchone()
    assert row is not None
    return str(row[0])


def _plain(url: str) -> str:
    """The address without the name of SQLAlchemy's driver."""
    return re.sub(r"^postgresql\+psycopg", "postgresql", url)
