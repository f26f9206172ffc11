"""`tollgate price`: prices for administrators and finance, and their changes."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.policy.documents import changed
from tests.storage.factories import event

ADD = ("price", "add", "--source", "contract 2026-117", "--reason", "new contract")


def prices(cli: Cli, *options: str) -> list[dict[str, Any]]:
    printed: list[dict[str, Any]] = json.loads(
        cli.ok("price", "list", "--format", "json", *options), parse_float=Decimal
    )
    return printed


def rate_of(cli: Cli, deployment: str, kind: str, *options: str, tier: str = "standard") -> Decimal:
    wanted = {"deployment": deployment, "kind": kind, "service_tier": tier, "from_input_tokens": 0}
    (row,) = [row for row in prices(cli, *options) if row.items() >= wanted.items()]
    return Decimal(row["usd_per_mtok"])


def entries(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM tollgate.price_entries").fetchone()
        assert row is not None
        return int(row[0])


def test_every_rate_of_every_tier_is_listed_with_its_source(applied: Cli) -> None:
    """The source is half of a figure."""
    rows = prices(applied)
    assert {row["deployment"]: row["source"].split(" ")[0] for row in rows} == {
        "qwen-eu": "GPU",
        "gpt-eu": "genai-prices",
        "partner": "policy",
    }
    assert {row["service_tier"] for row in rows if row["deployment"] == "gpt-eu"} > {
        "standard",
        "flex",
        "priority",
    }
    assert rate_of(applied, "gpt-eu", "input", tier="flex") < rate_of(applied, "gpt-eu", "input")


def test_a_price_is_added_from_its_day_on(applied: Cli) -> None:
    """A contract is signed before it begins."""
    listed = rate_of(applied, "gpt-eu", "input")
    printed = json.loads(
        applied.ok(
            *ADD,
            "gpt-5.5",
            "--input",
            "4",
            "--output",
            "24",
            "--effective-from",
            "2030-01-01",
            "-f",
            "json",
        )
    )
    assert printed["applies_to"] == "gpt-5.5"
    assert printed["valid_from"] == "2030-01-01T00:00:00.000Z"
    assert rate_of(applied, "gpt-eu", "input") == listed
    assert rate_of(applied, "gpt-eu", "input", "--at", "2029-12-31T23:59:59") == listed
    assert rate_of(applied, "gpt-eu", "input", "--at", "2030-01-01") == 4
    assert {
        row["source"]
        for row in prices(applied, "--at", "2030-01-01")
        if row["deployment"] == "gpt-eu"
    } == {"contract 2026-117"}


def test_an_override_wins_over_a_gpu_rate_and_not_over_the_policy(applied: Cli) -> None:
    """The policy's text was reviewed; the command reports that it changes nothing there."""
    applied.ok(*ADD, "--deployment", "qwen-eu", "--input", "0.5", "--output", "2")
    assert rate_of(applied, "qwen-eu", "input") == Decimal("0.5")
    ran = applied(*ADD, "--deployment", "partner", "--input", "0.5", "--output", "2")
    assert ran.code == 0
    assert "partner has a price in the policy, which wins over this one" in ran.err
    assert rate_of(applied, "partner", "input") == Decimal("0.80")


def test_a_withdrawn_price_uncovers_the_next_price(applied: Cli) -> None:
    """The end of a contract is an entry too."""
    listed = rate_of(applied, "gpt-eu", "input")
    applied.ok(*ADD, "gpt-5.5", "--input", "4", "--output", "24", "--effective-from", "2026-01-01")
    applied.ok(
        "price",
        "add",
        "gpt-5.5",
        "--withdraw",
        "--reason",
        "it ends",
        "--effective-from",
        "2026-02-01",
    )
    assert rate_of(applied, "gpt-eu", "input", "--at", "2026-01-15") == 4
    assert rate_of(applied, "gpt-eu", "input") == listed


def test_tiers_of_context_and_service_and_calls_are_added(applied: Cli) -> None:
    """Any contract can be entered here, in its own units."""
    applied.ok(
        *ADD,
        "gpt-5.5",
        "--input",
        "4",
        "--output",
        "24",
        "--rate",
        "input@200001=8",
        "--rate",
        "input/priority=9",
        "--rate",
        "output/priority=50",
        "--rate",
        "web_search=8.5",
        "--rate",
        "cache_write_1h=6",
    )
    rows = {
        (r["service_tier"], r["kind"], r["from_input_tokens"]): Decimal(r["usd_per_mtok"])
        for r in prices(applied)
        if r["deployment"] == "gpt-eu"
    }
    assert rows == {
        ("standard", "input", 0): 4,
        ("standard", "output", 0): 24,
        ("standard", "input", 200_001): 8,
        ("priority", "input", 0): 9,
        ("priority", "output", 0): 50,
        ("standard", "web_search", 0): 8500,
        ("standard", "cache_write_1h", 0): 6,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ("gpt-5.5", "--deployment", "gpt-eu", "--input", "1", "--output", "1"),
            2,
            "either a MODEL or --deployment",
        ),
        (("--input", "1", "--output", "1"), 2, "either a MODEL or --deployment"),
        (
            ("--deployment", "gpt-eu", "--provider", "openai", "--input", "1", "--output", "1"),
            2,
            "goes with a MODEL",
        ),
        (
            ("--deployment", "nope", "--input", "1", "--output", "1"),
            1,
            "There is: qwen-eu, gpt-eu, partner",
        ),
        (("gpt-5.5", "--input", "1"), 2, "give --rate output=USD (absent is not 0)"),
        (("gpt-5.5", "--output", "1"), 2, "give --rate input=USD"),
        (("gpt-5.5",), 2, "give --rate input=USD and --rate output=USD"),
        (
            ("gpt-5.5", "--input", "1", "--output", "1", "--rate", "input/flex=1"),
            2,
            "give --rate output/flex=USD",
        ),
        (
            ("gpt-5.5", "--input", "1", "--output", "1", "--rate", "input=2"),
            2,
            "two rates for input",
        ),
        (("gpt-5.5", "--input", "1e3", "--output", "1"), 2, "--input 1e3: write plain dollars"),
        (("gpt-5.5", "--input", "-1", "--output", "1"), 2, "--input -1: write plain dollars"),
        (("gpt-5.5", "--input", "2000000", "--output", "1"), 2, "from 0 to 1000000"),
        (
            ("gpt-5.5", "--input", "1", "--output", "1", "--rate", "inptu=2"),
            2,
            "is not KIND[@TOKENS][/TIER]=USD",
        ),
        (
            ("gpt-5.5", "--input", "1", "--output", "1", "--rate", "input/default=2"),
            2,
            "is not KIND",
        ),
        (
            ("gpt-5.5", "--input", "1", "--output", "1", "--effective-from", "soon"),
            2,
            "'soon' is no moment",
        ),
        (("gpt-5.5", "--withdraw", "--input", "1"), 2, "takes no rates"),
    ],
)
def test_a_price_that_cannot_be_one_is_refused(
    applied: Cli, database_url: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """It could never be edited, so nothing half is ever written."""
    before = entries(database_url)
    ran = applied(*ADD, *arguments)
    assert (ran.code, entries(database_url)) == (code, before)
    assert message in ran.err


@pytest.mark.parametrize("missing", ["--source", "--reason"])
def test_a_price_needs_its_source_and_its_reason(applied: Cli, missing: str) -> None:
    """Next year somebody will ask."""
    given = {"--source": "contract", "--reason": "why"} | {missing: " "}
    options = [word for pair in given.items() for word in pair]
    ran = applied("price", "add", "gpt-5.5", "--input", "1", "--output", "1", *options)
    assert ran.code == 2
    assert f"Give {missing}" in ran.err


def test_an_embedding_needs_no_output_rate(applied: Cli, policy_file: Path) -> None:
    """It writes nothing."""
    own = (
        "    price: {input_usd_per_mtok: 0.80, cached_input_usd_per_mtok: 0.20, "
        "output_usd_per_mtok: 3.20}\n"
    )
    document = changed("allows: [store]", "operations: [embeddings]", text=changed(own, ""))
    policy_file.write_text(document)
    applied.ok("policy", "apply", str(policy_file), "--yes")
    applied.ok(*ADD, "m-large", "--input", "0.1")
    assert rate_of(applied, "partner", "input") == Decimal("0.1")


def test_a_stand_in_price_is_marked_as_one(applied: Cli, policy_file: Path) -> None:
    """A reader of the list must see the invented price until a real one is entered."""
    document = changed("price: {input", "stand_in_price: {input")
    policy_file.write_text(document)
    applied.ok("policy", "apply", str(policy_file), "--yes")
    listing = applied("price", "list")
    assert "stand-in: policy" in listing.out
    assert "partner is charged by its stand-in price" in listing.err
    applied.ok(*ADD, "m-large", "--input", "0.5", "--output", "2")
    assert rate_of(applied, "partner", "input") == Decimal("0.5")
    assert "stand-in" not in applied("price", "list").err


def test_a_model_is_shown_with_its_history_and_an_example(applied: Cli) -> None:
    """Finance asks for a request's cost now, in October, and for the source."""
    applied.ok(*ADD, "gpt-5.5", "--input", "4", "--output", "24", "--effective-from", "2026-10-20")
    (shown,) = json.loads(applied.ok("price", "show", "gpt-5.5", "-f", "json"), parse_float=Decimal)
    assert (shown["name"], shown["source"], shown["is_stand_in"]) == (
        "gpt-eu",
        "contract 2026-117",
        False,
    )
    assert shown["example_cost_usd"] == {"standard": Decimal("0.028")}
    assert [(row["origin"], row["source"].split(" ")[0]) for row in shown["history"]][-1] == (
        "override",
        "contract",
    )
    assert shown["history"][-1]["reason"] == "new contract"
    assert shown["in_force"][-1]["policy_version"] == 1
    (before,) = json.loads(
        applied.ok("price", "show", "gpt-eu", "--at", "2026-10-19", "-f", "json"),
        parse_float=Decimal,
    )
    assert before["example_cost_usd"] == {
        "standard": Decimal("0.0385"),
        "batch": Decimal("0.01925"),
        "fast": Decimal("0.09625"),
        "flex": Decimal("0.01925"),
        "priority": Decimal("0.09625"),
    }
    text = applied.ok("price", "show", "gpt-eu")
    for part in (
        "contract 2026-117",
        "1,000 tokens in and 1,000 out",
        "$0.028",
        "Prices it was charged by",
    ):
        assert part in text
    rows = list(csv.DictReader(io.StringIO(applied.ok("price", "show", "gpt-eu", "-f", "csv"))))
    assert [row["kind"] for row in rows] == ["input", "output"]


def test_an_unused_model_of_the_list_is_shown(cli: Cli) -> None:
    """Before there is a policy, to see its cost."""
    shown = json.loads(
        cli.ok("price", "show", "o3", "--at", "2025-05-01", "-f", "json"), parse_float=Decimal
    )
    (openai,) = [one for one in shown if one["name"] == "openai/o3"]
    assert openai["example_cost_usd"] == {"standard": Decimal("0.05")}
    assert {row["origin"] for row in openai["history"]} == {"bundled list"}
    (embeds,) = json.loads(
        cli.ok("price", "show", "text-embedding-3-small", "-f", "json"), parse_float=Decimal
    )[:1]
    assert embeds["example_cost_usd"]["standard"] == Decimal("0.00002")
    ran = cli("price", "show", "no-such-model")
    assert (ran.code, "No deployment and no model" in ran.err) == (1, True)


def test_a_models_maker_is_shown_before_its_resellers(cli: Cli) -> None:
    """github-copilot/gpt-5.5 filled the first screen, and OpenAI's own price came below it."""
    ran = cli("price", "show", "gpt-5.5")
    shown = [line.split()[1] for line in ran.out.splitlines() if line.startswith("name ")]
    assert (shown[0], "github-copilot/gpt-5.5" in shown[1:]) == ("openai/gpt-5.5", True)
    assert f"{len(shown)} are called 'gpt-5.5': openai/gpt-5.5, " in ran.err


def test_a_sync_with_nothing_new_writes_nothing(applied: Cli, database_url: str) -> None:
    """The policy's models were imported when it was applied."""
    before = entries(database_url)
    assert before > 0
    ran = applied("price", "sync", "--yes")
    assert (ran.code, entries(database_url)) == (0, before)
    assert "nothing to do" in ran.err
    assert "price sync" not in applied("price", "list").err


def stale(url: str) -> None:
    """As if gpt-5.5 had been imported from another list."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO tollgate.prices (price_id, provider, model, source, rates) VALUES "
            "('price_stale', 'openai', "
            """'gpt-5.5', 'genai-prices 0', '[{"kind":"input","usd_per_mtok":"6","from_input_tokens":0}]')"""  # noqa: E501
        )
        connection.execute(
            "INSERT INTO tollgate.price_entries (origin, provider, model, valid_from, price_id, "
            "source, author, reason) VALUES ('list', 'openai', 'gpt-5.5', now() - interval '1 "
            "hour', 'price_stale', 'genai-prices 0', 'a', 'b')"
        )


def test_a_sync_shows_the_difference_and_asks(applied: Cli, database_url: str) -> None:
    """No team's price changes because a package was updated."""
    stale(database_url)
    before = entries(database_url)
    listing = applied("price", "list")
    assert rate_of(applied, "gpt-eu", "input") == Decimal("6.6")
    assert "The built-in list differs from the book for gpt-5.5" in listing.err
    dry = list(csv.DictReader(io.StringIO(applied.ok("price", "sync", "--dry-run", "-f", "csv"))))
    (changed,) = [
        r
        for r in dry
        if (r["kind"], r["service_tier"], r["from_input_tokens"]) == ("input", "standard", "0")
    ]
    assert (changed["was_usd_per_mtok"], changed["becomes_usd_per_mtok"]) == ("6", "5")
    ran = applied("price", "sync")
    assert (ran.code, entries(database_url)) == (2, before)
    assert "Use --yes" in ran.err
    applied.ok("price", "sync", "--yes")
    assert entries(database_url) > before
    assert rate_of(applied, "gpt-eu", "input") == Decimal("5.5")


def test_a_sync_can_take_the_whole_list(applied: Cli, database_url: str) -> None:
    """For an installation that wants the list of this day on record."""
    before = entries(database_url)
    rows = list(
        csv.DictReader(io.StringIO(applied.ok("price", "sync", "--all", "--dry-run", "-f", "csv")))
    )
    assert len({(row["provider"], row["model"]) for row in rows}) > 1500
    assert entries(database_url) == before


def spend(database: Database, **changes: Any) -> str:
    """One attempt of gpt-eu of an hour ago: 200,000 tokens at 5.5 USD per million.

    Returns its month.
    """
    at = datetime.now(UTC) - timedelta(hours=1)
    line = Line(
        kind=TokenKind.INPUT, tokens=200_000, usd_per_mtok=Decimal("5.5"), cost_nusd=11 * 10**8
    )
    usage = TokenUsage(input_tokens=200_000, output_tokens=0)
    fields: dict[str, Any] = {
        "usage": usage,
        "lines": (line,),
        "cost_nusd": 11 * 10**8,
        "policy_version": 1,
    }
    Ledger(database).write([event(at=at, **fields | changes)])
    return f"{at:%Y-%m}"


def test_a_month_is_priced_again_and_its_events_stay(
    applied: Cli, database: Database, database_url: str
) -> None:
    """The contract came late: finance sees the difference first, then it is posted, once."""
    month = spend(database)
    assert (
        "No event's cost changes" in applied("price", "reprice", "--month", month, "--dry-run").err
    )
    applied.ok(*ADD, "gpt-5.5", "--input", "4", "--output", "24", "--effective-from", "2026-01-01")
    rows = json.loads(
        applied.ok("price", "reprice", "--month", month, "--dry-run", "-f", "json"),
        parse_float=Decimal,
    )
    expected = {"team": "payments", "model": "gpt-5.5", "deployment": "gpt-eu", "events": 1}
    assert [{name: row[name] for name in expected} for row in rows] == [expected]
    assert [Decimal(rows[0][name]) for name in ("was_usd", "becomes_usd", "difference_usd")] == [
        Decimal("1.1"),
        Decimal("0.8"),
        Decimal("-0.3"),
    ]
    ran = applied("price", "reprice", "--month", month)
    assert (ran.code, "Use --yes" in ran.err) == (2, True)
    assert "Posted 1 adjustment" in applied("price", "reprice", "--month", month, "--yes").err
    assert "No event's cost changes" in applied("price", "reprice", "--month", month, "--yes").err
    with psycopg.connect(database_url) as connection:
        adjusted = connection.execute("SELECT amount_usd, kind FROM finance.adjustments").fetchall()
        recorded = connection.execute("SELECT cost_usd FROM finance.usage_events").fetchall()
    assert (adjusted, recorded) == ([(Decimal("-0.3"), "reprice")], [(Decimal("1.1"),)])


def test_unknown_events_are_counted_and_left(applied: Cli, database: Database) -> None:
    """An unknown cost cannot be priced again; it is resolved."""
    month = spend(database, cost_nusd=None, held_nusd=1, lines=())
    ran = applied("price", "reprice", "--month", month, "--yes")
    assert ran.code == 0
    assert "1 event(s) keep their cost: unknown usage." in ran.err


def test_a_closed_month_is_refused(applied: Cli, database: Database) -> None:
    """Its figures were reported."""
    month = spend(database)
    with database.connect() as connection:
        connection.execute("UPDATE tollgate.periods SET state = 'closed'")
    ran = applied("price", "reprice", "--month", month, "--yes")
    assert (ran.code, f"{month} is closed: its figures can no longer change" in ran.err) == (
        1,
        True,
    )
    assert applied("price", "reprice", "--month", "2020-01", "--dry-run").code == 1
    assert applied("price", "reprice", "--month", "yesterday", "--dry-run").code == 2
