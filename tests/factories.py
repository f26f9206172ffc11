"""Valid values for tests, each with one call: a test passes only the values that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from gateway.api.routes import DIALECTS
from gateway.domain.ids import day_of, uuid7
from gateway.domain.operation import Operation
from gateway.domain.policy.api_keys import RANDOM_BYTES, KeyRecord, Pepper, key_id_of, mint
from gateway.domain.policy.policy import (
    DataClass,
    Deployment,
    Policy,
    PolicyVersion,
    ResidencyRule,
    Route,
    Team,
)
from gateway.domain.policy.price_book import BookEntry, Dated, ModelKey, PriceBook, PriceOrigin
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.selfhost import Calibration, GpuRate
from gateway.domain.pricing.settlement import Evidence, Settlement, settle
from gateway.domain.pricing.tokens import TokenKind, TokenUsage
from gateway.domain.request.request import Caller, Request, RequestBody, RequestFacts
from gateway.services.snapshot.snapshot import RequestTerms, Snapshot, SnapshotHolder

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
PEPPER = Pepper(b"a pepper for tests only")
REQUEST_ID = uuid7(int(NOW.timestamp() * 1000), bytes(10))


def price(
    input_usd_per_mtok: str = "1",
    output_usd_per_mtok: str | None = "4",
    *,
    cached: str | None = None,
    cache_write: str | None = None,
    reasoning: str | None = None,
    source: str = "policy",
) -> Price:
    """A price; rates are USD per million tokens, None leaves the kind without a rate of its own."""
    declared = {
        TokenKind.INPUT: input_usd_per_mtok,
        TokenKind.CACHED_INPUT: cached,
        TokenKind.CACHE_WRITE: cache_write,
        TokenKind.OUTPUT: output_usd_per_mtok,
        TokenKind.REASONING: reasoning,
    }
    rates = tuple(
        Rate(kind=kind, usd_per_mtok=Decimal(usd))
        for kind, usd in declared.items()
        if usd is not None
    )
    return Price(provider="openai_compatible", model="m-1", source=source, rates=rates)


def imported(key: ModelKey, entries: Iterable[Dated]) -> PriceBook:
    """A book in which these entries of the built-in list were imported, in this order."""
    return PriceBook(
        entries=tuple(
            BookEntry(
                entry_id=number,
                origin=PriceOrigin.LIST,
                provider=key.provider,
                model=key.model,
                deployment=None,
                dated=dated,
                source="list",
                author="ada",
                reason="",
                created_at=NOW,
            )
            for number, dated in enumerate(entries)
        )
    )


def deployment(name: str = "one", **changes: Any) -> Deployment:
    """Return a deployment in eu-de, at an address without a listener."""
    values: dict[str, Any] = {
        "name": name,
        "provider": "openai_compatible",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "m-1",
        "region": "eu-de",
        "is_self_hosted": False,
        "operations": frozenset(Operation),
    }
    return Deployment(**values | changes)


GPU = GpuRate(
    type="H200",
    count=2,
    usd_per_gpu_hour=Decimal("3.60"),
    input_tok_per_s=Decimal(40_000),
    output_tok_per_s=Decimal(2_500),
    target_utilisation=Decimal("0.5"),
)


def calibration(**changes: Any) -> Calibration:
    """Return a measurement of `GPU` with model m-1: half as fast as declared."""
    values: dict[str, Any] = {
        "model": "m-1",
        "gpu_type": GPU.type,
        "gpu_count": GPU.count,
        "input_tok_per_s": Decimal(20_000),
        "cached_input_tok_per_s": Decimal(200_000),
        "output_tok_per_s": Decimal(1_250),
        "concurrency": 16,
        "held_out_error": Decimal("0.031"),
        "measured_on": NOW.date(),
    }
    return Calibration(**values | changes)


def class_rule(label: str, *regions: str, **changes: Any) -> ResidencyRule:
    """The rule of a data class that allows these regions."""
    return ResidencyRule(**{"rule_id": f"class:{label}", "regions": frozenset(regions)} | changes)


def policy(
    *deployments: Deployment, classes: dict[DataClass, ResidencyRule] | None = None, **changes: Any
) -> Policy:
    """One route `assistant` over the deployments, one team `payments` that may use it."""
    given = deployments or (deployment(),)
    values: dict[str, Any] = {
        "regions": {"eu": ("eu-de", "eu-fr"), "us": ("us-east",)},
        "classes": classes
        or {
            DataClass.INTERNAL: class_rule("internal", "any"),
            DataClass.CONFIDENTIAL: class_rule("confidential", "eu"),
        },
        "deployments": {one.name: one for one in given},
        "routes": {
            "assistant": Route(
                name="assistant",
                deployments=tuple(one.name for one in given),
                aliases=("gpt-4o", "gpt-4o-*"),
            )
        },
        "teams": {"payments": team()},
    }
    return Policy(**values | changes)


def team(name: str = "payments", **changes: Any) -> Team:
    """A team with internal data and the route `assistant`."""
    values: dict[str, Any] = {
        "name": name,
        "cost_centre": "CC-1",
        "data_class": DataClass.INTERNAL,
        "routes": ("assistant",),
    }
    return Team(**values | changes)


def version(document: Policy | None = None, *, number: int = 7) -> PolicyVersion:
    """An applied policy."""
    return PolicyVersion(version=number, sha256="0" * 64, policy=document or policy())


def facts(operation: Operation = Operation.CHAT, **changes: Any) -> RequestFacts:
    """Return the facts of a plain chat request."""
    values: dict[str, Any] = {
        "operation": operation,
        "model": "assistant",
        "is_stream": False,
        "wants_usage": False,
        "wants_running_usage": False,
        "output_bound_tokens": 100,
        "choices": 1,
        "capabilities": frozenset(),
        "features": frozenset(),
        "end_user": None,
        "body_bytes": 100,
    }
    return RequestFacts(**values | changes)


def read(
    body: bytes = b'{"model":"assistant","messages":[]}', operation: Operation = Operation.CHAT
) -> RequestBody:
    """An understood body."""
    return DIALECTS[operation].read_request(operation, body)


def request(body: RequestBody | None = None, **changes: Any) -> Request:
    """A request of team payments."""
    understood = body or read()
    values: dict[str, Any] = {
        "request_id": REQUEST_ID,
        "caller": caller(),
        "body": understood,
        "data_class": DataClass.INTERNAL,
        "data_class_source": "team",
        "end_user": understood.facts.end_user,
        "project": None,
        "tags": (),
        "client_request_id": None,
        "traceparent": None,
    }
    if "facts" in changes:
        values["body"] = RequestBody(changes.pop("facts"), understood.body, understood.members)
    return Request(**values | changes)


def caller(team_name: str = "payments") -> Caller:
    """An authenticated key of a team."""
    return Caller(key_id="k" * 10, team=team_name, project=None)


def key(number: int = 1) -> str:
    """A well-formed API key; another number gives another key."""
    return mint(number.to_bytes(2, "big") * (RANDOM_BYTES // 2))


def key_record(secret: str, *, pepper: Pepper = PEPPER, **changes: Any) -> KeyRecord:
    """Return the stored record of a key."""
    key_id = key_id_of(secret)
    assert key_id is not None, "only a well-formed key has a record"
    values: dict[str, Any] = {
        "key_id": key_id,
        "team": "payments",
        "project": None,
        "digest": pepper.digest(secret),
        "pepper_id": pepper.pepper_id,
    }
    return KeyRecord(**values | changes)


def snapshot(
    *records: KeyRecord, document: Policy | None = None, peppers: tuple[Pepper, ...] = (PEPPER,)
) -> Snapshot:
    """Return a worker's snapshot: every deployment of the policy has the same price."""
    found = document or policy()
    return Snapshot(
        policy=version(found),
        prices={name: price() for name in found.deployments},
        keys={record.key_id: record for record in records},
        peppers={pepper.pepper_id: pepper for pepper in peppers},
    )


def terms(known: Snapshot, of: Request) -> RequestTerms:
    """The budgets and limits of a request."""
    payer = known.policy.policy.teams[of.caller.team]
    day = day_of(of.request_id)
    return known.terms_of(payer, project=of.project, key_id=of.caller.key_id, day=day)


def holder(current: Snapshot | None, *, refreshed_at: datetime | None = NOW) -> SnapshotHolder:
    """Return a snapshot holder, refreshed just now unless changed."""
    return SnapshotHolder(
        current=current, refreshed_at=refreshed_at, problem=None if current else "not loaded"
    )


def request_id(at: datetime = NOW, *, random: int = 0) -> UUID:
    """A request id of a moment."""
    return uuid7(int(at.timestamp() * 1000), random.to_bytes(10, "big"))


def settled(final: TokenUsage | None = None, **known: Any) -> Settlement:
    """Settle a served attempt; `known` are members of its evidence and arguments of `settle`."""
    members = {"final": final, "was_served": True} | {
        name: value for name, value in known.items() if name in Evidence.__struct_fields__
    }
    rest = {name: value for name, value in known.items() if name not in members}
    return settle(Evidence(**members), **{"price": price(), "held_nusd": 100_000} | rest)
