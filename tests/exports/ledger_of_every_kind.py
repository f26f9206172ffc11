"""A ledger with every kind of row that the export `focus` has: external, cached, self-hosted,
adjusted, credited, and idle GPU time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.pricing import Line
from gateway.domain.pricing.selfhost import GpuRate
from gateway.domain.pricing.tokens import TokenKind
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests import factories
from tests.reports.random_events import random_event
from tests.storage.factories import UNKNOWN, event, request_id

MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
KINDS = (TokenKind.INPUT, TokenKind.CACHED_INPUT, TokenKind.OUTPUT, TokenKind.WEB_SEARCH)


def _policy() -> PolicyVersion:
    """Return a policy with one own deployment on a rented GPU."""
    gpu = GpuRate(
        type="H200",
        count=2,
        usd_per_gpu_hour=Decimal("3.10"),
        input_tok_per_s=Decimal(1000),
        output_tok_per_s=Decimal(100),
        target_utilisation=Decimal("0.5"),
    )
    own = factories.deployment("qwen-eu", is_self_hosted=True, gpu=gpu)
    return factories.version(factories.policy(own), number=1)


def priced(number: int, rng: Random) -> UsageEvent:
    """Return a random event whose lines add up to its cost, as those of a gateway do."""
    made = random_event(number, rng)
    if made.cost_nusd is None:
        return made
    lines = tuple(
        Line(
            kind=kind,
            tokens=rng.randrange(10_000),
            usd_per_mtok=rng.choice([Decimal("0.25"), Decimal("1E+1")]),
            cost_nusd=rng.randrange(10**9),
        )
        for kind in rng.sample(KINDS, rng.randrange(1, len(KINDS)))
    )
    changes: dict[str, Any] = {"lines": lines, "cost_nusd": sum(line.cost_nusd for line in lines)}
    return event(
        number,
        **{
            name: getattr(made, name)
            for name in made.__struct_fields__
            if name not in ("lines", "cost_nusd")
        }
        | changes,
    )


def fill(database: Database, *, count: int, rng: Random) -> None:
    """Write random events, a corrected one, settled ones, a credit, and two days of a GPU."""
    store, version = EngineSamples(database), _policy()
    for hours in (12, 30):
        at = MIDNIGHT + timedelta(hours=hours)
        up = EngineSample(
            deployment="qwen-eu", at=at, is_up=True, started_at=MIDNIGHT - timedelta(days=9)
        )
        store.record([up], version, at=at)
    ledger = Ledger(database)
    ledger.write([priced(number, rng) for number in range(count)])
    late = [event(count + n, at=MIDNIGHT, **UNKNOWN) for n in range(3)]
    ledger.write(late)
    for number, cost_nusd in enumerate((30, 0, 4_000)):
        unknown = request_id(count + number, MIDNIGHT)
        resolve(database, unknown, attempt=None, cost=cost_nusd, reason='invoice, "November"')
    again = count + 10
    ledger.write([event(again, at=MIDNIGHT, cost_nusd=900_000)])
    ledger.write([event(again, at=MIDNIGHT, cost_nusd=100_000)])  # money back: a credit
