"""Values for the storage tests. Time is fixed: no function here reads a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from gateway.domain.ids import uuid7
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.pricing.pricing import Line, Price, Rate
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PEPPER = Pepper(b"a pepper of thirty-two bytes ....")
# The fields of an attempt of unknown cost: `event(1, **UNKNOWN)`.
UNKNOWN: dict[str, Any] = {
    "usage": TokenUsage(),
    "usage_source": UsageSource.UNKNOWN,
    "lines": (),
    "cost_nusd": None,
    "held_nusd": 5000,
}


def request_id(number: int = 0, at: datetime = NOON) -> UUID:
    """Return a UUIDv7 of a moment. Another number makes another id of the same millisecond."""
    return uuid7(
        (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1),
        number.to_bytes(10, "big"),
    )


def event(number: int = 0, *, at: datetime = NOON, **changes: Any) -> UsageEvent:
    """Return one good attempt; `changes` are fields of the event."""
    fields: dict[str, Any] = {
        "request_id": request_id(number, at),
        "attempt": 1,
        "started_at": at + timedelta(milliseconds=7),
        "team": "payments",
        "project": "checkout",
        "cost_centre": "CC-1207",
        "key_id": "k123456789",
        "end_user": "u-1",
        "tags": {"app": "bot"},
        "route": "assistant",
        "deployment": "gpt-eu",
        "provider": "openai",
        "model": "gpt-5.5",
        "region": "eu",
        "is_self_hosted": False,
        "data_class": "confidential",
        "policy_version": 3,
        "operation": "chat",
        "outcome": Outcome.OK,
        "http_status": 200,
        "streamed": True,
        "usage": TokenUsage(
            input_tokens=1000,
            cached_input_tokens=600,
            cache_write_tokens=0,
            output_tokens=50,
            reasoning_tokens=20,
        ),
        "usage_source": UsageSource.PROVIDER,
        "price_id": "price_0123456789abcdef",
        "lines": (
            Line(kind=TokenKind.INPUT, tokens=400, usd_per_mtok=Decimal("0.25"), cost_nusd=100_000),
            Line(kind=TokenKind.OUTPUT, tokens=50, usd_per_mtok=Decimal("1E+1"), cost_nusd=500_000),
        ),
        "cost_nusd": 600_000,
        "held_nusd": None,
        "ttft_s": 0.25,
        "tpot_s": 0.011,
        "duration_s": 1.5,
        "overhead_s": 0.0004,
        "finish_reason": "stop",
        "client_request_id": "c-1",
        "upstream_request_id": "up-1",
        "features": {"max_tokens": 100},
        "decision": {"rules": ["confidential"]},
    }
    return UsageEvent(**fields | changes)


def key(key_id: str = "k123456789", **changes: Any) -> KeyRecord:
    """Return a key of team payments, made with `PEPPER`."""
    fields: dict[str, Any] = {
        "key_id": key_id,
        "team": "payments",
        "project": None,
        "digest": PEPPER.digest(key_id),
        "pepper_id": PEPPER.pepper_id,
    }
    return KeyRecord(**fields | changes)


def price(usd_per_mtok: str = "2.50") -> Price:
    """Return a price with one tier."""
    rates = (
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal(usd_per_mtok)),
        Rate(kind=TokenKind.INPUT, usd_per_mtok=Decimal("5.00"), from_input_tokens=200_001),
        Rate(kind=TokenKind.OUTPUT, usd_per_mtok=Decimal(10)),
    )
    return Price(provider="openai", model="gpt-5.5", source="policy", rates=rates)
