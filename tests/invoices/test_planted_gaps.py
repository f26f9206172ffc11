"""Seven planted differences in a provider's files: each is named with its amount, and no other."""

from __future__ import annotations

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.invoices.generator import ACCOUNT, MONTH, Month, make_month
from tests.invoices.ledger import PROVIDERS, events_of, policy_of

# One of each shape; `make reconcile-seeds` runs 50.
SEEDS = range(int(os.environ.get("RECONCILE_SEEDS", "6")))
OPTIONS = ("--month", f"{MONTH:%Y-%m}", "--format", "json")


def loaded(cli: Cli, database: Database, folder: Path, month: Month) -> str:
    """Write a month's calls and import its files; return the provider."""
    provider = PROVIDERS[month.shape]
    policy = folder / "policy.yaml"
    policy.write_text(policy_of(provider))
    cli.ok("policy", "apply", str(policy), "--yes", "--message", "bills")
    Ledger(database).write(events_of(month, provider))
    for kind, text in month.files.items():
        path = folder / kind
        path.write_text(text)
        if month.mapping:
            (folder / f"{kind}.yaml").write_text(month.mapping)
        cli.ok(*import_of(path, provider, kind))
    return provider


def import_of(path: Path, provider: str, kind: str) -> tuple[str, ...]:
    """Return the command that imports a file, with the mapping beside it."""
    mapping = path.with_name(f"{kind}.yaml")
    more = ("--mapping", str(mapping)) if mapping.exists() else ()
    return (
        *("reconcile", "import", str(path), "--provider", provider, "--kind", kind),
        *("--account", ACCOUNT, "--format", "json", *more),
    )


def shown(cli: Cli, provider: str) -> Any:
    """Return the reconciliation of the month; it must be explained wholly."""
    out = cli.ok("reconcile", "show", "--provider", provider, *OPTIONS)
    return json.loads(out, parse_float=Decimal)


def by_cause(found: Any) -> dict[str, int]:
    """Return the differences by cause in nano-dollars."""
    sums: dict[str, int] = {}
    for row in found["rows"]:
        nusd = int(Decimal(row["difference_usd"]).scaleb(9))
        assert Decimal(row["billed_usd"]) - Decimal(row["metered_usd"]) == row["difference_usd"]
        if row["cause"] != "none" or nusd:
            sums[row["cause"]] = sums.get(row["cause"], 0) + nusd
    return sums


def check_month(cli: Cli, database: Database, folder: Path, seed: int) -> None:
    """Check that the seven differences of a seed are named, and nothing else."""
    month = make_month(seed)
    found = shown(cli, loaded(cli, database, folder, month))
    assert by_cause(found) == month.planted, (seed, month.shape, month.money_has_keys)
    assert found["total"]["unexplained_usd"] == 0
    midnight = [row for row in found["rows"] if row["cause"] == "timing"]
    late = sum(row["difference_usd"] for row in midnight if row["difference_usd"] < 0)
    assert -late == Decimal(month.midnight_nusd).scaleb(-9)
    missing = {row["day"] for row in found["rows"] if row["cause"] == "missing_bill"}
    assert missing == {month.missing_day.isoformat()}
    keys: dict[tuple[str, ...], set[str]] = {}
    for row in found["rows"]:
        key = (row["day"], row["account"], row["model"], row["token_kind"])
        assert row["cause"] not in keys.setdefault(key, set()), "one row a cause"
        keys[key].add(row["cause"])


@pytest.mark.parametrize("seed", SEEDS)
def test_the_planted_differences_are_named_and_nothing_else(
    cli: Cli, database: Database, tmp_path: Path, seed: int
) -> None:
    """The files are made without any code of `reconcile`."""
    check_month(cli, database, tmp_path, seed)
