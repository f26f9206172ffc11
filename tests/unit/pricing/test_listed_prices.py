"""The bundled list's price of a deployment, by its provider's name in the table of providers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.storage.policy.price_list import builtin_price

AT = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    ("provider", "model", "base_url", "is_priced"),
    [
        ("mistral", "mistral-large-latest", "https://api.mistral.ai/v1", True),
        ("mistral", "mistral-large-latest", "https://proxy.example/v1", True),
        ("mistral", "mistral-large-latest", "https://api.eu.mistral.ai/v1", False),
        ("openai_compatible", "mistral-large-latest", "https://api.mistral.ai/v1", True),
        ("xai", "grok-4", "https://api.x.ai/v1", True),
        ("xai", "grok-4", "https://us.api.x.ai/v1", False),
        ("groq", "llama-3.3-70b-versatile", "https://api.groq.com/openai/v1", True),
        ("deepseek", "deepseek-chat", "https://api.deepseek.com/v1", True),
        ("vllm", "mistral-large-latest", "https://api.mistral.ai/v1", False),
    ],
)
def test_a_listed_price_counts_at_hosts_that_charge_it(
    provider: str, model: str, base_url: str, is_priced: bool
) -> None:
    """Regional hosts of Mistral and xAI cost a tenth more: with the list's price, each of their
    requests would be charged too little, so an admin declares the price.
    """
    price = builtin_price(provider=provider, model=model, base_url=base_url, at=AT)
    assert (price is not None) is is_priced
