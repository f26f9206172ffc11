"""The list's prices by place, as commands show them: place, factor, source, and each change."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.cli.conftest import Cli
from tests.policy.documents import EXAMPLE, changed

AT_EU = "https://eu.api.openai.com/v1"
GENERAL = changed(
    "region: eu\n", "region: global\n", text=changed(AT_EU, "https://api.openai.com/v1")
)
PROXY = changed(AT_EU, "https://proxy.example/v1")
CLAUDE = (
    changed(
        "model: gpt-5.5",
        "model: claude-opus-4-6",
        text=changed(AT_EU, "https://api.anthropic.com/v1"),
    )
    .replace("provider: openai\n", "provider: anthropic\n")
    .replace("region: eu\n", "region: unknown\n")
)


def rows(cli: Cli, deployment: str = "gpt-eu", *, kind: str = "input") -> list[dict[str, Any]]:
    """Return the standard rates of one kind of a deployment, as `price list` prints them."""
    found = json.loads(cli.ok("price", "list", "--format", "json"), parse_float=Decimal)
    wanted = {"deployment": deployment, "kind": kind, "service_tier": "standard"}
    return [row for row in found if row.items() >= {**wanted, "from_input_tokens": 0}.items()]


def checks(cli: Cli) -> dict[str, tuple[str, str]]:
    """Return the status and the finding of each check of `doctor`."""
    found = json.loads(cli("doctor", "--format", "json").out)
    return {row["check"]: (row["status"], row["finding"]) for row in found}


def test_the_list_shows_place_and_factor_with_their_source(applied: Cli) -> None:
    """A figure that is not on the price page needs the reason beside it."""
    (row,) = rows(applied)
    assert (row["place"], Decimal(row["factor"]), Decimal(row["usd_per_mtok"])) == (
        "eu.api.openai.com",
        Decimal("1.1"),
        Decimal("5.5"),
    )
    assert "tokens × 1.1 at eu.api.openai.com (https://developers.openai.com/" in row["source"]
    (own,) = rows(applied, "partner")
    assert (own["place"], Decimal(own["factor"])) == (None, 1)


def test_a_place_that_answers_state_has_rows_of_its_own(applied: Cli, policy_file: Path) -> None:
    """The same deployment may be served in two places, at two prices."""
    policy_file.write_text(CLAUDE)
    applied.ok("policy", "apply", str(policy_file), "--yes")
    found = [(row["place"], Decimal(row["usd_per_mtok"])) for row in rows(applied)]
    assert found == [
        ("an unstated place", Decimal("5.5")),
        ("inference_geo global", Decimal(5)),
        ("inference_geo us", Decimal("5.5")),
    ]
    assert "the dearest known factor" in applied("price", "list").err


def test_plan_and_doctor_name_a_price_that_changes_with_its_place(
    applied: Cli, policy_file: Path
) -> None:
    """The operator hears of it before finance does."""
    policy_file.write_text(GENERAL)
    applied.ok("policy", "apply", str(policy_file), "--yes")
    assert "price gpt-eu" not in checks(applied)
    policy_file.write_text(EXAMPLE)
    planned = applied.ok("policy", "plan", str(policy_file))
    assert "the list price of deployment gpt-eu changes with its place" in planned
    assert "input 5 → 5.5, output 30 → 33 USD per million tokens" in planned
    applied.ok("policy", "apply", str(policy_file), "--yes")
    status, finding = checks(applied)["price gpt-eu"]
    assert (status, "tokens × 1.1 at eu.api.openai.com" in finding) == ("ok", True)


def test_a_place_that_is_not_known_is_named_everywhere(applied: Cli, policy_file: Path) -> None:
    """It stays served, at the dearest known factor, and each command marks it."""
    policy_file.write_text(PROXY)
    assert "is not known for sure" in applied("policy", "validate", str(policy_file)).out + (
        applied("policy", "validate", str(policy_file)).err
    )
    applied.ok("policy", "apply", str(policy_file), "--yes")
    (row,) = rows(applied)
    assert (row["place"], Decimal(row["usd_per_mtok"])) == (
        "the unknown host proxy.example",
        Decimal("5.5"),
    )
    assert "(estimated, https://developers.openai.com/" in row["source"]
    assert checks(applied)["place gpt-eu"][0] == "warn"
    assert "gpt-eu: its place is not known from its address" in applied("price", "list").err
