"""A ledger of two own teams and, unless left out, of foreign ones: each name of these has the mark
`foreign`, and half of their events share every other name with the own ones.

The database with them and its twin without them must give the readers of the own teams the same
answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

from sqlalchemy import text

from gateway.domain.allocation.currency import NewRate
from gateway.domain.allocation.reallocation import NewReallocation
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.policy.allocation import allocation_of
from gateway.domain.pricing.tokens import TokenUsage, UsageSource
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.allocation.reallocations import ReallocationStore
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.database import Database
from gateway.wire.parsed_policy import parse
from tests.storage.factories import event, key

MARK = "foreign"
OWN = ("payments", "search")
FOREIGN = ("foreign-team", "foreign-other")
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
JOURNAL = UUID(int=7)
EVENTS = 90  # of each side
_UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 5_000_000,
}
_GPU_HOUR = """
INSERT INTO tollgate.gpu_hours (deployment, hour, policy_version, gpu_type, gpu_count,
  usd_per_gpu_hour, basis, watched_ms, up_ms, billed_ms, bill_nusd)
VALUES ('qwen-eu', :hour, 1, 'H200', 1, 3, 'seen', 3600000, 3600000, 3600000, 1000000000)
"""
_SPIKE = """
INSERT INTO tollgate.spike_alerts (team, day, model, key_id, spent_nusd, usual_nusd, driver_nusd,
  raised_at)
VALUES (:team, '2026-11-18', 'm-1', :key_id, 9000000000, 1000000000, 8000000000, :at)
"""


def fill(database: Database, *, has_foreign: bool) -> None:
    """Write the ledger, its policy, and every other row that a report reads."""
    document = _document(has_foreign=has_foreign)
    policy = parse(document).policy
    PolicyStore(database).apply(
        document,
        sha256="0" * 64,
        author="ada",
        message="first",
        is_demo=False,
        expected_version=None,
        budgets=policy.budgets,
        allocation=allocation_of(policy),
        limits={team.name: team.limits for team in policy.teams.values()},
    )
    sides = [True, False] if has_foreign else [False]
    for is_foreign in sides:
        _write_events(database, is_foreign=is_foreign, first_half=True)
    rollups.refresh(database)
    for is_foreign in sides:  # these are not summed yet
        _write_events(database, is_foreign=is_foreign, first_half=False)
        _write_others(database, is_foreign=is_foreign)
    CurrencyStore(database).add(
        NewRate(
            currency="EUR", usd_per_unit=Decimal("1.25"), first_day=date(2026, 1, 1), source="ECB"
        )
    )
    with database.begin() as connection:
        for hour in range(4):
            connection.execute(text(_GPU_HOUR), {"hour": datetime(2026, 11, 19, hour, tzinfo=UTC)})


def planted_ids() -> Iterator[UUID]:
    """Yield the ids of all foreign requests."""
    for number in range(EVENTS):
        yield _event(number, is_foreign=True).request_id


def _document(*, has_foreign: bool) -> str:
    """Return the policy document, with the foreign teams or without."""
    foreign = """
  - {name: foreign-team, cost_centre: foreign-cc, data_class: internal, routes: [assistant],
     budgets: [{period: month, limit_usd: 77}], limits: {requests_per_minute: 77},
     projects: [{name: foreign-project, budgets: [{period: month, limit_usd: 7}]}]}
  - {name: foreign-other, cost_centre: CC-1, data_class: internal, routes: [assistant],
     budgets: [{period: day, limit_usd: 7}]}"""
    shares = ", foreign-team: 0.5" if has_foreign else ""
    roles = ", foreign-team: [grp-foreign]" if has_foreign else ""
    return f"""version: 1
regions: {{eu: [eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: gpt-eu, provider: openai, base_url: "https://eu.api.openai.com/v1", model: m-1,
     api_key: "env:K", region: eu, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}}}}
  - {{name: qwen-eu, provider: vllm, base_url: "http://127.0.0.1:8001/v1", model: m-2,
     region: eu-de, price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 2}},
     idle_cost: {{rule: reserved, shares: {{payments: 0.4{shares}}}}}}}
routes:
  - {{name: assistant, deployments: [gpt-eu, qwen-eu]}}
teams:
  - {{name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant],
     budgets: [{{period: month, limit_usd: 5000}}], limits: {{requests_per_minute: 600}}}}
  - {{name: search, cost_centre: [{{name: CC-2, share: 0.7}}, {{name: CC-3, share: 0.3}}],
     data_class: internal, routes: [assistant]}}{foreign if has_foreign else ""}
dashboard: {{finance: [finops], teams: {{payments: [grp-payments], search: [grp-search]{roles}}}}}
"""


def _event(number: int, *, is_foreign: bool) -> UsageEvent:
    """Return one attempt of a side; the odd foreign ones differ by their team alone."""
    rng = Random(f"{number} {is_foreign}")
    is_marked = is_foreign and number % 2 == 0
    mark = f"{MARK}-" if is_marked else ""
    team = (FOREIGN[0] if is_marked else FOREIGN[1]) if is_foreign else rng.choice(OWN)
    at = NOW - timedelta(seconds=rng.randrange(70 * 86_400))
    is_unknown, is_bad = number % 11 == 3, number % 7 == 2
    whole, output = rng.randrange(1, 10_000), rng.randrange(1, 2_000)
    changes: dict[str, Any] = {
        "team": team,
        "project": rng.choice([None, f"{mark}checkout"]),
        "cost_centre": "foreign-cc" if is_marked else ("CC-2" if team == "search" else "CC-1"),
        "key_id": "foreignkey" if is_marked else rng.choice(["k000000001", "k000000002"]),
        "end_user": rng.choice([None, f"{mark}u-1", f"{mark}u-2"]),
        "tags": dict(rng.sample(_tags(mark), rng.randrange(3))),
        "route": f"{mark}assistant",
        "deployment": f"{mark}gpt-eu",
        "model": f"{mark}m-1",
        "region": f"{mark}eu",
        "data_class": "internal",
        "policy_version": 1,
        "price_id": None,
        "lines": (),
        "cost_nusd": rng.randrange(10**9),
        "client_request_id": f"{mark}c",
        "usage": TokenUsage(input_tokens=whole, output_tokens=output),
        "ttft_s": rng.random(),
        "is_demo": number % 13 == 5,
        "decision": {"candidates": [{"deployment": f"{mark}gpt-eu", "obstacles": []}]},
    }
    if is_bad:
        changes |= {"outcome": Outcome.UPSTREAM_ERROR, "http_status": 500}
    # Odd numbers are of the second side, so that no id is there twice.
    return event(2 * number + is_foreign, at=at, **changes | (_UNKNOWN if is_unknown else {}))


def _tags(mark: str) -> list[tuple[str, str]]:
    """Return the tags of a side's events."""
    return [("app", f"{mark}bot"), ("task", f"{mark}t"), (f"{mark}x", "y")]


def _write_events(database: Database, *, is_foreign: bool, first_half: bool) -> None:
    """Write half of the events of a side; in the second half, correct and settle some as well."""
    made = [_event(number, is_foreign=is_foreign) for number in range(EVENTS)]
    ledger = Ledger(database)
    if first_half:
        ledger.write(made[: EVENTS // 2])
        return
    ledger.write(made[EVENTS // 2 :])
    known = next(one for one in made if one.cost_nusd is not None and not one.is_demo)
    changed = {name: getattr(known, name) for name in known.__struct_fields__}
    ledger.write([UsageEvent(**changed | {"cost_nusd": (known.cost_nusd or 0) + 7_000})])
    unknown = next(one for one in made if one.cost_nusd is None and not one.is_demo)
    resolve(
        database,
        unknown.request_id,
        attempt=None,
        cost=3_000,
        reason=f"{MARK if is_foreign else 'own'} invoice",
    )


def _write_others(database: Database, *, is_foreign: bool) -> None:
    """Write the rows of a side that are not of single requests."""
    team = FOREIGN[0] if is_foreign else OWN[0]
    mark = MARK if is_foreign else "own"
    refused = RefusalCountKey(
        hour=NOW.replace(minute=0),
        team=team,
        route=f"{mark}-route" if is_foreign else "assistant",
        data_class="internal",
        code="shadow:rate_limited" if is_foreign else "rate_limited",
        rules=(f"{mark}-rule",),
    )
    RefusalStore(database).write(JOURNAL, {refused: 7})
    keys = KeyStore(database)
    keys.create(
        key("foreignkey" if is_foreign else "k000000001", team=team, project=f"{mark}-project"),
        created_by=mark,
        reason=mark,
    )
    with database.begin() as connection:
        connection.execute(text(_SPIKE), {"team": team, "key_id": f"{mark}-key", "at": NOW})
    if is_foreign:
        ReallocationStore(database).add(
            NewReallocation(
                month=date(2026, 11, 1),
                from_cost_centre="foreign-cc",
                to_cost_centre="CC-1",
                amount_nusd=10**9,
                reason=MARK,
            )
        )
