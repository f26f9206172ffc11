"""A running gateway as the person on call sees it: readiness, metrics and engines, without names
of teams or users.
"""

from __future__ import annotations

import re
from typing import Any

import httpx2

from tests.gateway_process import Gateway
from tests.integration.edge.test_sdk import MESSAGES
from tests.waiting import eventually


def test_readiness_names_the_subject_of_each_alert(gateway: Gateway, http: httpx2.Client) -> None:
    """The page lists journal, writer, unknown share and partitions, each with its status and
    remedy.
    """

    def looked() -> dict[str, Any] | None:
        body: dict[str, Any] = http.get("/readyz").json()
        return body if any(check["check"] == "roll-up" for check in body["checks"]) else None

    readiness = eventually(looked, "a look at Postgres")
    assert (readiness["status"], readiness["policy_version"]) == ("ready", 1)
    checks = {check["check"]: check for check in readiness["checks"]}
    assert set(checks) >= {
        "journal",
        "unsettled attempts",
        "writer",
        "unknown usage",
        "partitions",
        "dead letters",
    }
    assert re.match(r"[0-9.]+ of [0-9.]+ MiB in use", checks["journal"]["finding"])
    assert (
        checks["partitions"]["finding"] == "the coming months have theirs; the default one is empty"
    )


def test_metrics_say_how_the_journal_is(gateway: Gateway, http: httpx2.Client) -> None:
    """Every gauge that the alert rules read has a value from the start, and the disk's speed is
    measured.
    """
    http.post(
        "/v1/chat/completions", json={"model": "chat", "messages": MESSAGES}
    ).raise_for_status()
    text = gateway.metrics()
    found = dict(re.findall(r"^(tollgate_\w+) ([0-9.e+-]+)$", text, re.MULTILINE))
    assert (
        float(found["tollgate_journal_max_bytes"]) > float(found["tollgate_journal_used_bytes"]) > 0
    )
    assert float(found["tollgate_writer_lag_seconds"]) < 30
    assert (
        float(found["tollgate_dead_letters_total"])
        == float(found["tollgate_conflicting_events_total"])
        == 0
    )
    assert float(found["tollgate_journal_sync_seconds_count"]) > 0


def test_the_gateway_looks_at_its_own_engines_alone(gateway: Gateway) -> None:
    """The first round of probes comes at once; a provider is never probed."""
    rows = eventually(
        lambda: gateway.query("SELECT DISTINCT deployment, is_up FROM tollgate.engine_samples"),
        "a look at the engines",
    )
    assert [(row["deployment"], row["is_up"]) for row in rows] == [("vllm", True)]


def test_an_end_user_is_not_named_in_the_ledger(gateway: Gateway, http: httpx2.Client) -> None:
    """The policy has no rule for end users, so the safe default applies: users are distinguished
    but not named.
    """
    ids = [
        http.post(
            "/v1/chat/completions", json={"model": "chat", "messages": MESSAGES, "user": user}
        ).headers["x-request-id"]
        for user in ("ada@example.org", "ada@example.org", "bob@example.org")
    ]
    ada, again, bob = (gateway.events(request_id)[0]["end_user"] for request_id in ids)
    assert re.fullmatch(r"eu_[0-9a-f]{32}", ada)
    assert ada == again != bob
