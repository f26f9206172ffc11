"""The bundled list's price of a deployment, by its provider's name in the table of providers."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.domain.pricing.pricing import cost_nusd, lines
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind, TokenUsage
from gateway.domain.providers.table import PROVIDERS
from gateway.storage.policy.price_list import (
    all_keys,
    builtin_price,
    key_of,
    listed_price,
    schedule,
)
from gateway.storage.policy.prices import StoredBook
from tests.factories import deployment, imported

AT = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("provider", "model", "base_url", "is_priced"),
    [
        ("mistral", "mistral-large-latest", "https://api.mistral.ai/v1", True),
        ("mistral", "mistral-large-latest", "https://proxy.example/v1", True),
        ("mistral", "mistral-large-latest", "https://api.eu.mistral.ai/v1", True),
        ("openai_compatible", "mistral-large-latest", "https://api.mistral.ai/v1", True),
        ("xai", "grok-4", "https://api.x.ai/v1", True),
        ("xai", "grok-4", "https://us.api.x.ai/v1", True),
        ("groq", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1", True),
        ("deepseek", "deepseek-chat", "https://api.deepseek.com/v1", True),
        ("vllm", "mistral-large-latest", "https://api.mistral.ai/v1", False),
    ],
)
def test_a_listed_price_counts_at_hosts_that_charge_it(
    provider: str, model: str, base_url: str, is_priced: bool
) -> None:
    """By the provider's name, or by the host of a compatible server that the table knows."""
    price = builtin_price(provider=provider, model=model, base_url=base_url, at=AT)
    assert (price is not None) is is_priced


@pytest.mark.parametrize(
    ("provider", "model", "listed_at", "host"),
    [
        ("mistral", "mistral-large-latest", "api.mistral.ai", "api.eu.mistral.ai"),
        ("openai_compatible", "mistral-large-latest", "api.mistral.ai", "api.us.mistral.ai"),
        ("xai", "grok-4", "api.x.ai", "us.api.x.ai"),
    ],
)
def test_a_regional_host_costs_a_tenth_more(
    provider: str, model: str, listed_at: str, host: str
) -> None:
    """With the list's price, each of its requests would be charged too little; the price names
    the page that says so.
    """
    listed, found = (
        builtin_price(provider=provider, model=model, base_url=f"https://{at}/v1", at=AT)
        for at in (listed_at, host)
    )
    assert listed is not None
    assert found is not None
    assert [rate.usd_per_mtok for rate in found.rates] == [
        rate.usd_per_mtok if rate.kind in CALL_KINDS else rate.usd_per_mtok * Decimal("1.1")
        for rate in listed.rates
    ]
    assert found.source.startswith(f"{listed.source}; tokens × 1.1 at {host} (https://")
    assert found.price_id != listed.price_id


def test_an_imported_price_is_surcharged_too() -> None:
    """`price sync` stores the list's price; each deployment pays it at its own host."""
    eu = deployment(
        provider="mistral", model="mistral-large-latest", base_url="https://api.eu.mistral.ai/v1"
    )
    key = key_of(eu)
    assert key is not None
    book = StoredBook(imported(key, schedule(key)))
    bundled = builtin_price(
        provider="mistral", model="mistral-large-latest", base_url=eu.base_url, at=AT
    )
    found = book.listed(eu, at=AT)
    assert found is not None
    assert bundled is not None
    assert {rate.usd_per_mtok for rate in found.rates} == {
        rate.usd_per_mtok for rate in bundled.rates
    }


def test_the_tools_of_xai_cost_what_its_page_says() -> None:
    """The list omits them. Searches in X have no sure price, so they are never charged by one."""
    price = builtin_price(provider="xai", model="grok-4.6", base_url="https://api.x.ai/v1", at=AT)
    assert price is not None
    assert "docs.x.ai/developers/pricing" in price.source
    used = TokenUsage(input_tokens=0, output_tokens=0, web_search_calls=2, file_search_calls=2)
    assert cost_nusd(lines(used, price)) == 2 * 5_000_000 + 2 * 2_500_000
    with pytest.raises(ValueError, match="no price for x_search calls"):
        lines(TokenUsage(input_tokens=1, output_tokens=1, x_search_calls=1), price)


def test_cached_audio_of_gemini_has_its_listed_rate() -> None:
    """Its tokens are reported, so audio at these models need not be held as unknown."""
    price = builtin_price(provider="gemini", model="gemini-2.5-flash", base_url="", at=AT)
    assert price is not None
    rates = [
        price.rate(kind, input_tokens=0)
        for kind in (
            TokenKind.CACHED_INPUT,
            TokenKind.CACHED_AUDIO_INPUT,
            TokenKind.AUDIO_INPUT,
        )
    ]
    assert rates == [Decimal("0.03"), Decimal("0.1"), Decimal(1)]


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_each_model_that_is_found_is_in_the_list_under_its_key(provider: str) -> None:
    """By each name in the list, also those of other makers: the list prices some of them there."""
    listed = set(all_keys())
    for model in sorted({key.model for key in listed}):
        name = f"anthropic.{model}" if provider == "bedrock" and "claude" in model else model
        for one in {model, name}:
            key = key_of(deployment(provider=provider, model=one))
            if key is not None:
                assert key in listed
                schedule(key)
                listed_price(key, AT)


@pytest.mark.parametrize(
    ("provider", "model", "maker"),
    [("azure_openai", "gpt-4.1", "openai"), ("azure_openai", "grok-4", "x-ai")],
)
def test_a_resold_model_has_its_makers_list_price(provider: str, model: str, maker: str) -> None:
    """The list has no entry of its own for them at Azure."""
    there = builtin_price(provider=provider, model=model, base_url="https://x.example", at=AT)
    key = key_of(deployment(provider=provider, model=model))
    assert (there is not None, key is not None and key.provider) == (True, maker)


def _base_usd(model: str, provider: str, url: str) -> Decimal:
    price = builtin_price(provider=provider, model=model, base_url=url, at=AT)
    assert price is not None
    rates = (price.rate(kind, input_tokens=0) for kind in (TokenKind.INPUT, TokenKind.OUTPUT))
    return sum((rate for rate in rates if rate is not None), Decimal(0))


@pytest.mark.parametrize(
    "model", ["grok-4-fast", "grok-4-1-fast-reasoning", "grok-code-fast-1", "grok-3", "grok-4-0709"]
)
def test_a_retired_name_costs_as_the_dearer_of_the_models_that_may_serve_it(model: str) -> None:
    """xAI answers some of them with grok-4.3, at six times the rates that the list still has."""
    price = builtin_price(provider="xai", model=model, base_url="", at=AT)
    assert price is not None
    assert price.is_estimated
    assert _base_usd(model, "xai", "") >= _base_usd("grok-4.3", "xai", "")
    before = builtin_price(
        provider="xai", model=model, base_url="", at=datetime(2026, 5, 1, tzinfo=UTC)
    )
    assert before is not None
    assert not before.is_estimated, "a price is dated: a month before is repriced at its own rates"
    at_azure = builtin_price(provider="azure_openai", model=model, base_url="", at=AT)
    assert at_azure is None or not at_azure.is_estimated or "retired" not in at_azure.source


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_a_name_that_moves_costs_as_its_dearest_version(provider: str) -> None:
    """`mistral-large-latest` had the price of 2024's model, as if it were sure."""
    for key in all_keys():
        alias = re.sub(r"-[0-9][0-9.-]*$", "-latest", key.model)
        listed = key_of(deployment(provider=provider, model=alias))
        if alias == key.model or listed is None or listed.model == alias:
            continue
        price = builtin_price(provider=provider, model=alias, base_url="", at=AT)
        own = listed_price(key, AT)
        sells = key.provider == listed.provider == PROVIDERS[provider].listed_as
        if price is None or own is None or not sells:
            continue
        rates = (own.rate(kind, input_tokens=0) for kind in (TokenKind.INPUT, TokenKind.OUTPUT))
        assert _base_usd(alias, provider, "") >= sum(
            (rate for rate in rates if rate is not None), Decimal(0)
        )


def test_a_name_of_versions_with_one_price_is_no_estimate() -> None:
    """A flag on each event of an ordinary alias would tell nothing."""
    for provider, model in (("anthropic", "claude-3-7-sonnet-latest"), ("openai", "gpt-4o")):
        price = builtin_price(provider=provider, model=model, base_url="", at=AT)
        assert price is not None
        assert not price.is_estimated
