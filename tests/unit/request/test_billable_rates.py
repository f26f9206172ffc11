"""The hold of a hard budget takes the dearest rate that a request can be billed, and no other: a
Claude prompt without a mark was held at a write for an hour to a cache, and twice that for a long
context that it could not reach.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.pricing.cache_writes import ALL_WRITES, WRITE_KINDS
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.request.bound import Bound, bound_of
from gateway.storage.policy.price_list import builtin_price
from tests import factories

NOW = datetime(2026, 11, 29, tzinfo=UTC)
HOSTS = {"openai": "api.openai.com", "anthropic": "api.anthropic.com"}
PROMPT = [{"role": "user", "content": "x" * 20_000}]
MARKED = [{"role": "user", "content": [{"type": "text", "text": "x" * 20_000}]}]
MODELS = [("openai", "gpt-5.5"), ("anthropic", "claude-sonnet-4-5"), ("openai", "gpt-5.6")]


@cache
def price(provider: str, model: str) -> Price:
    """Return a model's price in the bundled list, at its provider's own host."""
    url = f"https://{HOSTS[provider]}/v1"
    found = builtin_price(provider=provider, model=model, base_url=url, at=NOW)
    assert found is not None
    return found


def hard(
    members: dict[str, Any],
    *,
    provider: str = "anthropic",
    model: str = "claude-sonnet-4-5",
    operation: Operation = Operation.MESSAGES,
    **more: Any,
) -> Bound:
    """Return the bound of a request under a hard budget, at the list's price."""
    maximum = "max_output_tokens" if operation is Operation.RESPONSES else "max_tokens"
    body = {"model": "m", maximum: 1000, **members}
    made: dict[str, Any] = {"context_window": 200_000, "native": frozenset({operation})}
    return bound_of(
        factories.read(json.dumps(body).encode(), operation).facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(
            provider=provider, model=model, is_self_hosted=False, **(made | more)
        ),
        price=price(provider, model),
        is_relied_on=True,
        bounds_rounds=True,
    )


def input_usd_per_mtok(bound: Bound, output_usd_per_mtok: str) -> Decimal:
    """Return the rate of a bound's prompt, without its answer."""
    answer = bound.output_tokens * Decimal(output_usd_per_mtok) * 1000
    return round((bound.nusd - answer) / bound.input_tokens / 1000, 2)


@settings(max_examples=50)
@given(
    at=st.sampled_from(MODELS),
    most=st.integers(0, 2_000_000),
    share=st.floats(0, 1),
    writes=st.frozensets(st.sampled_from(WRITE_KINDS)),
    has_tiers=st.booleans(),
)
def test_no_rate_that_can_be_billed_is_left_out(
    at: tuple[str, str], most: int, share: float, writes: frozenset[TokenKind], has_tiers: bool
) -> None:
    """For any prompt up to the bound, in any tier that may serve it."""
    whole = price(*at)
    held = whole.billable(most, writes=writes, has_tiers=has_tiers)
    assert held.price_id == whole.price_id
    for tier in (None, *whole.service_tiers) if has_tiers else (None,):
        for kind, step in whole.for_tier(tier).steps(int(most * share)).items():
            if kind in writes or kind not in ALL_WRITES:
                assert held.dearest(kind) >= step.usd_per_mtok


def test_a_claude_prompt_without_a_mark_costs_its_input() -> None:
    """Held at 12.00 a million tokens before, of a list price of 3.00."""
    plain = hard({"messages": PROMPT})
    assert input_usd_per_mtok(plain, "15") == Decimal("3.00")


@pytest.mark.parametrize(
    ("mark", "usd"),
    [({}, "3.75"), ({"ttl": "5m"}, "3.75"), ({"ttl": "1h"}, "6.00"), ({"ttl": "9d"}, "6.00")],
)
def test_a_marked_prompt_costs_its_dearest_write(mark: dict[str, str], usd: str) -> None:
    """A lifetime that no schema names may be the longest."""
    marked = json.loads(json.dumps(MARKED))
    marked[0]["content"][0]["cache_control"] = {"type": "ephemeral", **mark}
    found = hard({"messages": marked})
    assert input_usd_per_mtok(found, "15") == Decimal(usd)


def test_a_long_context_is_held_if_its_rounds_may_reach_it() -> None:
    """Five windows may be one count of input, above the step; no write is among them."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    found = hard({"messages": PROMPT, "tools": [search]}, allows=frozenset({"hosted_tools"}))
    assert found.rounds is not None
    assert found.rounds.windows == 5
    tokens = 5 * (200_000 * 6 + 1000 * Decimal("22.5")) * 1000
    fees = Decimal(4) * 10_000_000
    assert found.nusd == pytest.approx(tokens + fees, rel=Decimal("1e-6"))


@pytest.mark.parametrize(("listed", "usd"), [((), "12.50"), (("service_tier",), "5.00")])
def test_a_tier_of_the_project_is_held_unless_it_is_listed(
    listed: tuple[str, ...], usd: str
) -> None:
    """A project at OpenAI may serve `auto` as priority: the operator knows its setting."""
    found = hard(
        {"messages": PROMPT, "tools": [{"type": "function", "function": {"name": "f"}}]},
        provider="openai",
        model="gpt-5.5",
        operation=Operation.CHAT,
        listed=frozenset(listed),
    )
    output = "75" if not listed else "30"
    assert input_usd_per_mtok(found, output) == Decimal(usd)


def test_openai_writes_unasked_from_gpt_5_6_on() -> None:
    """Such a write is held without any mark."""
    found = hard({"messages": PROMPT}, provider="openai", model="gpt-5.6", operation=Operation.CHAT)
    whole = price("openai", "gpt-5.6")
    rates = whole.billable(found.input_tokens, writes=ALL_WRITES, has_tiers=True)
    dearest = rates.dearest(TokenKind.INPUT, *WRITE_KINDS)
    assert found.nusd >= found.input_tokens * dearest * 1000


@pytest.mark.parametrize(
    ("tools", "is_in_body"),
    [
        ([{"type": "tool_search"}], True),
        ([{"type": "tool_search"}, {"type": "mcp", "server_label": "s"}], False),
        ([{"type": "tool_search"}, {"type": "web_search"}], False),
    ],
)
def test_a_search_in_the_requests_own_tools_holds_the_request(
    tools: list[dict[str, Any]], is_in_body: bool
) -> None:
    """Its results stand in the body, unless another tool brings more."""
    function = {"type": "function", "name": "f", "parameters": {}, "defer_loading": True}
    found = hard(
        {"input": "x", "tools": [function, *tools]},
        provider="openai",
        model="gpt-5.5",
        operation=Operation.RESPONSES,
        allows=frozenset({"hosted_tools"}),
    )
    assert found.rounds is not None
    assert found.rounds.windows == 5
    assert (found.input_tokens < 10_000) == is_in_body
    assert (found.input_tokens == 200_000) != is_in_body
