"""Writes a ledger with every kind of row and names that look like something else: retries, unknown
and estimated usage, late events of a closed month, corrections, re-allocations, shared cost
centres, two rates of a currency, and idle GPU hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from random import Random
from typing import Any

from sqlalchemy import text

from gateway.domain.allocation.currency import new_rate
from gateway.domain.deployments.engine_sample import EngineSample
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.pricing import Line, Price, Rate
from gateway.domain.pricing.selfhost import GpuRate
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.storage.allocation.currencies import CurrencyStore
from gateway.storage.deployments.engine_samples import EngineSamples
from gateway.storage.ledger import rollups
from gateway.storage.ledger.adjustments import resolve
from gateway.storage.ledger.documents import encode_event
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.ledger.month_findings import CHECKS
from gateway.storage.ledger.months import MonthStore
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.database import Database
from tests import factories
from tests.allocation.applied_policies import apply, centre
from tests.storage.factories import event, request_id

FIRST, LAST = datetime(2026, 8, 1, tzinfo=UTC), datetime(2026, 10, 31, 23, 59, tzinfo=UTC)
CLOSED = date(2026, 8, 1)
TEAMS = ("payments", "search", "unallocated", "Other", "=SUM(A1)", "\u202eevil", "a,b", "チーム")
PROJECTS = (None, "unallocated", "one", "total", "<b>x</b>", 'say "hi"\nnext')
END_USERS = (None, "u-1", "u-2", "unallocated", "@cmd", "x\x1b[31m\x7f", "l" * 300)
TAGS = (("env", "prod"), ("env", "dev"), ("app", "a=b"), ("app=a", "b"), ("task", "t 1"), ("", ""))
OCTOBER = date(2026, 10, 1)
CENTRES = {
    "payments": (centre("CC-1", "0.613"), centre("CC-2", "0.387")),
    "search": (centre("CC-2"), centre("CC-2", "0.5", OCTOBER), centre("CC-3", "0.5", OCTOBER)),
}
LISTED = Price(
    provider="openai",
    model="m-1",
    source="policy",
    rates=(
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("2.5")),
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("1.25"), from_input_tokens=5_000),
    ),
)
ACCEPTED = {check.name: "a test" for check in CHECKS}
_REALLOCATE = """
INSERT INTO tollgate.reallocations (month, from_cost_centre, to_cost_centre, amount_nusd, reason,
  author_login) VALUES (:month, 'CC-1', 'CC-9', :nusd, 'x', 'ada') RETURNING reallocation_id
"""
_APPROVE = "INSERT INTO tollgate.reallocation_approvals (reallocation_id, reason) VALUES (:id, 'x')"


def attempts(number: int, rng: Random, *, at: datetime | None = None) -> list[UsageEvent]:
    """Return one request: an attempt, or a failed one and its retry."""
    moment = at or FIRST + timedelta(
        milliseconds=rng.randrange((LAST - FIRST) // timedelta(milliseconds=1))
    )
    team = rng.choice(TEAMS)
    same: dict[str, Any] = {
        "request_id": request_id(number, moment),
        "at": moment,
        "team": team,
        "project": rng.choice(PROJECTS),
        "cost_centre": _centre_of(team, moment, rng),
        "key_id": f"key000000{rng.randrange(4)}",
        "end_user": rng.choice(END_USERS),
        "tags": _tags(rng),
        "route": rng.choice(["assistant", "embed"]),
        "started_at": moment,
    }
    found = [event(number, attempt=1, **same | _call(rng))]
    if rng.random() < 0.2:
        failed = {"outcome": rng.choice([Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_CUT])}
        found = [
            event(number, attempt=1, **same | _call(rng) | failed),
            event(number, attempt=2, **same | _call(rng)),
        ]
    return found


def _tags(rng: Random) -> dict[str, str]:
    """Return the tags of a request: no two that read alike, which sums by tag count twice."""
    found = rng.sample(TAGS, rng.randrange(4))
    alike = {f"{key}={value}": (key, value) for key, value in found}
    return dict(alike.values())


def _centre_of(team: str, moment: datetime, rng: Random) -> str:
    """Return a cost centre: the policy's largest on that day, or one of before a move."""
    if team == "payments":
        return rng.choice(["CC-1", "CC-1", "CC-7"])
    return "CC-2" if team == "search" else rng.choice(["CC-4", "unallocated"])


def _call(rng: Random) -> dict[str, Any]:
    """Return the place and the usage of one attempt."""
    is_own = rng.random() < 0.3
    source = rng.choice([*[UsageSource.PROVIDER] * 4, *UsageSource])
    whole, output = rng.randrange(10_000), rng.randrange(2_000)
    cached = rng.choice([None, whole // 2])
    usage = TokenUsage(
        input_tokens=whole,
        cached_input_tokens=cached,
        cache_write_tokens=rng.choice([None, (whole - (cached or 0)) // 3]),
        output_tokens=output,
        reasoning_tokens=rng.choice([None, output // 3]),
    )
    is_unknown = source is UsageSource.UNKNOWN
    has_usage = not is_unknown and source is not UsageSource.NONE
    return {
        **_waits(rng),
        "lines": tuple(_lines(usage, rng)) if has_usage else (),
        "price_id": rng.choice([LISTED.price_id, "price_not_listed"]),
        "deployment": "qwen-eu" if is_own else rng.choice(["gpt-eu", "gpt-us"]),
        "provider": "vllm" if is_own else "openai",
        "model": rng.choice(["m-1", "m-2"]),
        "region": rng.choice(["eu", "us"]),
        "is_self_hosted": is_own,
        "usage_source": source,
        "usage": usage if has_usage else TokenUsage(),
        "cost_nusd": None if is_unknown else rng.choice([0, 1, rng.randrange(10**10)]),
        "held_nusd": rng.randrange(10**9) if is_unknown else None,
    }


def _lines(usage: TokenUsage, rng: Random) -> Iterator[Line]:
    """Yield the priced lines of a usage; sometimes that of plain input is missing."""
    cached, written = usage.cached_input_tokens or 0, usage.cache_write_tokens or 0
    plain = 0 if rng.random() < 0.2 else (usage.input_tokens or 0) - cached - written
    for kind, tokens, rate in (
        (TokenKind.INPUT, plain, "2.5"),
        (TokenKind.CACHED_INPUT, cached, "0.25"),
        (TokenKind.CACHE_WRITE, written, "3.125"),
    ):
        if tokens:
            nusd = (Decimal(rate) * 1000 * tokens).to_integral_value(ROUND_HALF_EVEN)
            yield Line(kind=kind, tokens=tokens, usd_per_mtok=Decimal(rate), cost_nusd=int(nusd))


def _waits(rng: Random) -> dict[str, Any]:
    """Return the waiting times of an attempt, and the bounds of its route."""

    def some() -> float:
        return 10 ** float(rng.uniform(-4, 3.2))

    bounds: dict[str, Any] = {}
    if rng.random() < 0.6:
        bounds = {"ttft_p95_s": rng.choice([0.5, 2]), "max_cost_nusd": 10**9}
    return {
        **{
            name: rng.choice([None, some()])
            for name in ("ttft_s", "tpot_s", "max_gap_s", "queue_s")
        },
        "overhead_s": rng.choice([None, some()]),
        "duration_s": some(),
        "degraded": rng.choice([None, None, "spill"]),
        "decision": {"bounds": bounds} if bounds or rng.random() < 0.5 else {},
    }


def write_and_close(database: Database, rng: Random, *, requests: int) -> list[UsageEvent]:
    """Write most of the ledger, close its first month, and return the events. Some hours are
    summed, some are not, and some were before they changed.
    """
    apply(database, CENTRES, at=FIRST - timedelta(days=3))
    store = CurrencyStore(database)
    for day, rate in ((date(2025, 1, 1), "1.0837"), (date(2026, 9, 14), "1.17")):
        made = new_rate(currency="EUR", first_day=day, usd_per_unit=Decimal(rate), source="=ECB(1)")
        store.add(made)
    PriceStore(database).store_event_prices([LISTED])
    ledger = Ledger(database)
    found = [one for number in range(requests) for one in attempts(number, rng)]
    ledger.write(found[: len(found) // 2])
    rollups.refresh(database)
    ledger.write(found[len(found) // 2 :])
    _run_gpus(database)
    _adjust(database, ledger, found[::9])
    MonthStore(database).close(CLOSED, billed=(), accepted=ACCEPTED)
    return found


def write_on(database: Database, rng: Random, found: list[UsageEvent], *, requests: int) -> None:
    """Write what comes after the close: late events, corrections and settlements."""
    ledger = Ledger(database)
    begin = datetime(CLOSED.year, CLOSED.month, 5, tzinfo=UTC)
    late = [one for n in range(requests, requests + 12) for one in attempts(n, rng, at=begin)]
    ledger.write(late)
    # None of those above: an attempt is settled once.
    _adjust(database, ledger, [found[n] for n in range(4, len(found), 31) if n % 9])
    year_before = datetime(2025, 9, 30, 23, tzinfo=UTC)
    for number in range(requests + 12, requests + 30):
        ledger.write(attempts(number, rng, at=year_before))
    _reallocate(database)
    with database.begin() as connection:
        connection.execute(text("SELECT tollgate.refresh_hours(60), tollgate.refresh_days(30)"))
    ledger.write([one for n in range(requests + 30, requests + 50) for one in attempts(n, rng)])


def _adjust(database: Database, ledger: Ledger, events: list[UsageEvent]) -> None:
    """Settle some unknown attempts, and let some known ones come again with another cost."""
    for number, one in enumerate(events):
        if one.cost_nusd is None:
            resolve(
                database, one.request_id, attempt=one.attempt, cost=number * 77, reason="=invoice"
            )
        else:
            again = {name: getattr(one, name) for name in one.__struct_fields__}
            again |= {"cost_nusd": one.cost_nusd // 2, "client_request_id": f"again-{number}"}
            ledger.write_documents([encode_event(UsageEvent(**again))])


def _run_gpus(database: Database) -> None:
    """Let an own engine be up for a day, so that it has idle hours."""
    gpu = GpuRate(
        type="H200",
        count=2,
        usd_per_gpu_hour=Decimal("3.10"),
        input_tok_per_s=Decimal(1000),
        output_tok_per_s=Decimal(100),
        target_utilisation=Decimal("0.5"),
    )
    own = factories.deployment("qwen-eu", is_self_hosted=True, gpu=gpu)
    version = factories.version(factories.policy(own), number=1)
    begin = datetime(2026, 9, 29, 12, tzinfo=UTC)
    for hours in (0, 50):
        at = begin + timedelta(hours=hours)
        sample = EngineSample(
            deployment="qwen-eu", at=at, is_up=True, started_at=begin - timedelta(days=9)
        )
        EngineSamples(database).record([sample], version, at=at)


def _reallocate(database: Database) -> None:
    """Move cost between cost centres, as the approval of finance does."""
    with database.begin() as connection:
        for month, nusd in ((date(2026, 9, 1), 12_345), (date(2026, 10, 1), 7 * 10**9)):
            entry = connection.execute(text(_REALLOCATE), {"month": month, "nusd": nusd})
            connection.execute(text(_APPROVE), {"id": entry.scalar_one()})
