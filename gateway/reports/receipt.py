"""What did one request cost, line by line, and why did it go where it went?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from gateway.domain.identity import occurred_at
from gateway.domain.money import plain_usd, usd_from_nusd
from gateway.domain.pricing import Line
from gateway.domain.tokens import TokenKind
from gateway.reports.connection import Row, Snapshot
from gateway.reports.plain import plain_decimal
from gateway.reports.report import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the decision said of one deployment. `rank` is its place in the order, None if it was left out."""

    deployment: str
    region: str
    rank: int | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReceipt:
    """One attempt. `cost_usd` is None where unknown; then `held_usd` is the most it can cost."""

    attempt: int
    started_at: datetime
    recorded_at: datetime
    route: str
    deployment: str
    provider: str
    model: str
    region: str
    is_self_hosted: bool
    outcome: str
    http_status: int | None
    streamed: bool
    finish_reason: str | None
    input_tokens: int | None
    cached_input_tokens: int | None
    cache_write_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    usage_source: str
    is_suspect: bool
    price_id: str | None
    price_source: str | None
    lines: tuple[Line, ...]
    cost_usd: Decimal | None
    held_usd: Decimal | None
    ttft_s: float | None
    tpot_s: float | None
    duration_s: float
    overhead_s: float | None
    upstream_request_id: str | None
    objective: str | None
    rule: str | None
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One request: all its attempts. `cost_usd` is the sum of those known, None where none is."""

    request_id: UUID
    dataset: Dataset
    occurred_at: datetime
    team: str
    project: str | None
    cost_centre: str
    key_id: str
    end_user: str | None
    tags: Mapping[str, str]
    data_class: str
    policy_version: int
    operation: str
    posted_period: str
    client_request_id: str | None
    attempts: tuple[AttemptReceipt, ...]
    cost_usd: Decimal | None
    held_usd: Decimal
    notes: tuple[str, ...]


def arithmetic(line: Line) -> str:
    """Return the calculation of one line, every digit of it: `1,234 x 0.25 USD / 1,000,000 = 0.0003085 USD`."""
    rate = plain_decimal(line.usd_per_mtok)
    exact = line.tokens * line.usd_per_mtok / 1_000_000 == usd_from_nusd(line.cost_nusd)
    return f"{line.tokens:,} × {rate} USD / 1,000,000 {'=' if exact else '≈'} {plain_usd(line.cost_nusd)} USD"


def receipt(snapshot: Snapshot, request_id: UUID, *, dataset: Dataset, team: str | None) -> Receipt | None:
    """Return the receipt of a request, None where there is none, or none of this team.

    `team` None is for those who may see every team's. The moment inside the id prunes all other months.
    """
    chosen = f"FROM {dataset.events} AS event"
    rows = snapshot.rows(
        f"SELECT event.*, price.source AS price_source {chosen} "
        f"LEFT JOIN finance.prices AS price ON price.price_id = event.price_id "
        f"WHERE event.request_id = :request_id AND event.occurred_at = :occurred_at "
        f"AND (CAST(:team AS text) IS NULL OR event.team = :team) ORDER BY event.attempt",
        request_id=request_id, occurred_at=occurred_at(request_id), team=team,
    )  # fmt: skip
    return _receipt(rows, dataset) if rows else None


def _receipt(rows: Sequence[Row], dataset: Dataset) -> Receipt:
    attempts = tuple(_attempt(row) for row in rows)
    known = [attempt.cost_usd for attempt in attempts if attempt.cost_usd is not None]
    first = rows[0]
    return Receipt(
        request_id=first["request_id"],
        dataset=dataset,
        occurred_at=first["occurred_at"],
        team=first["team"],
        project=first["project"],
        cost_centre=first["cost_centre"],
        key_id=first["key_id"],
        end_user=first["end_user"],
        tags=first["tags"] or {},
        data_class=first["data_class"],
        policy_version=first["policy_version"],
        operation=first["operation"],
        posted_period=f"{first['posted_period']:%Y-%m}",
        client_request_id=first["client_request_id"],
        attempts=attempts,
        cost_usd=sum(known, Decimal(0)) if known else None,
        held_usd=sum((a.held_usd for a in attempts if a.cost_usd is None and a.held_usd is not None), Decimal(0)),
        notes=tuple(_notes(attempts, dataset)),
    )


def _attempt(row: Row) -> AttemptReceipt:
    decision = row["decision"] or {}
    plain = {name: row[name] for name in AttemptReceipt.__dataclass_fields__ if name in row}
    return AttemptReceipt(
        **plain | {"lines": tuple(_line(line) for line in row["lines"] or ())},
        objective=decision.get("objective"),
        rule=decision.get("rule"),
        verdicts=tuple(_verdicts(decision)),
    )


def _line(line: Mapping[str, Any]) -> Line:
    return Line(
        kind=TokenKind(line["kind"]), tokens=int(line["tokens"]), usd_per_mtok=Decimal(str(line["usd_per_mtok"])),
        cost_nusd=int(line["cost_nusd"]),
    )  # fmt: skip


def _verdicts(decision: Mapping[str, Any]) -> list[Verdict]:
    """The stored decision in words, in the order tried; those left out come last."""
    ranks = {name: place for place, name in enumerate(decision.get("ranked", ()), start=1)}
    found = []
    for candidate in decision.get("candidates", ()):
        rank = ranks.get(candidate["deployment"])
        obstacles = "; ".join(detail for _, detail in candidate.get("obstacles", ()))
        chosen = f"eligible, number {rank} by {decision.get('objective', 'priority')}"
        found.append(
            Verdict(
                deployment=candidate["deployment"], region=candidate.get("region", "unknown"), rank=rank,
                reason=chosen if rank else f"left out: {obstacles or 'no reason was recorded'}",
            )
        )  # fmt: skip
    return sorted(found, key=lambda verdict: verdict.rank or len(found) + 1)


def _notes(attempts: Sequence[AttemptReceipt], dataset: Dataset) -> list[str]:
    notes = ["Demo data: generated, not real spend."] if dataset is Dataset.DEMO else []
    if any(attempt.cost_usd is None for attempt in attempts):
        notes.append(
            "The cost of an attempt is unknown: it is not in the total; the amount held is the most it can be."
        )
    if any(attempt.usage_source in ("derived", "estimated") for attempt in attempts):
        notes.append("Usage of an attempt is derived: counted from what was seen, not the provider's final figure.")
    if any(attempt.is_suspect for attempt in attempts):
        notes.append("The upstream's usage of an attempt contradicts itself or its price and was not charged as sent.")
    if any(attempt.is_self_hosted for attempt in attempts):
        notes.append("A self-hosted attempt is priced at standard cost; idle GPU time is not in it.")
    return [*notes, "Money in USD, each line rounded once, half-even, to the nano-dollar; times in UTC."]
