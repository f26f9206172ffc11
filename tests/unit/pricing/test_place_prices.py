"""Prices by place: each provider has a row, each rule a source, and a place that is not known
takes the dearest known factor and is marked.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.policy.price_book import PriceBook
from gateway.domain.pricing.pricing import Price, cost_nusd, hold_nusd, lines
from gateway.domain.pricing.tokens import CALL_KINDS, TokenUsage
from gateway.domain.providers.place_prices import (
    PLACE_RULES,
    PlaceRule,
    factors_of,
    premium_at,
    stated_premiums,
)
from gateway.domain.providers.table import PROVIDERS, provider_at
from gateway.services.policy.apply import price_of
from gateway.services.policy.place_changes import place_changes
from gateway.storage.policy.price_list import all_keys, builtin_price, key_of, schedule
from gateway.storage.policy.prices import StoredBook
from tests.factories import deployment, imported, price

AT = datetime(2026, 11, 28, tzinfo=UTC)
TENTH = Decimal("1.1")
LISTED = sorted(name for name, facts in PROVIDERS.items() if facts.listed_as is not None)
DATED = re.compile(r", 20\d\d-\d\d-\d\d$")
MODELS = {
    name: [key.model for key in all_keys() if key.provider == PROVIDERS[name].listed_as]
    for name in LISTED
}
ADDRESSES = {
    "vertex": "https://europe-west1-aiplatform.googleapis.com/v1/projects/p/locations/europe-west1",
    "vertex-global": "https://aiplatform.googleapis.com/v1/projects/p/locations/global",
    "vertex-eu": "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu",
}


def at(provider: str, address: str, model: str, region: str = "unknown") -> tuple[Decimal, bool]:
    """Return the factor of a place, and whether it is an estimate."""
    found = premium_at(provider, address, region, model=model)
    return found.factor, found.is_estimated


def test_every_provider_with_list_prices_has_a_row_with_sources() -> None:
    """A provider without a row would be charged as if it had no premium: a guess."""
    assert set(LISTED) <= set(PLACE_RULES)
    for name, row in PLACE_RULES.items():
        assert row[0].factor == 1, "the first rule of a row is the place of the list's own rates"
        for rule in row:
            assert DATED.search(rule.source), (name, rule.place)
            assert rule.factor is None or rule.factor >= 1


def test_the_hosts_of_rules_belong_to_their_provider() -> None:
    """A pattern that no address of the provider has would never count."""
    for name, row in PLACE_RULES.items():
        for host in (host for rule in row for host in rule.hosts):
            found = provider_at(host.replace("*", "x"))
            assert found is None or found.name == name, host
    assert provider_at("us.api.fireworks.ai") is None  # not yet a usual host; its price is known


@pytest.mark.parametrize(
    ("model", "factor"),
    [
        *((model, Decimal(1)) for model in ("gpt-4o", "gpt-4.1-mini", "gpt-5", "gpt-5-nano")),
        *((model, Decimal(1)) for model in ("gpt-5.1", "gpt-5.2-pro", "gpt-5.3-codex", "o3", "o1")),
        *((model, Decimal(1)) for model in ("text-embedding-3-large", "gpt-5-2025-08-07")),
        *((model, TENTH) for model in ("gpt-5.4", "gpt-5.4-mini-2026-03-17", "gpt-5.5-pro")),
        *((model, TENTH) for model in ("gpt-5.6-luna", "gpt-6-sol", "gpt-5-5", "gpt-7")),
    ],
)
def test_openai_charges_more_for_models_since_march_2026(model: str, factor: Decimal) -> None:
    """At each regional host; at the general one never."""
    for region in ("eu", "us", "au", "in", "jp", "kr"):
        assert at("openai", f"https://{region}.api.openai.com/v1", model) == (factor, False)
        compatible = at("openai_compatible", f"https://{region}.api.openai.com/v1", model)
        assert compatible == (factor, False)
    assert at("openai", "https://api.openai.com/v1", model, "eu") == (1, False)


@pytest.mark.parametrize(
    ("address", "model", "found"),
    [
        ("vertex", "gemini-3.5-flash", (TENTH, False)),
        ("vertex", "gemini-3.1-flash-lite", (TENTH, False)),
        ("vertex", "gemini-4-argon", (TENTH, False)),
        ("vertex", "gemini-2.5-pro", (1, False)),
        ("vertex", "gemini-embedding-001", (1, False)),
        ("vertex", "claude-sonnet-4-5@20250929", (TENTH, False)),
        ("vertex", "claude-opus-4-1@20250805", (1, False)),
        ("vertex", "claude-sonnet-4@20250514", (1, False)),
        # No page was found that states whether these cost more in a region.
        ("vertex", "gemini-3.1-pro-preview", (TENTH, True)),
        ("vertex-eu", "gemini-3.8-flash", (TENTH, False)),
        ("vertex-global", "gemini-3.8-flash", (1, False)),
        ("vertex-global", "gemini-3.1-pro-preview", (1, False)),
    ],
)
def test_vertex_charges_by_the_location_in_the_path(
    address: str, model: str, found: tuple[Decimal, bool]
) -> None:
    """Models from Claude 4.5 and Gemini 3 on; older ones cost the same everywhere."""
    assert at("vertex", ADDRESSES[address], model) == found


@pytest.mark.parametrize(
    ("region", "factor", "is_estimated"),
    [
        ("global", "1", False),
        ("eu", "1.1", False),
        ("us", "1.1", False),
        ("us-east", "1.1", False),
        ("de", "1.1", False),
        ("fr", "1.21", True),
        ("jp", "1.21", True),
        ("nl", "1.32", True),
        ("br", "1.32", True),
        ("unknown", "1.32", True),
    ],
)
def test_azure_charges_by_the_region_that_the_policy_states(
    region: str, factor: str, is_estimated: bool
) -> None:
    """Its address does not show the kind of deployment; its own list has a price for each."""
    address = "https://acme.openai.azure.com/openai/v1"
    assert at("azure_openai", address, "o4-mini", region) == (Decimal(factor), is_estimated)


@pytest.mark.parametrize(
    ("model", "region", "factor", "is_estimated"),
    [
        ("global.anthropic.claude-sonnet-4-5-20250929-v1:0", "eu-central-1", "1", False),
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", "eu-central-1", "1", False),
        ("us.amazon.nova-pro-v1:0", "us-east-1", "1", False),
        ("eu.amazon.nova-pro-v1:0", "eu-central-1", "1.34", True),
        ("meta.llama3-70b-instruct-v1:0", "eu-west-2", "1.6", True),
        ("meta.llama3-70b-instruct-v1:0", "sa-east-1", "1.69", True),
        ("meta.llama3-70b-instruct-v1:0", "me-central-1", "1.69", True),
    ],
)
def test_bedrock_is_listed_by_profile_and_else_by_its_us_regions(
    model: str, region: str, factor: str, is_estimated: bool
) -> None:
    """The list has the rates of us-east-1 for all models that it does not list by profile."""
    found = at("bedrock", f"https://bedrock-runtime.{region}.amazonaws.com", model, region)
    assert found == (Decimal(factor), is_estimated)


@pytest.mark.parametrize("name", LISTED)
def test_an_unknown_host_takes_the_dearest_factor_unless_it_is_called_global(name: str) -> None:
    """A proxy may stand before a regional endpoint; a deployment served today stays served."""
    row = PLACE_RULES[name]
    dearest = max([rule.factor or Decimal(1) for rule in row])
    for model in MODELS[name]:
        factor, is_estimated = at(name, "http://proxy.example:8080/v1", model, "eu-de")
        is_flat = any(rule.is_for(model) and rule.is_at("x", "x", "eu-de") for rule in row)
        if is_flat:
            assert factor <= dearest
        else:
            assert (factor, is_estimated) == (dearest, dearest != 1)
        assert at(name, "http://proxy.example:8080/v1", model, "global") == (1, False)


def test_prices_of_one_provider_never_count_at_another() -> None:
    """A deployment without an address has the list's own price: demo data and tables."""
    assert premium_at("openai", "", "eu", model="gpt-6").factor == 1
    assert list(stated_premiums("openai", "https://eu.api.openai.com/v1", model="gpt-6")) == []
    assert list(stated_premiums("anthropic", "", model="claude-opus-4-6")) == []
    assert premium_at("vllm", "http://gpu:8000/v1", "eu", model="gpt-6").factor == 1
    assert factors_of("vllm") == {}
    assert set(factors_of("openai")) == {TENTH}


@pytest.mark.parametrize(
    ("model", "geos"),
    [
        ("claude-opus-4-6", {"global": 1, "not_available": 1, "us": TENTH, "*": TENTH}),
        ("claude-haiku-5-5", {"global": 1, "not_available": 1, "us": TENTH, "*": TENTH}),
        ("claude-opus-4-5-20251101", {}),
        ("claude-haiku-4-5", {}),
        ("claude-opus-4.5", {}),
        ("claude-4.5-haiku", {}),
        ("claude-3-5-haiku-latest", {}),
        ("claude-sonnet-4-20250514", {}),
    ],
)
def test_anthropic_charges_by_the_geography_that_it_states(
    model: str, geos: dict[str, Decimal]
) -> None:
    """From Claude Opus and Sonnet 4.6 on; a word that no rule names is never plain."""
    address = "https://api.anthropic.com/v1"
    found = dict(stated_premiums("anthropic", address, model=model))
    assert {geo: premium.factor for geo, premium in found.items()} == geos
    assert {geo for geo, premium in found.items() if premium.is_estimated} == {"*"} & set(geos)


def claude(region: str = "global") -> Price:
    """Return the price of Claude at Anthropic."""
    found = builtin_price(
        provider="anthropic",
        model="claude-opus-4-6",
        base_url="https://api.anthropic.com/v1",
        region=region,
        at=AT,
    )
    assert found is not None
    return found


COUNTS = st.integers(0, 50_000)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(0, 9), st.sampled_from(["us", "global", "eu"]))
def test_the_hold_covers_every_place_that_an_answer_may_state(
    fresh: int, cached: int, written: int, output: int, searches: int, geo: str
) -> None:
    """The place is known only afterwards, so the dearest one is held."""
    usage = TokenUsage(
        input_tokens=fresh + cached + written,
        cached_input_tokens=cached,
        cache_write_tokens=written,
        cache_write_1h_tokens=written,
        output_tokens=output,
        web_search_calls=searches,
    )
    for region in ("global", "us", "unknown"):
        whole = claude(region)
        held = hold_nusd(
            whole,
            input_bound_tokens=fresh + cached + written,
            output_bound_tokens=output,
            tool_calls_bound=searches,
        )
        assert cost_nusd(lines(usage, whole.at(geo))) <= held


def test_a_place_multiplies_tokens_and_no_calls() -> None:
    """Reads and writes of the cache cost a tenth more as well; a search costs the same."""
    here, there = claude(), claude().at("US")
    assert len(here.rates) == len(there.rates)
    for mine, theirs in zip(here.rates, there.rates, strict=True):
        factor = 1 if mine.kind in CALL_KINDS else TENTH
        assert theirs.usd_per_mtok == mine.usd_per_mtok * factor
    assert here.price_id != there.price_id
    assert here.at(None) is here
    assert price().at("us") == price()
    assert (here.is_flagged, here.at("eu").is_flagged, claude("us").is_flagged) == (0, 1, 1)
    assert here.for_tier(None).elsewhere == ()
    assert here.for_tier(None).price_id == here.price_id


def test_a_price_of_the_policy_or_of_price_add_is_never_multiplied() -> None:
    """It is the price of a contract, for exactly this deployment."""
    address = "https://eu.api.openai.com/v1"
    mine = price()
    own = deployment(provider="openai", model="gpt-5.5", base_url=address, price=mine)
    assert price_of(own, at=AT, builtin=builtin_price, book=None) == mine
    bare = deployment(provider="openai", model="gpt-5.5", base_url=address)
    book = SimpleNamespace(override=lambda *_, **__: mine)
    assert price_of(bare, at=AT, builtin=builtin_price, book=cast("Any", book)) == mine
    listed = price_of(bare, at=AT, builtin=builtin_price, book=None)
    assert listed is not None
    assert (listed.factor, listed.place) == (TENTH, "eu.api.openai.com")
    assert "tokens × 1.1 at eu.api.openai.com (https://developers.openai.com/" in listed.source


def test_an_imported_price_is_placed_too() -> None:
    """The book holds the list's own rates; each deployment pays them at its place."""
    bare = deployment(
        provider="openai", model="gpt-5.5", base_url="https://eu.api.openai.com/v1", region="eu"
    )
    key = key_of(bare)
    assert key is not None
    found = StoredBook(imported(key, schedule(key))).listed(bare, at=AT)
    assert found is not None
    assert found == builtin_price(
        provider="openai", model="gpt-5.5", base_url=bare.base_url, region="eu", at=AT
    )
    assert StoredBook(PriceBook()).listed(bare, at=AT) is None


def test_a_plan_names_the_prices_that_change_with_their_place() -> None:
    """After an upgrade the next request costs more: the operator should hear it before finance."""
    eu = builtin_price(
        provider="openai", model="gpt-5.5", base_url="https://eu.api.openai.com/v1", at=AT
    )
    plain = builtin_price(
        provider="openai", model="gpt-5.5", base_url="https://api.openai.com/v1", at=AT
    )
    assert eu is not None
    assert plain is not None
    charged = {"eu": plain, "plain": plain, "own": price(), "back": eu}
    now = {"eu": eu, "plain": plain, "own": price("9"), "new": eu, "back": plain}
    found = dict(place_changes(charged, now))
    assert set(found) == {"eu", "back"}
    assert found["eu"].startswith("input 5 → 5.5, output 30 → 33 USD per million tokens: genai-pri")


def test_a_rule_holds_where_all_its_conditions_do() -> None:
    """A condition that is left out always holds."""
    rule = PlaceRule(place="x", source="s", hosts=("*.a",), locations=("eu*",), regions=("de",))
    assert rule.is_at("x.a", "eu-1", "de")
    assert not rule.is_at("x.b", "eu-1", "de")
    assert not rule.is_at("x.a", "us", "de")
    assert not rule.is_at("x.a", "eu-1", "fr")
