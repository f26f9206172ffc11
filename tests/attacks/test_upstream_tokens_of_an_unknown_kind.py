"""Tokens whose kind the usage does not name: writes to the cache without a lifetime cost that of
five minutes though an hour was asked for, and media of an unknown modality cost as text.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.pricing.cache_writes import longest_kind
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.tokens import TokenKind, TokenUsage, UsageSource
from gateway.wire.anthropic import usage as anthropic
from gateway.wire.bedrock import usage as bedrock
from gateway.wire.gemini import usage as gemini
from gateway.wire.openai import usage as openai
from tests.attacks.streamed import HELD_NUSD
from tests.factories import settled

_TEXT = {
    TokenKind.INPUT: 10,
    TokenKind.CACHE_WRITE: 12,
    TokenKind.CACHE_WRITE_30M: 15,
    TokenKind.CACHE_WRITE_1H: 20,
    TokenKind.CACHE_WRITE_12H: 25,
    TokenKind.OUTPUT: 50,
}
_MEDIA = {
    TokenKind.AUDIO_INPUT: 30,
    TokenKind.IMAGE_INPUT: 40,
    TokenKind.AUDIO_OUTPUT: 90,
    TokenKind.IMAGE_OUTPUT: 60,
}


def price(usd_per_mtok: dict[TokenKind, int]) -> Price:
    """Return a price of these rates."""
    rates = (Rate(kind=kind, usd_per_mtok=Decimal(usd)) for kind, usd in usd_per_mtok.items())
    return Price(provider="p", model="m", source="policy", rates=tuple(rates))


def openai_usage(written: int, lifetimes: dict[str, int]) -> TokenUsage | None:
    details = {f"ttl_{name}_tokens": n for name, n in lifetimes.items()}
    prompt: dict[str, Any] = {"cache_write_tokens": written}
    if details:
        prompt["cache_write_tokens_details"] = details
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": prompt}
    return openai.usage_from_wire(json.dumps(usage).encode())


def anthropic_usage(written: int, lifetimes: dict[str, int]) -> TokenUsage | None:
    usage: dict[str, Any] = {
        "input_tokens": 1000 - written,
        "output_tokens": 10,
        "cache_creation_input_tokens": written,
    }
    if lifetimes:
        usage["cache_creation"] = {
            f"ephemeral_{name}_input_tokens": n for name, n in lifetimes.items()
        }
    return anthropic.usage_from_wire(json.dumps(usage).encode())


def bedrock_usage(written: int, lifetimes: dict[str, int]) -> TokenUsage | None:
    usage: dict[str, Any] = {
        "inputTokens": 1000 - written,
        "outputTokens": 10,
        "cacheWriteInputTokens": written,
        "cacheDetails": [{"ttl": name, "inputTokens": n} for name, n in lifetimes.items()],
    }
    return bedrock.usage_from_wire(usage)


READERS = {"openai": openai_usage, "anthropic": anthropic_usage, "bedrock": bedrock_usage}


@pytest.mark.parametrize("dialect", READERS)
@pytest.mark.parametrize(
    ("asked", "lifetimes", "usd_per_mtok", "source"),
    [
        (None, {}, 12, UsageSource.PROVIDER),
        ("1h", {}, 20, UsageSource.ESTIMATED),
        ("12h", {}, 25, UsageSource.ESTIMATED),
        ("1h", {"5m": 400}, 12, UsageSource.PROVIDER),
        ("1h", {"1h": 400}, 20, UsageSource.PROVIDER),
    ],
)
def test_a_write_without_a_lifetime_is_for_the_asked_one(
    asked: str | None,
    lifetimes: dict[str, int],
    usd_per_mtok: int,
    source: UsageSource,
    dialect: str,
) -> None:
    usage = READERS[dialect](400, lifetimes)
    made = settled(
        usage, price=price(_TEXT), held_nusd=HELD_NUSD, asked_writes=longest_kind({asked or "5m"})
    )
    assert made.cost_nusd == (600 * 10 + 400 * usd_per_mtok + 10 * 50) * 1000
    assert made.source is source
    assert made.reported == (usage if source is UsageSource.ESTIMATED else None)


@given(prompt=st.integers(0, 1000), answer=st.integers(0, 1000), kind=st.text(max_size=12))
def test_a_modality_without_a_name_here_costs_the_dearest_kind(
    prompt: int, answer: int, kind: str
) -> None:
    """Two requests that differ in an unknown word alone differ in no discount."""
    usage = {
        "promptTokenCount": 1000,
        "promptTokensDetails": [{"modality": kind, "tokenCount": prompt}],
        "candidatesTokenCount": 1000,
        "candidatesTokensDetails": [{"modality": kind, "tokenCount": answer}],
    }
    found = gemini.usage_from_gemini(json.dumps(usage).encode())
    assert found is not None
    known = kind in ("TEXT", "VIDEO", "DOCUMENT", "AUDIO", "IMAGE")
    made = settled(found, price=price(_TEXT | _MEDIA), held_nusd=HELD_NUSD)
    if known or not prompt + answer:
        assert made.source is UsageSource.PROVIDER
        return
    text = (1000 - prompt) * 10 + (1000 - answer) * 50
    assert made.cost_nusd == (text + prompt * 40 + answer * 90) * 1000
    assert made.source is UsageSource.ESTIMATED
    plain = settled(found, price=price(_TEXT), held_nusd=HELD_NUSD)
    assert (plain.cost_nusd, plain.source) == (60_000_000, UsageSource.ESTIMATED)


def test_a_part_that_is_more_than_its_whole_is_no_truth() -> None:
    """Tokens of an unknown kind are a part of their side as those of the others."""
    for usage in (
        TokenUsage(input_tokens=10, output_tokens=1, unknown_input_tokens=11),
        TokenUsage(input_tokens=10, output_tokens=1, unknown_output_tokens=2),
        TokenUsage(input_tokens=10, output_tokens=1, unknown_input_tokens=-1),
    ):
        assert not usage.is_plausible
