"""Arguments that change the fee of a tool's calls: a picture of high quality costs six times one of
the price's "per 1,000 calls", and was booked at it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from openai.types.responses.tool_param import ImageGeneration, Mcp

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import HostedToolsRule, Route
from gateway.domain.pricing.pricing import Price, Rate
from gateway.domain.pricing.settlement import UncountedFee
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.domain.providers.tool_arguments import fee_arguments
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import RequestFacts
from gateway.services.request.admission import _unbounded
from tests import factories

DAY = BudgetRule(
    rule_id="payments/day",
    scope=BudgetScope.TEAM,
    team="payments",
    owner="payments",
    period=BudgetPeriod.DAY,
    limit_nusd=1,
)
MESSAGES = [{"role": "user", "content": "x"}]
CHANGES: list[tuple[str, Operation, dict[str, Any], str]] = [
    *(
        ("openai", Operation.RESPONSES, {"type": "image_generation", name: value}, shown)
        for name, value, shown in [
            ("quality", "high", "image_generation.quality=high"),
            ("quality", "medium", "image_generation.quality=medium"),
            ("size", "1536x1024", "image_generation.size=1536x1024"),
            ("model", "gpt-image-1", "image_generation.model=gpt-image-1"),
            ("partial_images", 3, "image_generation.partial_images=3"),
            ("input_fidelity", "high", "image_generation.input_fidelity=high"),
            ("input_image_mask", {"file_id": "f"}, "image_generation.input_image_mask"),
            ("frame_count", 24, "image_generation.frame_count=24"),
            ("of_tomorrow", True, "image_generation.of_tomorrow=true"),
            ("quality", ["high"], "image_generation.quality"),
            ("quality", "x" * 5000, "image_generation.quality"),
        ]
    ),
    (
        "openai",
        Operation.RESPONSES,
        {"type": "web_search", "search_context_size": "high"},
        "web_search.search_context_size=high",
    ),
    (
        "openrouter",
        Operation.RESPONSES,
        {"type": "openrouter:web_search", "parameters": {"max_results": 25}},
        "openrouter:web_search.max_results=25",
    ),
    (
        "openrouter",
        Operation.RESPONSES,
        {"type": "openrouter:web_search", "parameters": {"engine": "exa"}},
        "openrouter:web_search.engine=exa",
    ),
    (
        "anthropic",
        Operation.MESSAGES,
        {"type": "web_search_20250305", "name": "web_search", "depth": "deep"},
        "web_search_20250305.depth=deep",
    ),
    (
        "xai",
        Operation.RESPONSES,
        {"type": "x_search", "enable_of_tomorrow": True},
        "x_search.enable_of_tomorrow=true",
    ),
]
ORDINARY: list[tuple[str, Operation, dict[str, Any]]] = [
    ("openai", Operation.RESPONSES, {"type": "image_generation"}),
    (
        "openai",
        Operation.RESPONSES,
        {"type": "image_generation", "quality": "auto", "size": None, "output_format": "png"},
    ),
    (
        "openai",
        Operation.RESPONSES,
        {
            "type": "web_search",
            "external_web_access": True,
            "search_context_size": "medium",
            "user_location": {"type": "approximate", "country": "DE"},
            "filters": {"allowed_domains": ["x.org"]},
        },
    ),
    (
        "openai",
        Operation.RESPONSES,
        {"type": "file_search", "vector_store_ids": ["v"], "max_num_results": 3, "filters": {}},
    ),
    ("openai", Operation.RESPONSES, {"type": "code_interpreter", "container": {"type": "auto"}}),
    (
        "anthropic",
        Operation.MESSAGES,
        {
            "type": "web_search_20250305",
            "name": "web_search",
            "max_uses": 3,
            "allowed_domains": ["x.org"],
            "user_location": {"type": "approximate", "city": "x"},
            "cache_control": {"type": "ephemeral"},
        },
    ),
    (
        "xai",
        Operation.RESPONSES,
        {"type": "web_search", "excluded_domains": [], "enable_image_understanding": True},
    ),
    ("xai", Operation.RESPONSES, {"type": "x_search", "from_date": "2026-01-01"}),
    (
        "xai",
        Operation.RESPONSES,
        {"type": "mcp", "server_label": "x", "server_url": "https://x.example", "headers": {}},
    ),
    ("openai", Operation.RESPONSES, {**dict.fromkeys(Mcp.__annotations__, "x"), "type": "mcp"}),
    (
        "anthropic",
        Operation.MESSAGES,
        {"type": "mcp_toolset", "mcp_server_name": "x", "default_config": {}, "configs": {}},
    ),
    (
        "openrouter",
        Operation.RESPONSES,
        {"type": "openrouter:web_search", "parameters": {"engine": "auto"}},
    ),
]


def read(operation: Operation, tool: dict[str, Any], **members: Any) -> RequestFacts:
    """Return the facts of a request with a tool."""
    prompt: dict[str, Any] = (
        {"input": "x"} if operation is Operation.RESPONSES else {"messages": MESSAGES}
    )
    maximum = "max_output_tokens" if operation is Operation.RESPONSES else "max_tokens"
    body = {"model": "m", maximum: 10, **prompt, **({"tools": [tool]} if tool else {}), **members}
    return factories.read(json.dumps(body).encode(), operation).facts


def price(*kinds: TokenKind) -> Price:
    """Return a price with a rate for each call of some kinds."""
    plain = factories.price("1", "1")
    calls = tuple(Rate(kind=kind, usd_per_mtok=Decimal(40_000)) for kind in kinds)
    return replace(plain, rates=(*plain.rates, *calls))


def bound(
    facts: RequestFacts,
    provider: str,
    *,
    is_hard: bool = True,
    kinds: frozenset[TokenKind] = CALL_KINDS,
    **deployment: Any,
) -> Bound:
    """Return the bound of a request at a deployment whose price has a rate of each call."""
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(
            provider=provider,
            context_window=1000,
            is_self_hosted=deployment.pop("is_self_hosted", False),
            native=frozenset({facts.operation}),
            hosted_rounds=30,
            **deployment,
        ),
        price=price(*sorted(kinds)),
        is_relied_on=is_hard,
        bounds_rounds=is_hard,
    )


@pytest.mark.parametrize(("provider", "operation", "tool", "shown"), CHANGES)
def test_an_argument_that_changes_the_fee_is_named(
    provider: str, operation: Operation, tool: dict[str, Any], shown: str
) -> None:
    """Under a hard budget it is refused unless it is listed; else such a call is unknown."""
    facts = read(operation, tool)
    found = bound(facts, provider)
    assert found.unpriced is not None
    assert (found.unpriced.where, found.unpriced.listed_as) == (f"tools: {shown}", shown)
    assert (found.is_certain, found.unpriced.is_argument) == (False, True)
    for listed in (shown, shown.partition("=")[0]):
        served = bound(facts, provider, listed=frozenset({listed}))
        assert (served.is_certain, served.unpriced) == (True, None)
        soft = bound(facts, provider, is_hard=False, listed=frozenset({listed}))
        assert soft.rounds is not None
        assert soft.rounds.fee is None
    dropped = bound(facts, provider, hosted_tools=HostedToolsRule.DROP)
    assert dropped.rounds is not None
    assert (dropped.unpriced, len(dropped.rounds.left_out)) == (None, 1)
    soft = bound(facts, provider, is_hard=False)
    assert soft.rounds is not None
    assert soft.rounds.fee == UncountedFee(kind=None)
    assert bound(facts, provider, is_self_hosted=True).unpriced is None


def test_an_environment_of_an_unknown_type_is_listed_by_itself() -> None:
    """The shell that its caller runs costs nothing; the same shell there may."""
    tool = {"type": "shell", "environment": {"type": "container_new"}}
    facts = read(Operation.RESPONSES, tool)
    for listed in ({"shell"}, set[str]()):
        found = bound(facts, "openai", kinds=frozenset(), listed=frozenset(listed))
        assert found.unpriced is not None
        assert found.unpriced.listed_as == "container_new"
    assert bound(facts, "openai", kinds=frozenset(), listed=frozenset({"container_new"})).is_certain
    own = read(Operation.RESPONSES, {"type": "shell", "environment": {"type": "local"}})
    assert bound(own, "openai", kinds=frozenset()).is_certain


@pytest.mark.parametrize(("provider", "operation", "tool"), ORDINARY)
def test_ordinary_arguments_change_nothing(
    provider: str, operation: Operation, tool: dict[str, Any]
) -> None:
    """Clients send them with every tool, and their calls stay at the upstream's figure."""
    facts = read(operation, tool)
    assert [one.arguments for one in facts.hosted] == [()]
    found = bound(facts, provider)
    assert (found.is_certain, found.unpriced) == (True, None)
    soft = bound(facts, provider, is_hard=False)
    assert soft.rounds is not None
    assert soft.rounds.fee is None


def test_a_fee_of_the_providers_page_is_its_dearest() -> None:
    """So arguments change nothing at a price without a rate of the calls."""
    tool = {"type": "web_search", "search_context_size": "high"}
    found = bound(read(Operation.RESPONSES, tool), "openai", kinds=frozenset())
    assert (found.is_certain, found.unpriced) == (True, None)
    assert found.rounds is not None
    assert found.rounds.call_usd == Decimal("0.025")


@pytest.mark.parametrize(
    ("provider", "member", "value", "shown"),
    [
        (
            "openai",
            "web_search_options",
            {"search_context_size": "high"},
            "web_search_options.search_context_size=high",
        ),
        ("openrouter", "plugins", [{"id": "web", "max_results": 25}], "plugins.max_results=25"),
        ("openrouter", "plugins", [{"id": "web"}, {"id": "fusion"}], "plugins.id=fusion"),
        ("groq", "compound_custom", {"models": {}}, "compound_custom.models"),
        ("openai_compatible", "enable_search", "deep", "enable_search=deep"),
        ("openai_compatible", "enable_search", 2, "enable_search=2"),
        ("openai_compatible", "search_options", {"depth": "x"}, "search_options.depth=x"),
    ],
)
def test_a_member_that_is_a_tool_has_arguments_too(
    provider: str, member: str, value: Any, shown: str
) -> None:
    """Of the request's own."""
    facts = read(Operation.CHAT, {}, **{member: value})
    found = bound(facts, provider, hosted_tools=HostedToolsRule.HOLD)
    assert found.unpriced is not None
    assert (found.unpriced.where, found.unpriced.listed_as) == (shown, shown)


@pytest.mark.parametrize("member", ["enable_search", "web_search", "mcp_servers"])
def test_a_member_that_is_only_true_has_no_argument(member: str) -> None:
    """`enable_search: true` asked for `listed: [enable_search.=true]`, which no policy takes."""
    value: Any = [{"type": "url", "url": "https://x", "name": "x"}] if "mcp" in member else True
    facts = read(Operation.CHAT, {}, **{member: value})
    assert [one.arguments for one in facts.hosted] == [()]


def test_every_argument_of_a_picture_in_the_sdk_is_judged() -> None:
    """A new one may cost more, and is named until it is read."""
    harmless = {"action", "background", "moderation", "output_compression", "output_format"}
    names = set(ImageGeneration.__annotations__) - {"type"}
    assert names > harmless
    for name in names:
        found = fee_arguments("imagegeneration", "image_generation", {name: "x"})
        assert found == (() if name in harmless else (f"image_generation.{name}=x",))


def test_the_message_names_the_argument_and_the_remedies() -> None:
    """Each of them works."""
    for can_drop in (True, False):
        text = messages.unpriced(
            Account(account_id="payments/day", rule=DAY),
            "one",
            where="tools: image_generation.quality=high",
            rate="image_generation_usd_per_1k_calls",
            can_drop=can_drop,
            listed_as="image_generation.quality=high",
            is_argument=True,
        )
        assert "'tools: image_generation.quality=high' may change the fee" in text
        assert "`listed: [image_generation.quality=high]`" in text
        assert ("`hosted_tools: drop`" in text) == can_drop


def test_one_refusal_names_all_that_a_request_needs() -> None:
    """An admin added one argument, or the rate of heard speech, and got the next refusal."""
    tool = {"type": "image_generation", "quality": "high", "size": "1536x1024"}
    facts = read(Operation.RESPONSES, tool, modalities=["audio"])
    found = bound(facts, "openai")
    assert [(one.where, one.field, one.listed_as) for one in found.missing] == [
        ("modalities", "audio_input_usd_per_mtok", "modalities"),
        ("modalities", "audio_output_usd_per_mtok", "modalities"),
        *(
            (f"tools: {name}", "image_generation_usd_per_1k_calls", name)
            for name in ("image_generation.quality=high", "image_generation.size=1536x1024")
        ),
    ]
    refused = _unbounded(
        Account(account_id="payments/day", rule=DAY), found, factories.deployment()
    ).message
    assert refused.endswith(
        " The rates and names of all that it asks for: `audio_input_usd_per_mtok`, "
        "`audio_output_usd_per_mtok`, `listed: [image_generation.quality=high, "
        "image_generation.size=1536x1024]`."
    )
    assert messages.all_needs(rates=["a_usd_per_mtok", "a_usd_per_mtok"], names=[None]) == ""
    assert messages.all_needs(rates=[], names=["x", "x"]) == ""
    assert "`listed: [x, z]`" in messages.all_needs(rates=[], names=["x", "z"])


@pytest.mark.parametrize("rate", [None, "other_model_usd_per_1k_calls"])
def test_a_tool_without_rounds_and_fee_has_the_remedies_of_both(rate: str | None) -> None:
    """Each of them alone would serve nothing."""
    text = messages.unbounded_rounds(
        Account(account_id="payments/day", rule=DAY),
        "one",
        tool="tools: x",
        can_drop=True,
        most_rounds=10,
        rate=rate,
        listed_as="x",
    )
    assert "`hosted_rounds: 10`" in text
    assert ("`listed: [x]`" in text and "other_model" in text) == (rate is not None)
