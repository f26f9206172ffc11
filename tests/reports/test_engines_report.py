"""The newest sample of each engine, as the dashboard shows it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf

import pytest

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.deployments.engine_signals import EngineSignals, Histogram
from gateway.errors import BadUsage
from gateway.reports.question import ask
from gateway.reports.reports import Reports
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.postgres.database import Database
from tests import factories

AT = datetime(2026, 11, 26, 4, tzinfo=UTC)
SIGNALS = EngineSignals(
    queue=3,
    running=2,
    room=2,
    kv_use=0.25,
    prefix_hit_rate=0.4,
    ttft=Histogram(((0.5, 10), (1.0, 20), (inf, 20))),
)


def sample(name: str, minute: int, **others: object) -> EngineSample:
    at = AT + timedelta(minutes=minute)
    return EngineSample(deployment=name, at=at, is_up=True, running=2, waiting=3, **others)


def test_an_engine_shows_its_newest_sample_with_its_signals(
    database: Database, finance: Reports
) -> None:
    """A figure that it did not report is empty, and an engine that left the policy is gone."""
    own = [factories.deployment(name, is_self_hosted=True) for name in ("qwen", "llama", "old")]
    policy = factories.version(factories.policy(*own))
    store = EngineSamples(database)
    store.record([sample("qwen", 0), sample("llama", 0), sample("old", 0)], policy, at=AT)
    newest = [sample("qwen", 1).with_signals(SIGNALS), sample("llama", 1).with_signals(None)]
    store.record(newest, policy, at=AT + timedelta(minutes=1))
    report = finance.run("engines", ask())
    assert report.complete_until == AT + timedelta(minutes=1)
    llama, qwen = report.records()
    assert qwen == {
        "deployment": "qwen",
        "at": AT + timedelta(minutes=1),
        "is_up": True,
        "queue": 3,
        "running": 2,
        "kv_use": 0.25,
        "prefix_hit_rate": 0.4,
        "ttft_p50_s": 0.5,
        "ttft_p95_s": 0.95,
        "tpot_p50_s": None,
        "tpot_p95_s": None,
        "pressure": 2.5,
    }
    assert (llama["queue"], llama["kv_use"], llama["pressure"]) == (3, None, None)
    assert len(finance.run("engines", ask(where={"deployment": "qwen"})).rows) == 1
    assert finance.run("engines", ask(demo=True)).rows == ()
    with pytest.raises(BadUsage, match="Filter by deployment"):
        finance.run("engines", ask(where={"team": "payments"}))
