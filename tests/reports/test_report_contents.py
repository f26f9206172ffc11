"""The reports' treatment of unknown, demo and unmeasured events, and their JSON and CSV."""

from __future__ import annotations

import csv
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.errors import BadUsage, NothingFound
from gateway.reports.json_and_csv import to_csv, to_json, usage_me_to_json
from gateway.reports.question import ask
from gateway.reports.registry import REPORTS
from gateway.reports.report import Dataset
from gateway.reports.reports import Reports
from gateway.reports.sources.gpu_days import IDLE_UNKNOWN
from tests.reports.conftest import Write
from tests.storage.factories import NOON, event

# Neither hours of GPUs, samples of engines, periods of budgets, prices, refusals nor acts are
# attempts: see the tests of these reports.
OF_OTHERS = (
    *("gpu", "gpu-bill", "engines", "selfhost-vs-api", "budgets"),
    *("residency", "refusals", "prices", "closes", "audit"),
)
OF_ATTEMPTS = [name for name in REPORTS if name not in OF_OTHERS]
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 40_000_000,
    "outcome": Outcome.UPSTREAM_TIMEOUT,
    "ttft_s": None,
    "tpot_s": None,
}


def test_unknown_is_never_zero(finance: Reports, write: Write) -> None:
    """An unknown cost shown as 0 is a bill that finance finds at the end of the quarter."""
    write(event(1, team="a", **UNKNOWN), event(2, team="b"))

    report = finance.run("spend", ask())

    rows = {row["team"]: row for row in report.records()}
    assert rows["a"]["cost_usd"] is None
    assert rows["a"]["input_tokens"] is None
    assert (rows["a"]["held_usd"], rows["a"]["unknown_share"]) == (Decimal("0.04"), Decimal(1))
    assert report.total["cost_usd"] == Decimal("0.0006")
    assert json.loads(to_json(report))["rows"][1]["cost_usd"] is None
    assert list(csv.DictReader(StringIO(to_csv(report))))[1]["cost_usd"] == ""
    assert "50.00 % of attempts (1 of 2) have an unknown cost" in " ".join(report.notes)


def test_a_total_of_unknown_costs_is_unknown(finance: Reports, write: Write) -> None:
    """Nothing known is not nothing spent."""
    write(event(1, **UNKNOWN))
    assert finance.run("spend", ask()).total["cost_usd"] is None
    assert finance.run("overview", ask()).total["cost_usd"] is None
    notes = finance.run("unsettled", ask()).notes
    assert any("All attempts of this report (1) have an unknown cost" in note for note in notes)


def test_a_report_says_which_time_it_covers(finance: Reports, write: Write) -> None:
    """Without a month every month is in it: a reader took it for the running one."""
    write(event(1))
    assert finance.run("spend", ask()).notes[-1].startswith("Every month is in it. Money in USD")
    (*_, last) = finance.run("spend", ask(month="2026-11")).notes
    assert last.startswith("Money in USD")


def test_a_report_without_a_split_has_its_figures_in_every_format(
    finance: Reports, write: Write
) -> None:
    """CSV, XLSX and Parquet have no place for a total: the file had a header alone."""
    write(event(1), event(2))

    report = finance.run("overview", ask())

    (line,) = csv.DictReader(StringIO(to_csv(report)))
    assert (line["attempts"], line["total_usd"]) == ("2", "0.0012")
    document = json.loads(to_json(report))
    assert document["rows"] == [document["total"]]
    with finance.export("overview", ask()) as export:
        assert tuple(export.rows) == report.lines


@pytest.mark.parametrize("name", OF_ATTEMPTS)
def test_a_report_on_nothing_is_zero_and_says_so(finance: Reports, name: str) -> None:
    """Nothing happened is a fact, and the reader learns how to make something happen."""
    report = finance.run(name, ask())
    assert report.rows == ()
    assert report.total["attempts"] == 0
    assert report.total.get("cost_usd", 0) == 0
    assert report.complete_until is None
    assert any("send a first request" in note for note in report.notes)


@pytest.mark.parametrize("name", OF_ATTEMPTS)
def test_demo_and_real_are_never_mixed(finance: Reports, write: Write, name: str) -> None:
    """A made-up dollar in a real total would be the end of trust in all of them."""
    # Some reports are of the running month, some of the last complete days.
    at = datetime.now(UTC) - timedelta(days=name in ("outlook", "spikes"))
    write(event(1, at=at, **UNKNOWN), *(event(n, at=at, is_demo=True, **UNKNOWN) for n in (2, 3)))

    real, demo = finance.run(name, ask()), finance.run(name, ask(demo=True))

    assert (real.total["attempts"], demo.total["attempts"]) == (1, 2)
    assert (real.dataset, demo.dataset) == (Dataset.REAL, Dataset.DEMO)
    assert any("not real spend" in note for note in demo.notes)
    assert not any("Demo" in note for note in real.notes)


def test_json_carries_plain_decimals(finance: Reports, write: Write) -> None:
    """A nano-dollar as 1E-9, or through a float, is read as something else by somebody."""
    write(event(1, cost_nusd=1), event(2, cost_nusd=10**18 + 1))

    text = to_json(finance.run("spend", ask(by=["day"])))

    total = json.loads(text, parse_float=Decimal)["total"]
    assert total["cost_usd"] == Decimal("1000000000.000000002")
    assert '"cost_usd":1000000000.000000002' in text
    assert json.loads(text)["columns"][0] == {"name": "day", "unit": "UTC"}
    assert json.loads(text)["complete_until"] == "2026-11-20T12:00:00.000Z"


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@cmd", "\tx", "\rx"])
def test_a_name_cannot_be_a_formula(finance: Reports, write: Write, name: str) -> None:
    """A spreadsheet runs a cell that starts like a formula; a team's name must stay a name."""
    write(event(1, team=name, cost_nusd=5))

    row = next(csv.DictReader(StringIO(to_csv(finance.run("spend", ask())), newline="")))

    assert row["team"] == f"'{name}"
    assert row["cost_usd"] == "0.000000005"  # a number stays a number


def test_latency_leaves_unmeasured_attempts_out_and_counts_them(
    finance: Reports, write: Write
) -> None:
    """A plain answer has no first token: as 0 s it would make every percentile better than it
    was.
    """
    write(*(event(n, ttft_s=ttft) for n, ttft in enumerate([0.1, 0.3, None, None])))

    (row,) = finance.run("latency", ask()).records()

    assert 0.1 <= row["ttft_p50_s"] <= 0.3
    assert (row["ttft_measured"], row["ttft_not_measured"]) == (2, 2)


def test_latency_without_a_measurement_is_unknown(finance: Reports, write: Write) -> None:
    """No measurement is no figure."""
    write(event(1, ttft_s=None, tpot_s=None))
    assert finance.run("latency", ask()).total["ttft_p95_s"] is None


def test_kinds_of_tokens_are_disjoint(finance: Reports, write: Write) -> None:
    """Stacked kinds must add up to input plus output: cached is part of input, reasoning part of
    output.
    """
    write(event(1))
    (row,) = finance.run("tokens", ask()).records()
    parts = (
        "uncached_input_tokens",
        "cached_input_tokens",
        "plain_output_tokens",
        "reasoning_tokens",
    )
    assert [row[part] for part in parts] == [400, 600, 30, 20]


def test_self_hosted_spend_says_that_idle_is_missing(finance: Reports, write: Write) -> None:
    """Who compares own GPUs with a provider must know that the empty hours are not in yet."""
    write(event(1, team="own", is_self_hosted=True), event(2, team="other"))
    own, other = (finance.run("spend", ask(where={"team": team})) for team in ("own", "other"))
    assert IDLE_UNKNOWN in own.notes
    assert not any("Idle" in note for note in other.notes)


def test_own_usage_is_the_callers_alone(finance: Reports, write: Write) -> None:
    """`GET /v1/usage/me` shows a team its month and its day, and a key its own part of both."""
    write(
        event(1, key_id="mine"),
        event(2, key_id="another"),
        event(3, key_id="mine", at=datetime(2026, 11, 2, tzinfo=UTC)),
        event(4, key_id="mine", at=datetime(2026, 10, 31, tzinfo=UTC)),
        event(5, team="others", key_id="theirs"),
    )

    usage = finance.usage_me(team="payments", key_id="mine", now=NOON)

    spent = (usage.team_month, usage.team_today, usage.key_month, usage.key_today)
    assert [part.attempts for part in spent] == [3, 2, 2, 1]
    assert usage.key_month.cost_usd == Decimal("0.0012")
    assert json.loads(usage_me_to_json(usage))["month"] == "2026-11"


def test_an_invalid_question_is_refused_with_the_valid_words(finance: Reports) -> None:
    """The message has the existing words, so the user need not look them up."""
    with pytest.raises(BadUsage, match="Use one of: team"):
        ask(by=["colour"])
    with pytest.raises(BadUsage, match="2026-11"):
        ask(month="November")
    with pytest.raises(BadUsage, match="YYYY-MM-DD"):
        ask(where={"day": "yesterday"})
    with pytest.raises(BadUsage, match="1 to 1000"):
        ask(limit=10_000)
    with pytest.raises(NothingFound, match="spend"):
        finance.run("profit", ask())
    with pytest.raises(BadUsage, match="cannot be split"):
        finance.run("events", ask(by=["team"]))
