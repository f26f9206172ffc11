"""An upstream states its service tier in a header, in one chunk, twice or not at all, and its place
in the usage: each attempt is charged by its statements, and never by a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from gateway.domain.request.served_tier import UNKNOWN_TIER
from tests import plain_http
from tests.attacks.stating_provider import CASES, stating
from tests.attacks.streamed import Event, last, read, text
from tests.gateway_process import Gateway

# 1,000 tokens in and 100 out: standard 0.0015, priority 0.0027, flex 0.00075.
PRICE = (
    "{input_usd_per_mtok: 1, output_usd_per_mtok: 5, service_tiers: "
    "{priority: {input_usd_per_mtok: 1.8, output_usd_per_mtok: 9}, "
    "flex: {input_usd_per_mtok: 0.5, output_usd_per_mtok: 2.5}}}"
)
STANDARD, PRIORITY, FLEX = Decimal("0.0015"), Decimal("0.0027"), Decimal("0.00075")
KEY = 'api_key: "env:FAKE_KEY"'
GEO = ("untimed-writes", "silent", "geo-us", "geo-global", "geo-none", "geo-eu")
MESSAGES = [{"role": "user", "content": "word " * 400}]  # longer than the stated prompt
DIALECTS = ("chat/completions", "messages")


def policy(upstream: str) -> str:
    """Return a policy with a route for each case of each provider."""
    lines = []
    for case in CASES:
        common = f"max_output_tokens: 500, context_window: 9000, {KEY}, allows: [service_tier]"
        lines += [
            f'name: gemini-{case}, provider: gemini, base_url: "{upstream}/{case}/v1beta", '
            f"model: m, region: unknown, price: {PRICE}, {common}",
            f'name: openai-{case}, provider: openai, base_url: "{upstream}/{case}/v1", '
            f"model: m, region: unknown, price: {PRICE}, {common}",
        ]
    for case in GEO:
        own = "price: {input_usd_per_mtok: 5, output_usd_per_mtok: 25}"
        common = f'provider: anthropic, base_url: "{upstream}/{case}/v1", {KEY}'
        model = "model: claude-opus-4-6, context_window: 9000, max_output_tokens: 500"
        lines += [
            f"name: global-{case}, region: global, {common}, {model}",
            f"name: unknown-{case}, region: unknown, {common}, {model}",
            f"name: own-{case}, region: unknown, {own}, {common}, {model}",
        ]
    names = [line.split(",")[0].removeprefix("name: ") for line in lines]
    return "\n".join(
        [
            "version: 1",
            "classes: {internal: {regions: [any]}}",
            "deployments:",
            *(f"  - {{{line}}}" for line in lines),
            "routes:",
            *(f"  - {{name: {name}, deployments: [{name}]}}" for name in names),
            "teams:",
            "  - name: t",
            "    cost_centre: C",
            "    data_class: internal",
            f"    routes: [{', '.join(names)}]",
            "    budgets: [{period: month, limit_usd: 50, kind: hard}]",
        ]
    )


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]], module_database_url: str
) -> Iterator[Gateway]:
    """Yield a gateway before the provider of all cases."""
    with stating() as upstream:
        yield from launch_gateway(policy(upstream), module_database_url)


def event(gateway: Gateway, path: str, route: str, **members: Any) -> dict[str, Any]:
    """Return the event of one request to a route."""
    headers = {"authorization": f"Bearer {gateway.key}", "anthropic-version": "2023-06-01"}
    body = {"model": route, "max_tokens": 100, "messages": MESSAGES, **members}
    answer = plain_http.post(f"{gateway.base_url}/{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.read()
    (found,) = gateway.events(answer.headers["x-request-id"])
    return found


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("route", "asked", "tier", "cost"),
    [
        # A priority request over its limit is served as standard: the header alone says so.
        ("gemini-header-standard", "priority", "standard", STANDARD),
        ("gemini-body-standard", "priority", "standard", STANDARD),
        ("gemini-traffic-standard", "flex", "standard", STANDARD),
        ("gemini-header-priority", "flex", "PRIORITY", PRIORITY),
        # A project's setting may give a tier that no request asked for.
        ("gemini-header-flex", None, "flex", FLEX),
        ("gemini-header-priority", None, "PRIORITY", PRIORITY),
        ("gemini-one-word-twice", "flex", "flex", FLEX),
        ("gemini-silent", None, None, STANDARD),
        # Nothing says whether it was granted, or two things do: held, never guessed.
        ("gemini-silent", "priority", None, None),
        ("gemini-two-words", "priority", None, None),
        ("openai-silent", "flex", None, None),
        ("openai-silent", "priority", None, None),
        ("openai-silent", None, None, STANDARD),
        # A header of another provider states nothing.
        ("openai-header-flex", None, None, STANDARD),
    ],
)
def test_the_tier_that_is_stated_is_charged(
    gateway: Gateway,
    route: str,
    asked: str | None,
    tier: str | None,
    cost: Decimal | None,
    is_stream: bool,
) -> None:
    """Priority that was served as standard cost 1.8 times too much."""
    wanted = {} if asked is None else {"service_tier": asked}
    found = event(gateway, "chat/completions", route, stream=is_stream, **wanted)
    assert (found["service_tier"], found["cost_usd"]) == (tier, cost)
    assert found["is_suspect"] is (cost is None)
    if cost is None:  # the bound of the dearest tier is held
        assert found["usage_source"] == "unknown"
        assert found["held_usd"] >= PRIORITY


@pytest.mark.parametrize(
    ("route", "asked", "tier", "cost"),
    [
        ("openai-first-default", "flex", "default", STANDARD),
        ("openai-last-flex", "flex", "flex", FLEX),
        ("openai-last-flex", None, "flex", FLEX),
    ],
)
def test_a_tier_in_one_chunk_counts(
    gateway: Gateway, route: str, asked: str | None, tier: str, cost: Decimal
) -> None:
    """It may stand in the first event alone, or in the last one before the usage."""
    wanted = {} if asked is None else {"service_tier": asked}
    found = event(gateway, "chat/completions", route, stream=True, **wanted)
    assert (found["service_tier"], found["cost_usd"]) == (tier, cost)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize(
    ("route", "cost", "is_flagged"),
    [
        ("global-geo-us", Decimal("0.00825"), False),
        ("unknown-geo-us", Decimal("0.00825"), False),
        ("global-geo-global", Decimal("0.0075"), False),
        ("unknown-geo-global", Decimal("0.0075"), False),
        ("unknown-geo-none", Decimal("0.0075"), False),
        ("global-silent", Decimal("0.0075"), False),
        # No place is stated: the dearest known factor, and a mark.
        ("unknown-silent", Decimal("0.00825"), True),
        ("global-geo-eu", Decimal("0.00825"), True),
        # A contract's price is never multiplied.
        ("own-geo-us", Decimal("0.0075"), False),
        ("own-silent", Decimal("0.0075"), False),
    ],
)
def test_the_place_that_is_stated_is_charged(
    gateway: Gateway, route: str, cost: Decimal, is_flagged: bool, path: str, is_stream: bool
) -> None:
    """Inference in the United States alone costs a tenth more; the hold covers it."""
    found = event(gateway, path, route, stream=is_stream)
    assert (found["cost_usd"], found["is_stand_in_price"]) == (cost, is_flagged)
    assert not found["is_suspect"]


def test_the_price_of_a_stated_place_is_on_record(gateway: Gateway) -> None:
    """Its receipt names the factor with its source, and the cached rate is multiplied too."""
    found = event(gateway, "messages", "global-geo-us")
    (price,) = gateway.query(
        "SELECT source, rates FROM finance.prices WHERE price_id = %s", found["price_id"]
    )
    assert "tokens × 1.1 at inference_geo us (https://platform.claude.com/" in price["source"]
    rates = {
        rate["kind"]: Decimal(rate["usd_per_mtok"])
        for rate in price["rates"]
        if "service_tier" not in rate
    }
    assert (rates["cached_input"], rates["web_search"]) == (Decimal("0.55"), Decimal(10000))


def chat(*, chunk: Any = None, running: Any = None, final: Any = None, end: Any = None) -> Any:
    """Return a chat whose chunks, running usage, usage and usage chunk state these tiers."""
    ended, used = last("chat", 9, 9, **({} if final is None else {"service_tier": final}))
    count = {} if running is None else {"usage": {"prompt_tokens": 9, "service_tier": running}}
    return [
        {**text("chat"), "service_tier": chunk, **count},
        ended,
        {**used, "service_tier": end},
    ]


def messages(*, start: Any = None, end: Any = None) -> list[Event]:
    """Return a stream of messages whose first and last usage state these tiers."""
    usage = {"input_tokens": 9, "output_tokens": 1, "service_tier": start}
    first = {"type": "message_start", "message": {"id": "m", "usage": usage}}
    return [first, text("messages"), *last("messages", 9, 9, service_tier=end)]


def bedrock(*, first: Any = None, second: Any = None) -> list[Event]:
    """Return a stream of Converse with two ends."""
    stop, used = last("bedrock", 9, 9)
    both = (
        {"metadata": {**used["metadata"], "serviceTier": one}}  # type: ignore[index, call-overload]
        for one in (first, second)
    )
    return [text("bedrock"), stop, *both]


def gemini(*, first: Any = None, second: Any = None, traffic: Any = None) -> list[Event]:
    """Return Gemini's stream with two usages."""
    usages = ({"serviceTier": first}, {"serviceTier": second, "trafficType": traffic})
    return [text("gemini"), *(last("gemini", 9, 9, **one)[0] for one in usages)]


def responses(*, first: Any = None, second: Any = None, usage: Any = None) -> list[Event]:
    """Return a response that ends twice."""
    (end,) = last("responses", 9, 9, **({} if usage is None else {"service_tier": usage}))
    both = (
        {**end, "response": {**end["response"], "service_tier": one}}  # type: ignore[index]
        for one in (first, second)
    )
    return [text("responses"), *both]


SPEAKERS = {
    "chat": chat,
    "messages": messages,
    "translated": messages,
    "bedrock": bedrock,
    "gemini": gemini,
    "responses": responses,
}
PLACES = [
    (dialect, name)
    for dialect, speaker in SPEAKERS.items()
    for name in (speaker.__kwdefaults__ or {})
    if name != "traffic"
]
TWO = [
    (*one, other)
    for one in PLACES
    for dialect, other in PLACES
    if dialect == one[0] and other != one[1]
]
SAYINGS = ["flex", "priority", "default"]


@pytest.mark.parametrize(("dialect", "place"), PLACES)
@pytest.mark.parametrize("stated", [*SAYINGS, {"name": "flex"}, ["flex"], 7, True])
def test_each_place_of_a_tier_is_read(dialect: str, place: str, stated: Any) -> None:
    """A value that is no word may stand for any tier, so it is never silence."""
    sent = {"type": stated} if dialect == "bedrock" else stated
    seen = read(dialect, SPEAKERS[dialect](**{place: sent}))
    assert seen.service_tier == (stated if stated in SAYINGS else UNKNOWN_TIER)


@pytest.mark.parametrize(("dialect", "place", "other"), TWO)
@pytest.mark.parametrize("one", SAYINGS)
@pytest.mark.parametrize("two", SAYINGS)
def test_two_places_of_a_tier_have_to_agree(
    dialect: str, place: str, other: str, one: str, two: str
) -> None:
    """The one that came later, or stood in the body, won silently: a tenth of the bill."""
    seen = read(dialect, SPEAKERS[dialect](**{place: one, other: two}))
    assert seen.service_tier == (one if one == two else UNKNOWN_TIER)


@pytest.mark.parametrize(
    ("stated", "traffic", "tier"),
    [
        ("standard", "ON_DEMAND", "standard"),
        ("FLEX", "ON_DEMAND_FLEX", "flex"),
        ("standard", "ON_DEMAND_PRIORITY", UNKNOWN_TIER),
        (None, ["ON_DEMAND"], UNKNOWN_TIER),
        ("flex", "PROVISIONED_THROUGHPUT", "flex"),
    ],
)
def test_a_kind_of_traffic_has_to_agree(stated: Any, traffic: Any, tier: str) -> None:
    """Vertex states the tier as a kind of traffic."""
    assert read("gemini", gemini(second=stated, traffic=traffic)).service_tier == tier


@pytest.mark.parametrize("names", [("us", "eu"), ("us", {"name": "eu"})])
def test_two_names_of_a_place_are_both_kept(names: tuple[Any, Any]) -> None:
    """The last one won, also against the place that contradicts the promise."""
    ends = [last("messages", 9, 9, inference_geo=name)[0] for name in names]
    seen = read("messages", [text("messages"), *ends])
    assert (seen.stated_geo, seen.other_geo) == ("us", "eu" if names[1] == "eu" else UNKNOWN_TIER)


@pytest.mark.parametrize(
    ("route", "asked", "tier", "cost"),
    [
        ("openai-tier-twice", None, None, None),
        ("openai-tier-object", None, None, None),
        ("openai-tier-in-usage", None, "flex", FLEX),
        ("gemini-traffic-else", None, None, None),
    ],
)
def test_tiers_that_contradict_are_held(
    gateway: Gateway, route: str, asked: str | None, tier: str | None, cost: Decimal | None
) -> None:
    """No provider's page names the one that is billed, so the bound of the dearest is held."""
    found = event(gateway, "chat/completions", route, stream=True)
    assert (found["service_tier"], found["cost_usd"]) == (tier, cost)
    assert found["is_suspect"] is (cost is None)
    assert cost is not None or found["held_usd"] >= PRIORITY


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("ttl", "cost", "source"),
    [
        (None, Decimal("0.010625"), "provider"),
        ("5m", Decimal("0.010625"), "provider"),
        ("1h", Decimal("0.0125"), "estimated"),
    ],
)
def test_writes_without_a_lifetime_cost_that_of_the_asked_one(
    gateway: Gateway, ttl: str | None, cost: Decimal, source: str, is_stream: bool
) -> None:
    """A write for an hour costs 1.6 times that for five minutes."""
    control = {"type": "ephemeral", **({} if ttl is None else {"ttl": ttl})}
    part = {"type": "text", "text": "word " * 2000, "cache_control": control}
    asked = [{"role": "user", "content": [part]}]
    found = event(gateway, "messages", "global-untimed-writes", messages=asked, stream=is_stream)
    assert (found["cost_usd"], found["usage_source"]) == (cost, source)
