"""`tollgate report selfhost-vs-api` and `demand`: a ledger with an engine, an API and a bill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from engine.plan.demand import parse_demand
from gateway.domain.policy.price_book import Dated, NewEntry, PriceOrigin
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.factories import calibration, price
from tests.gateway_process import REPOSITORY
from tests.storage.factories import event

POLICY = """\
version: 1
regions: {eu: [eu-de]}
classes: {internal: {regions: [eu]}}
deployments:
  - {name: big, provider: vllm, base_url: "http://127.0.0.1:8001/v1", model: big-70b,
     region: eu-de, gpu: {type: H200, count: 2, usd_per_gpu_hour: 3, target_utilisation: 0.5,
                          input_tok_per_s: 20000, output_tok_per_s: 1000}}
  - {name: small, provider: vllm, base_url: "http://127.0.0.1:8002/v1", model: small-8b,
     region: eu-de, gpu: {type: L40S, count: 1, usd_per_gpu_hour: 1, target_utilisation: 0.5,
                          input_tok_per_s: 40000, output_tok_per_s: 4000}}
  - {name: hosted, provider: openai_compatible, base_url: "https://llm.example/v1", model: m-large,
     region: eu-de, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 5}}
routes:
  - {name: assistant, deployments: [big, hosted], latency: {ttft_p95_ms: 800}}
  - {name: drafts, deployments: [big]}
teams:
  - {name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant, drafts]}
"""
MTOK = 10**6


def hour_ago(hours: int) -> datetime:
    """The begin of a past hour, so that a bill of it is over."""
    now = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    return now - timedelta(hours=hours)


def served(number: int, route: str, deployment: str, at: datetime, **changes: Any) -> Any:
    """An attempt of a million tokens in and a tenth of it out."""
    usage = TokenUsage(
        input_tokens=MTOK,
        cached_input_tokens=0,
        cache_write_tokens=0,
        output_tokens=MTOK // 10,
        reasoning_tokens=0,
    )
    own = deployment != "hosted"
    fields = {
        "route": route,
        "deployment": deployment,
        "provider": "vllm" if own else "openai_compatible",
        "is_self_hosted": own,
        "usage": usage,
        "cost_nusd": 250_000_000 if own else 1_500_000_000,
    }
    return event(number, at=at, **fields | changes)


@pytest.fixture
def ledger(cli: Cli, tmp_path: Path, database_url: str) -> Iterator[Cli]:
    """Two routes with traffic in one hour, and a bill of two hours of `big`."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    cli.ok("policy", "apply", str(policy), "--yes", "--no-wait")
    begin = hour_ago(2)
    database = Database(database_url)
    Ledger(database).write(
        [
            *(served(n, "assistant", "big", begin) for n in range(3)),
            served(3, "drafts", "big", begin),
            *(served(n, "assistant", "hosted", begin) for n in (4, 5)),
        ]
    )
    bill = tmp_path / "bill.csv"
    bill.write_text(
        "deployment,from,to,gpu_hours,amount,currency,invoice_id\n"
        f"big,{begin:%Y-%m-%dT%H:00Z},{begin + timedelta(hours=2):%Y-%m-%dT%H:00Z},4,12,USD,A\n"
    )
    cli.ok("engine", "bill", "import", str(bill), "--yes")
    yield cli
    database.close()


def rows(cli: Cli, *options: str) -> dict[tuple[str, str | None], dict[str, Any]]:
    text = cli.ok("report", "selfhost-vs-api", *options, "--format", "json")
    found = json.loads(text, parse_float=Decimal, parse_int=Decimal)["rows"]
    return {(row["route"], row["deployment"]): row for row in found}


def test_one_row_for_each_way_with_its_bill_and_break_even(ledger: Cli) -> None:
    """Own traffic is priced at the route's API; the API's own cost is what it charged."""
    found = rows(ledger)
    assert list(found) == [("assistant", "big"), ("assistant", None), ("drafts", "big")]
    own, bought, alone = found.values()
    assert (own["requests"], own["total_tokens"], own["api_model"]) == (3, 3_300_000, "m-large")
    assert (own["selfhost_usd"], own["api_usd"]) == (9, Decimal("4.5"))
    assert (alone["selfhost_usd"], alone["api_usd"], alone["verdict"]) == (3, None, None)
    assert own["difference_usd"] == Decimal("4.5")
    # 4 M / 20,000 + 0.4 M / 1,000 = 600 s of the two hours that were billed.
    assert own["utilisation"] == alone["utilisation"] == Decimal("0.083333")
    # A day is 2 × 24 × 3 = 144 USD; 1.5 USD buy 1.1 M tokens, which take 150 s.
    assert own["break_even_tokens_per_day"] == 144 * 1_100_000 / Decimal("1.5")
    assert own["break_even_utilisation"] == round(96 * 150 / Decimal(86_400), 6)
    assert own["verdict"] == "api"
    assert (bought["api_usd"], bought["requests"]) == (3, 2)
    assert bought["break_even_tokens_per_day"] == own["break_even_tokens_per_day"]
    assert bought["selfhost_usd"] > 12  # two hours and the minutes since, of 6 USD each


def test_what_if_the_gpus_were_cheaper_or_fuller(ledger: Cli) -> None:
    """The price moves the bill and the break-even; full use shares no idle hour."""
    cheaper = rows(ledger, "--gpu-usd-per-hour", "1.5")["assistant", "big"]
    assert (cheaper["selfhost_usd"], cheaper["break_even_tokens_per_day"]) == (
        Decimal("4.5"),
        52_800_000,
    )
    full = rows(ledger, "--utilisation", "1")["assistant", "big"]
    assert (full["utilisation"], full["selfhost_usd"], full["verdict"]) == (
        1,
        Decimal("0.75"),  # 450 s of 6 USD an hour
        "selfhost",
    )
    operated = rows(ledger, "--ops-usd-per-month", "3043.75")["assistant", "big"]
    assert operated["break_even_tokens_per_day"] == 178_933_334  # 244 USD a day, rounded up
    assert operated["verdict"] == "api"


def test_gpus_that_cannot_serve_the_break_even_are_never_cheaper(ledger: Cli) -> None:
    """At 50 USD an hour no volume pays."""
    assert rows(ledger, "--gpu-usd-per-hour", "50")["assistant", "big"]["verdict"] == "never"


def test_the_same_traffic_on_the_smaller_model(ledger: Cli) -> None:
    """Right-sizing: by deployment or by model, all traffic of the route, at its own capacity."""
    found = rows(ledger, "--model", "small-8b", "--api", "hosted")
    assert list(found) == [("assistant", "small"), ("drafts", "small")]
    row = found["assistant", "small"]
    assert (row["requests"], row["api_usd"]) == (5, Decimal("7.5"))
    # 24 USD a day, 1.1 M tokens take 50 s.
    assert row["break_even_tokens_per_day"] == 17_600_000
    assert row["break_even_utilisation"] == round(16 * 50 / Decimal(86_400), 6)
    assert rows(ledger, "--model", "small", "--api", "hosted").keys() == found.keys()
    absent = ledger("report", "selfhost-vs-api", "--model", "m-large")
    assert absent.code == 1
    assert "no self-hosted deployment with a gpu block" in absent.err


def test_a_calibrated_engine_has_its_measured_capacity(
    ledger: Cli, database_url: str, tmp_path: Path
) -> None:
    """The tokens per second stay as measured if the GPU's price changes later, and count no more
    for another model.
    """
    measured = calibration(model="big-70b", gpu_type="H200", gpu_count=2)  # 20,000 and 1,250 tok/s
    entry = NewEntry(
        origin=PriceOrigin.CALIBRATED,
        deployment="big",
        dated=Dated(valid_from=hour_ago(3), price=price()),
        calibration=measured,
    )
    database = Database(database_url)
    PriceStore(database).add([entry], author="ada", reason="measured")
    database.close()
    policy = tmp_path / "later.yaml"
    for usd_per_gpu_hour, model, work_s in (
        (3, "big-70b", 130),
        (6, "big-70b", 130),
        (6, "x", 150),
    ):
        policy.write_text(
            POLICY.replace(
                "usd_per_gpu_hour: 3,", f"usd_per_gpu_hour: {usd_per_gpu_hour},"
            ).replace("model: big-70b", f"model: {model}")
        )
        ledger("policy", "apply", str(policy), "--yes", "--no-wait")
        own = rows(ledger)["assistant", "big"]
        # 1.1 M tokens for 1.5 USD: 1 M / 20,000 + 0.1 M / 1,250 (or 1,000) seconds.
        times_a_day = usd_per_gpu_hour * 48 / Decimal("1.5")
        assert own["break_even_utilisation"] == round(times_a_day * work_s / 86_400, 6)


def test_an_api_is_a_deployment_or_a_listed_model(ledger: Cli) -> None:
    """Whoever has no API on a route compares with one that is not in use."""
    assert rows(ledger, "--api", "hosted")["drafts", "big"]["api_usd"] == Decimal("1.5")
    listed = rows(ledger, "--api", "gpt-4o")["drafts", "big"]
    assert (listed["api_model"], listed["api_usd"]) == ("gpt-4o", Decimal("3.5"))
    absent = ledger("report", "selfhost-vs-api", "--api", "no-such-model")
    assert absent.code == 1
    assert "neither a deployment with a price" in absent.err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--utilisation", "1.1"),
        ("--utilisation", "0"),
        ("--gpu-usd-per-hour", "-1"),
        ("--gpu-usd-per-hour", "nan"),
        ("--ops-usd-per-month", "much"),
    ],
)
def test_an_impossible_assumption_is_bad_usage(ledger: Cli, option: str, value: str) -> None:
    """A typing error must not become a decision on hardware."""
    ran = ledger("report", "selfhost-vs-api", option, value)
    assert ran.code == 2
    assert option in ran.err


def test_other_formats_and_the_demo(ledger: Cli) -> None:
    """The same columns everywhere; the demo's GPUs have no bill."""
    table = ledger("report", "selfhost-vs-api")
    assert "break_even_utilisation" in table.out
    assert "A row without a deployment" in table.err
    assert ledger.ok("report", "selfhost-vs-api", "--format", "csv").startswith("route,deployment,")
    assert "no bill" in ledger("report", "selfhost-vs-api", "--demo").err


def test_deployments_that_the_policy_lacks_are_named(ledger: Cli, database_url: str) -> None:
    """Their rows are unknown, and nobody could tell why."""
    assert "lacks" not in ledger("report", "selfhost-vs-api").err
    database = Database(database_url)
    Ledger(database).write([served(9, "drafts", "gone-eu", hour_ago(2))])
    database.close()
    found = ledger("report", "selfhost-vs-api").err
    assert "The policy in force lacks these deployments" in found
    assert "gone-eu." in found


def test_a_ledger_without_a_policy_says_so(cli: Cli) -> None:
    """A new database is no error."""
    assert "policy apply" in cli("report", "selfhost-vs-api").err


def test_the_demand_is_what_engine_plan_reads(ledger: Cli) -> None:
    """One file format for both commands, in YAML and JSON."""
    text = ledger.ok("report", "demand", "--days", "1")
    found = json.loads(ledger.ok("report", "demand", "--days", "1", "--format", "json"))
    assert found == {
        "requests_per_day": 6.0,
        "prompt_tokens": {"p50": MTOK, "p95": MTOK},
        "output_tokens": {"p50": MTOK // 10, "p95": MTOK // 10},
        "cached_share": 0.0,
        "growth_per_month": 0.0,
        "peak_to_mean": 24.0,
        "start": f"{datetime.now(UTC):%Y-%m}",
        "slo": {"ttft_ms": 800, "tpot_ms": 11},
    }
    assert parse_demand(text, "x") == parse_demand(json.dumps(found), "x")
    assert "Growth is 0" in ledger("report", "demand").err


def test_growth_and_peaks_are_measured(ledger: Cli, database_url: str) -> None:
    """10 requests in the first 9.8 days and 21 in the second: 2.1^(30.4375 / 9.8) - 1 a month."""
    database = Database(database_url)
    Ledger(database).write(
        [
            served(100 * day + n, "drafts", "big", hour_ago(24 * day + 12))
            for day in range(20)
            for n in range(2 if day < 10 else 1)
        ]
        + [
            served(
                9000,
                "drafts",
                "big",
                hour_ago(3),
                usage_source=UsageSource.UNKNOWN,
                usage=TokenUsage(),
                lines=(),
                cost_nusd=None,
                held_nusd=7,
            )
        ]
    )
    database.close()
    found = json.loads(ledger.ok("report", "demand", "--where", "route=drafts", "--format", "json"))
    assert found["growth_per_month"] == pytest.approx(2.1 ** (30.4375 / 9.77) - 1, rel=0.05)
    assert found["requests_per_day"] == pytest.approx(31 / 20, rel=0.05)
    assert found["peak_to_mean"] > 20


def test_no_traffic_is_no_demand(applied: Cli) -> None:
    """A plan for nothing would be one GPU too many."""
    ran = applied("report", "demand")
    assert ran.code == 1
    assert "no demand to measure" in ran.err


def test_engine_plan_takes_its_demand_from_the_ledger(ledger: Cli, tmp_path: Path) -> None:
    """The engine asks the gateway's command, and imports nothing of it."""
    variables = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TOLLGATE_HOME": str(tmp_path / "home"),
        "TOLLGATE_DATABASE_URL": str(ledger.toolbox.options.database_url),
    }
    asked = ["--model", "Qwen3-32B", "--gpu", "H200", "--context", "32768", "--format", "json"]
    command = [sys.executable, "-m", "engine", "plan", *asked, "--from-ledger"]
    done = subprocess.run(
        [*command, "1d"],
        cwd=REPOSITORY,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    # The lengths of this ledger are beyond the model: the plan has read them.
    assert (done.returncode, "beyond" in done.stderr) == (1, True), done
    assert "A prompt and answer of 1100000" in done.stderr
    gone = variables | {"TOLLGATE_DATABASE_URL": "postgresql://x@127.0.0.1:1/x"}
    failed = subprocess.run(
        [*command, "1d"],
        cwd=REPOSITORY,
        env=gone,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert failed.returncode == 3
    assert "its message stands above" in failed.stderr
