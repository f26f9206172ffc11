"""`tollgate audit residency`: the auditor's report, and the data that must never be in it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.domain.residency.stated_place import Contradiction
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.cli.conftest import Cli
from tests.storage.factories import event, request_id

HOUR = datetime(2026, 11, 20, 12, tzinfo=UTC)
ASKED = ("audit", "residency", "--team", "payments", "--month", "2026-11")


@pytest.fixture
def write(applied: Cli, database: Database) -> Callable[..., None]:
    """Writes an attempt as a gateway records it, under version 1 of the example policy."""
    version = json.loads(applied.ok("policy", "show", "--format", "json"))

    def attempt(number: int, **changes: Any) -> None:
        decision: Mapping[str, Any] = {
            "policy": version["sha256"],
            "rule": "confidential",
            "candidates": [
                {
                    "deployment": "gpt-eu",
                    "region": "eu",
                    "host": "eu.api.openai.com",
                    "at_rest": "eu",
                }
            ],
        }
        Ledger(database).write(
            [event(number, policy_version=1, **{"decision": decision, **changes})]
        )

    return attempt


def test_a_month_that_stayed_inside(
    applied: Cli, write: Callable[..., None], database: Database
) -> None:
    """Counts by place, the facts with their sources, the refusals, and one sentence above all of
    it.
    """
    for number in range(3):
        write(number)
    refused = RefusalCountKey(
        HOUR, "payments", "assistant", "restricted", "residency_denied", ("class:restricted",)
    )
    RefusalStore(database).write(uuid4(), {refused: 4})
    ran = applied(*ASKED)
    assert ran.code == 0, ran
    assert "0 of 3 attempts broke a rule. The audit log is as it was written." in ran.out
    assert "eu.api.openai.com" in ran.out
    assert "https://developers.openai.com/api/docs/guides/data-residency" in ran.out
    assert "<td>class:restricted</td>" in ran.out
    report = json.loads(applied.ok(*ASKED, "--format", "json"))
    (place,) = report["Where it was sent"]
    assert (place["region"], place["class"], place["attempts"]) == ("eu", "confidential", 3)
    assert report["Refused"] == [
        {"route": "assistant", "class": "restricted", "rules": ["class:restricted"], "requests": 4}
    ]
    rows = list(csv.DictReader(io.StringIO(applied.ok(*ASKED, "--format", "csv"))))
    assert [(row["kind"], row["count"]) for row in rows] == [("attempts", "3"), ("refused", "4")]


def test_an_attempt_outside_is_the_first_thing_to_be_read(
    applied: Cli, write: Callable[..., None]
) -> None:
    """Exit 1 for the nightly job; the rule and the day for the person."""
    write(1, data_class="restricted")
    ran = applied(*ASKED, "--format", "json")
    assert ran.code == 1
    report = json.loads(ran.out)
    assert report["verdict"].startswith("1 of 1 attempts broke a rule")
    assert report["Outside of the rules"][0]["why"] == "class:restricted/self_hosted"


def test_an_unverifiable_record_does_not_pass(applied: Cli, write: Callable[..., None]) -> None:
    """A record that does not match its policy's hash proves nothing."""
    write(1, decision={"policy": "f" * 64, "candidates": []})
    ran = applied(*ASKED)
    assert ran.code == 1
    assert "1 that cannot be verified" in ran.err


def test_a_deployment_is_readmitted_with_a_reason(applied: Cli, database: Database) -> None:
    """The contradiction, who took it in again and why are in the month's report."""
    found = Contradiction(deployment="gpt-eu", promised="eu", stated="us")
    EjectionStore(database).eject(found, request_id=request_id(), attempt=1)
    assert applied("policy", "readmit", "qwen-eu", "--reason", "x").code == 1
    explained = json.loads(
        applied.ok(
            "policy", "explain", "--team", "payments", "--route", "assistant", "--format", "json"
        )
    )
    assert "is out of use" in next(
        one["reason"] for one in explained["candidates"] if one["deployment"] == "gpt-eu"
    )
    applied.ok("policy", "readmit", "gpt-eu", "--reason", "a wrong header")
    assert EjectionStore(database).stated_places() == {}
    month = f"{datetime.now(UTC):%Y-%m}"
    report = json.loads(applied(*ASKED, "--month", month, "--format", "json").out)
    (shown,) = report["Contradictions"]
    assert (shown["stated"], shown["promised"]) == ("us", "eu")
    assert shown["taken in again"].endswith("a wrong header")


def test_the_page_is_written_whole_and_escaped(
    applied: Cli, write: Callable[..., None], tmp_path: Path
) -> None:
    """A name is data: it must not become markup in a file that auditors open."""
    write(
        1,
        decision={
            "policy": "x",
            "candidates": [{"deployment": "gpt-eu", "host": "<script>alert(1)</script>"}],
        },
    )
    page = tmp_path / "report.html"
    assert applied(*ASKED, "--out", str(page)).code == 1
    text = page.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert applied(*ASKED, "--out", str(tmp_path / "no" / "way.html")).code == 2
    assert applied("audit", "residency", "--team", "payments", "--month", "November").code == 2
