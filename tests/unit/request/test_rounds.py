"""The rounds of tools that the provider runs: the bounds that are sent, and the hold."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from openai.types.responses import ToolParam

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DEFAULT_ROUNDS, HostedToolsRule, Route
from gateway.domain.policy.request_fields import UNKNOWN_TOOLS, folded_tool, is_hosted_tool
from gateway.domain.pricing.pricing import Price, Rate, calls_hold_nusd
from gateway.domain.pricing.settlement import UncountedFee
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind
from gateway.domain.providers.hosted_tools import (
    SEARCH_MODELS,
    TOOLS,
    UNKNOWN_TOOL,
    UNKNOWN_TOOLS_AT,
    RoundLimit,
    search_model,
    tools_at,
)
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.request.bound import Bound, bound_of
from gateway.domain.request.request import HostedTool
from gateway.domain.request.rounds import MOST_TOOL_CALLS, Rounds
from gateway.domain.request.unpriced import Unpriced
from tests import factories

WINDOW = 1000
# The types in the unions of tools of the SDKs (openai 3.57.0, types/responses/tool_param.py;
# anthropic 2.14.0, types/beta/beta_tool_union_param.py) that the provider runs, and those that the
# caller does.
RUN_BY_OPENAI = [
    "code_interpreter",
    "file_search",
    "image_generation",
    "mcp",
    "programmatic_tool_calling",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
]
RUN_BY_ANTHROPIC = [
    "code_execution_20250522",
    "code_execution_20250825",
    "code_execution_20260120",
    "code_execution_20260521",
    "mcp_toolset",
    "tool_search_tool_bm25_20251119",
    "tool_search_tool_regex_20251119",
    "web_fetch_20250910",
    "web_fetch_20260209",
    "web_fetch_20260309",
    "web_fetch_20260318",
    "web_search_20250305",
    "web_search_20260209",
    "web_search_20260318",
]
RUN_BY_CALLER = {
    "openai": ["apply_patch", "computer", "computer_use_preview", "local_shell", "shell"],
    "anthropic": [
        "bash_20241022",
        "bash_20250124",
        "computer_20241022",
        "computer_20250124",
        "computer_20251124",
        "memory_20250818",
        "text_editor_20241022",
        "text_editor_20250124",
        "text_editor_20250728",
    ],
}
OPERATION = {"openai": Operation.RESPONSES, "anthropic": Operation.MESSAGES}


def tool(name: str, index: int | None = 0, **more: Any) -> HostedTool:
    """A tool of a request."""
    return HostedTool(name=folded_tool(name), where=f"tools: {name}", index=index, **more)


def member(name: str) -> HostedTool:
    """A member of a request that is a tool."""
    return HostedTool(name=name, where=name, member=name)


def bound(
    *tools: HostedTool,
    provider: str = "openai",
    operation: Operation = Operation.RESPONSES,
    is_hard: bool = True,
    limits: dict[str, int] | None = None,
    price: Any = None,
    **deployment: Any,
) -> Bound:
    """The bound of a request with tools at one deployment."""
    facts = factories.facts(
        operation,
        features=frozenset({"hosted_tools"} if tools else ()),
        output_bound_tokens=100,
        hosted=tools,
        round_limits=tuple((limits or {}).items()),
    )
    made = {
        "provider": provider,
        "context_window": WINDOW,
        "native": frozenset({operation}),
        "is_self_hosted": False,
    }
    return bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(**(made | deployment)),
        price=price or factories.price("1000000", "1000000"),
        is_relied_on=is_hard,
        bounds_rounds=is_hard,
    )


def with_calls(*kinds: TokenKind) -> Price:
    """A price of a dollar for each token and for each call of some kinds."""
    plain = factories.price("1000000", "1000000")
    calls = (Rate(kind=kind, usd_per_mtok=Decimal(1_000_000)) for kind in kinds)
    return replace(plain, rates=(*plain.rates, *calls))


def rounds(*tools: HostedTool, **more: Any) -> Rounds:
    """The rounds of a request with tools."""
    found = bound(*tools, **more).rounds
    assert found is not None, "it has tools"
    return found


def every_tool() -> Iterator[tuple[str, Operation, HostedTool]]:
    """Each provider, operation, and kind of tool and member of the table, and unknown ones of
    each: a tool of another name, a longer name, and a type's name as a member.
    """
    for (provider, operation), at in TOOLS.items():
        for row in at.rows:
            for name in row.tools:
                yield provider, operation, tool(name or "oftomorrow")
                yield provider, operation, tool(f"{name}oftomorrow")
                yield provider, operation, member(name or "oftomorrow")
            yield from ((provider, operation, member(name)) for name in row.members)
    for provider in PROVIDERS:
        yield provider, Operation.RESPONSES, tool("oftomorrow")


@pytest.mark.parametrize(("provider", "operation", "sent"), list(every_tool()))
@pytest.mark.parametrize("rule", list(HostedToolsRule))
def test_a_tool_is_bounded_held_left_out_or_refused(
    provider: str, operation: Operation, sent: HostedTool, rule: HostedToolsRule
) -> None:
    """No tool that may read the window again is held with one window and sent without a bound."""
    at = tools_at(provider, operation)
    row = at.facts_of(sent.name, is_member=sent.member is not None)
    price = with_calls(*CALL_KINDS)
    found = bound(sent, provider=provider, operation=operation, hosted_tools=rule, price=price)
    assert found.rounds is not None
    assert found.is_certain == (found.rounds.unbounded is None)
    assert found.nusd >= found.rounds.windows * WINDOW * 10**9
    if row.limit is not None:
        is_sent = bool(found.rounds.members or found.rounds.uses)
        assert (is_sent, found.rounds.windows) == (True, DEFAULT_ROUNDS + 1)
    elif row.reads_again is False:
        assert (found.rounds.windows, found.rounds.changes_body) == (1, False)
    elif row.most_rounds is not None and row.most_rounds <= DEFAULT_ROUNDS:
        assert found.rounds.windows == row.most_rounds + 1
    elif rule is HostedToolsRule.HOLD:
        assert (found.is_certain, found.rounds.windows) == (True, DEFAULT_ROUNDS + 1)
    elif rule is HostedToolsRule.DROP:
        assert found.rounds.left_out == (sent,)
        assert found.rounds.windows == 1
    else:
        assert (found.rounds.unbounded is not None, found.rounds.most_rounds) == (
            True,
            row.most_rounds or at.most_rounds,
        )


def test_a_similar_name_says_nothing() -> None:
    """OpenAI's `computer_use_preview` at Anthropic, which has a `computer`; `web_search_options` of
    chats in responses, which have a `web_search`: what they do there is not known.
    """
    for at in TOOLS.values():
        for name in {name for row in at.rows for name in row.tools} - {""}:
            longer = at.facts_of(f"{name}usepreviewer")
            assert name.endswith(":") or longer.reads_again is not False, name
            assert at.facts_of(name, is_member=True).limit is None, name
    computer = folded_tool("computer_use_preview")
    assert tools_at("anthropic", Operation.MESSAGES).facts_of(computer).reads_again is None
    assert tools_at("openai", Operation.RESPONSES).facts_of(computer).reads_again is False
    for provider in ("openai", "xai"):
        sent = member(folded_tool("web_search_options"))
        assert rounds(sent, provider=provider).unbounded == sent


@pytest.mark.parametrize(("asked", "sent"), [(None, 3), (2, 2), (0, 0), (9, 3), (-1, 3)])
def test_the_smaller_bound_of_deployment_and_caller_is_sent(asked: int | None, sent: int) -> None:
    """A value that is no number of calls is replaced, because its effect is unknown."""
    limits = {} if asked is None else {"max_tool_calls": asked}
    found = rounds(tool("web_search"), limits=limits, hosted_rounds=3)
    assert (found.members, found.windows) == ((("max_tool_calls", sent),), sent + 1)
    uses = rounds(
        tool("web_search_20250305", most_uses=asked),
        provider="anthropic",
        operation=Operation.MESSAGES,
        hosted_rounds=3,
    )
    assert (uses.uses, uses.windows) == (((0, sent),), sent + 1)


def test_the_uses_of_several_tools_add_up_to_the_loop_of_the_provider() -> None:
    """Each tool has its own bound there, and the provider's loop ends after ten."""
    searches = [tool("web_search_20250305", index) for index in range(4)]
    at: dict[str, Any] = {"provider": "anthropic", "operation": Operation.MESSAGES}
    assert rounds(*searches[:2], **at).windows == 9
    assert rounds(*searches, **at).windows == 11


def test_turns_bound_the_calls_only_without_parallel_calls() -> None:
    """xAI's model may call several tools in one turn, each for a fee."""
    found = rounds(tool("web_search"), tool("x_search", 1), provider="xai", limits={"max_turns": 2})
    assert found.members == (("max_turns", 2), ("parallel_tool_calls", False))
    assert (found.windows, found.calls) == (3, 2)


def test_a_member_that_releases_the_limit_leaves_the_tool_unbounded() -> None:
    """OpenRouter ignores `max_tool_calls` beside `stop_server_tools_when`."""
    search = tool("openrouter:web_search")
    assert rounds(search, provider="openrouter").windows == DEFAULT_ROUNDS + 1
    released = rounds(search, provider="openrouter", limits={"stop_server_tools_when": -1})
    assert (released.unbounded, released.most_rounds) == (search, 30)
    held = rounds(
        search, provider="openrouter", limits={"stop_server_tools_when": -1}, hosted_rounds=30
    )
    assert (held.unbounded, held.windows, held.calls) == (None, 31, MOST_TOOL_CALLS)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_each_type_of_the_sdks_is_known(provider: str) -> None:
    """A tool of the caller reads the window once; one of the provider does not."""
    at = tools_at(provider, OPERATION[provider])
    run = RUN_BY_OPENAI if provider == "openai" else RUN_BY_ANTHROPIC
    for name in run:
        row = at.facts_of(folded_tool(name))
        assert row.limit is not None or at.most_rounds is not None, name
        assert row.reads_again is not False, name
    for name in RUN_BY_CALLER[provider]:
        assert at.facts_of(folded_tool(name)).reads_again is False, name


def test_no_tool_of_the_caller_counts_as_one_of_the_provider() -> None:
    """`computer` was in both tables, and refused for each team with an untrue reason."""
    rows = [row for at in (*TOOLS.values(), UNKNOWN_TOOLS_AT) for row in at.rows]
    own = {name for row in rows if row.reads_again is False for name in row.tools}
    named = {name for names in RUN_BY_CALLER.values() for name in names}
    toolsets = {"browser_toolset_20260801", "computer_toolset_20260801"}
    assert [name for name in sorted(own | named | toolsets) if is_hosted_tool(name)] == []


def test_each_tool_of_a_provider_counts_as_one() -> None:
    """A search among the request's own tools sends nothing elsewhere."""
    run = {*RUN_BY_OPENAI, *RUN_BY_ANTHROPIC, "browser_search", "browser_automation", "browser"}
    within = {name for name in run if name.startswith("tool_search")}
    assert {name for name in run if not is_hosted_tool(name)} == within


def test_a_tool_that_every_server_leaves_to_the_caller_has_no_rounds() -> None:
    """Codex and its relatives send these to any server of the dialect."""
    for name in ("apply_patch", "local_shell"):
        assert rounds(tool(name), provider="vllm").windows == 1


def test_a_tool_inside_something_else_can_be_neither_bounded_nor_left_out_alone() -> None:
    """The request's own limit still holds; a limit of each tool has no place."""
    nested = tool("web_search_20250305", index=None)
    found = rounds(
        nested,
        provider="anthropic",
        operation=Operation.MESSAGES,
        hosted_tools=HostedToolsRule.DROP,
    )
    assert (found.unbounded, found.left_out) == (nested, ())
    assert rounds(tool("web_search", index=None)).members == (("max_tool_calls", 4),)


def test_the_first_of_several_tools_without_a_bound_is_named() -> None:
    """Each of them is a reason, and the message has room for one."""
    first, second = tool("of_tomorrow"), tool("of_next_year", 1)
    assert rounds(first, second, provider="vllm").unbounded == first


def test_a_translated_request_has_no_such_tools() -> None:
    """No translation carries them, so nothing is bounded for them."""
    found = rounds(tool("web_search"), native=frozenset({Operation.CHAT}))
    assert (found.windows, found.calls, found.changes_body) == (1, 0, False)


def test_a_round_without_a_window_has_no_bound() -> None:
    """The window bounds each reading; an unknown tool's results are not in the body either."""
    assert not bound(tool("web_search"), context_window=None).is_certain
    facts = factories.facts(
        Operation.RESPONSES, features=frozenset({UNKNOWN_TOOLS}), hosted=(tool("oftomorrow"),)
    )
    found = bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(provider="openai", context_window=WINDOW),
        price=factories.price("1", "1"),
        is_relied_on=True,
        bounds_rounds=True,
    )
    assert found.input_tokens == WINDOW


def test_without_a_hard_budget_nothing_is_bounded() -> None:
    """A token limit and a soft budget take the same guess as before."""
    found = bound(tool("web_search"), is_hard=False)
    assert found.rounds is not None
    assert (found.rounds.windows, found.rounds.changes_body) == (1, False)
    assert (found.rounds.calls, found.tokens) == (MOST_TOOL_CALLS, WINDOW + 100)
    at: dict[str, Any] = {"provider": "anthropic", "operation": Operation.MESSAGES}
    assert rounds(tool("code_execution_20250825"), is_hard=False, **at).calls == 10
    assert rounds(tool("web_fetch_20250910"), is_hard=False, **at).calls == 0
    chat: dict[str, Any] = {"operation": Operation.CHAT, "model": "gpt-5-search-api"}
    assert rounds(is_hard=False, **chat).calls == 1


def test_the_maximum_of_openai_bounds_all_rounds_and_that_of_others_each_one() -> None:
    """OpenAI's is of "a response"; no other page says so."""
    assert bound(tool("web_search")).sent_output_tokens == 100
    at: dict[str, Any] = {"provider": "anthropic", "operation": Operation.MESSAGES}
    capped = bound(tool("web_search_20250305"), **at)
    assert capped.rounds is not None
    assert (capped.rounds.answers, capped.sent_output_tokens) == (5, 500)


def test_a_past_request_of_unknown_tools_is_held_like_any_other_tool() -> None:
    """A replay knows of the feature alone."""
    facts = factories.facts(Operation.RESPONSES, features=frozenset({"hosted_tools"}))
    found = bound_of(
        facts,
        route=Route(name="assistant", deployments=("one",)),
        deployment=factories.deployment(provider="openai", context_window=WINDOW),
        price=factories.price("1", "1"),
        bounds_rounds=True,
    )
    assert found.rounds is not None
    assert found.rounds.windows == DEFAULT_ROUNDS + 1


def test_a_listed_price_of_calls_is_held_instead_of_the_known_fee() -> None:
    """A negotiated price counts, also if it is lower."""
    listed = factories.price("1", "1")
    rate = Rate(kind=TokenKind.WEB_SEARCH, usd_per_mtok=Decimal(1000))
    assert rounds(tool("web_search"), price=listed).call_usd == Decimal("0.025")
    own = replace(listed, rates=(*listed.rates, rate))
    assert rounds(tool("web_search"), price=own).call_usd == 0
    assert rounds(tool("web_search_preview_2025_03_11"), price=own).call_usd == Decimal("0.025")


@pytest.mark.parametrize(("provider", "operation", "sent"), list(every_tool()))
@pytest.mark.parametrize("rule", list(HostedToolsRule))
def test_no_fee_of_a_call_is_held_at_nothing(
    provider: str, operation: Operation, sent: HostedTool, rule: HostedToolsRule
) -> None:
    """Its price or its provider states it, or the tool is refused or left out. Pictures were held
    at the rate of searches, or at none.
    """
    at = tools_at(provider, operation)
    row = at.facts_of(sent.name, is_member=sent.member is not None)
    price = with_calls(*CALL_KINDS - {row.bills_as, row.unknown_fee})
    found = bound(sent, provider=provider, operation=operation, hosted_tools=rule, price=price)
    assert found.rounds is not None
    is_stated = row.most_call_usd is not None
    assert found.unpriced is None or not is_stated
    if not is_stated and rule is HostedToolsRule.DROP:
        assert found.rounds.left_out == (sent,)
    elif not is_stated:
        assert (found.is_certain, found.unpriced) == (
            False,
            Unpriced(
                where=sent.where,
                field=f"{row.unknown_fee}_usd_per_1k_calls",
                can_drop=True,
                listed_as=sent.listed_as,
            ),
        )
        free = bound(
            sent,
            provider=provider,
            operation=operation,
            hosted_tools=rule,
            price=price,
            listed=frozenset({sent.listed_as}),
        )
        assert (free.unpriced, free.rounds.fee if free.rounds else 0) == (None, None)
    elif row.most_call_usd is not None and not found.rounds.left_out:
        assert found.rounds.call_usd == row.most_call_usd


def types_of_the_sdk() -> list[str]:
    """Return the types of the tools in the installed SDK."""
    kinds = []
    for one in typing.get_args(ToolParam):
        kind = typing.get_type_hints(one)["type"]
        kinds += re.findall("'([a-z0-9_]+)'", str(kind))
    return sorted({*kinds} - {"function", "custom", "namespace"})


def test_the_sdk_has_the_types_that_are_listed_here() -> None:
    """A new one is read, and then listed."""
    assert {*types_of_the_sdk()} <= {*RUN_BY_OPENAI, *RUN_BY_CALLER["openai"]}


@pytest.mark.parametrize(
    ("provider", "operation"),
    [
        (provider, operation)
        for provider in PROVIDERS
        for operation in (Operation.RESPONSES, Operation.CHAT, Operation.MESSAGES)
    ],
)
@pytest.mark.parametrize("rule", list(HostedToolsRule))
def test_a_tool_without_a_known_fee_is_never_held_as_free(
    provider: str, operation: Operation, rule: HostedToolsRule
) -> None:
    """`video_generation` cost USD 0.50 a call, and was held at its tokens."""
    at: dict[str, Any] = {"provider": provider, "operation": operation, "hosted_tools": rule}
    names = [*types_of_the_sdk(), *RUN_BY_OPENAI, *RUN_BY_ANTHROPIC]
    names += ["video_generation", "of_tomorrow", "container_new", "open_page", "", "web", "mcp2x"]
    for name in names:
        row = tools_at(provider, operation).facts_of(folded_tool(name))
        found = bound(tool(name), **at)
        assert found.rounds is not None
        if row.most_call_usd is None:
            is_left_out = found.rounds.left_out != ()
            assert is_left_out or found.unpriced is not None, name
            assert is_left_out or not found.is_certain, name
        assert bound(tool(name), is_self_hosted=True, **at).unpriced is None


def test_a_model_that_searches_at_an_unknown_fee_has_no_bound() -> None:
    """Each of its searches was held at nothing."""
    at: dict[str, Any] = {"provider": "openrouter", "operation": Operation.CHAT}
    online = bound(model="qwen/qwen3:online", **at)
    field = "web_search_usd_per_1k_calls"
    assert online.unpriced == Unpriced(
        where="model: web_search", field=field, listed_as="web_search"
    )
    priced = bound(model="qwen/qwen3:online", price=with_calls(TokenKind.WEB_SEARCH), **at)
    assert (priced.is_certain, priced.unpriced) == (True, None)
    listed = bound(model="qwen/qwen3:online", listed=frozenset({"web_search"}), **at)
    assert (listed.is_certain, listed.rounds and listed.rounds.fee) == (True, None)
    assert bound(model="gpt-5-search-api", operation=Operation.CHAT).unpriced is None


def test_an_engine_of_ones_own_charges_no_fee() -> None:
    """Only its tokens cost anything."""
    picture = tool("image_generation")
    assert bound(picture, is_self_hosted=True).unpriced is None
    assert bound(picture).unpriced is not None
    assert bound(picture, price=with_calls(TokenKind.IMAGE_GENERATION)).unpriced is None


def test_a_container_is_held_without_any_call() -> None:
    """OpenAI makes it before the model decides whether it runs code."""
    found = rounds(tool("code_interpreter"), limits={"max_tool_calls": 0})
    assert (found.windows, found.calls, found.call_usd) == (1, 1, Decimal("0.03"))
    assert rounds(tool("mcp"), limits={"max_tool_calls": 0}).calls == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("web_search", TokenKind.WEB_SEARCH),
        ("web_fetch", TokenKind.WEB_SEARCH),
        ("image_generation", TokenKind.IMAGE_GENERATION),
        ("shell", TokenKind.CODE_INTERPRETER),
        ("of_tomorrow", TokenKind.OTHER_MODEL),
        ("subagent", TokenKind.OTHER_MODEL),
    ],
)
@pytest.mark.parametrize("is_hard", [False, True])
def test_only_the_searches_of_openrouter_are_counted_as_searches(
    name: str, kind: TokenKind, is_hard: bool
) -> None:
    """Its pictures and shells were held and settled as searches, of which there were none."""
    own = tool(f"openrouter:{name}")
    found = rounds(own, provider="openrouter", price=with_calls(kind), is_hard=is_hard)
    assert found.missing == ()
    assert found.fee == (None if name == "web_search" else UncountedFee(kind=kind))
    if is_hard:
        wrong = with_calls(*CALL_KINDS - {kind})
        assert bound(own, provider="openrouter", price=wrong).unpriced is not None


def test_a_tool_that_the_provider_adds_has_rounds_too() -> None:
    """xAI searches in each file of a prompt, though no tool is in the request."""
    at = {"provider": "xai", "native": frozenset({Operation.RESPONSES}), "is_self_hosted": False}
    facts = factories.facts(Operation.RESPONSES, has_files=True, output_bound_tokens=100)
    route, price = Route(name="assistant", deployments=("one",)), with_calls(TokenKind.FILE_SEARCH)
    hard = {"is_relied_on": True, "bounds_rounds": True}
    made = {
        name: bound_of(
            facts,
            route=route,
            price=price,
            deployment=factories.deployment(context_window=WINDOW, **at | other),
            **hard,
        ).rounds
        for name, other in {
            "xai": {},
            "openai": {"provider": "openai"},
            "translated": {"native": frozenset({Operation.CHAT})},
        }.items()
    }
    assert (made["openai"], made["xai"] is None) == (None, False)
    assert made["xai"] is not None
    assert (made["xai"].windows, made["xai"].call_usd) == (DEFAULT_ROUNDS + 1, Decimal("0.01"))
    assert made["xai"].members == (("max_turns", 4), ("parallel_tool_calls", False))
    assert made["translated"] is None


@pytest.mark.parametrize(
    ("operation", "native"),
    [
        (Operation.CHAT, {Operation.CHAT}),
        (Operation.RESPONSES, {Operation.RESPONSES}),
        (Operation.MESSAGES, {Operation.CHAT}),
    ],
)
def test_a_file_at_openrouter_may_cost_a_fee_by_the_page(
    operation: Operation, native: set[Operation]
) -> None:
    """Its own choice of an engine decides: so no budget relies on it, unless the operator does."""

    def held(*, has_files: bool = True, price: Price | None = None, **more: Any) -> Bound:
        return bound_of(
            factories.facts(operation, has_files=has_files, output_bound_tokens=100),
            route=Route(name="assistant", deployments=("one",)),
            deployment=factories.deployment(
                provider="openrouter",
                native=frozenset(native),
                is_self_hosted=False,
                context_window=WINDOW,
                **more,
            ),
            price=price or factories.price(),
            is_relied_on=True,
            bounds_rounds=True,
        )

    assert held(has_files=False).is_certain
    found = held()
    assert not found.is_certain
    assert found.unpriced == Unpriced(
        where="files", field="file_search_usd_per_1k_calls", listed_as="files"
    )
    relied = {"hosted_tools": HostedToolsRule.HOLD, "price": with_calls(TokenKind.FILE_SEARCH)}
    served = held(**relied)
    assert (served.is_certain, served.unpriced) == (True, None)
    assert served.rounds is not None
    assert served.rounds.fee == UncountedFee(kind=TokenKind.FILE_SEARCH)


def test_the_time_of_openrouter_costs_its_rounds_alone() -> None:
    """It is the one tool without a fee."""
    found = rounds(tool("openrouter:datetime"), provider="openrouter")
    assert (found.missing, found.fee, found.windows) == ((), None, DEFAULT_ROUNDS + 1)


def test_a_picture_inside_the_prompt_cannot_be_dropped() -> None:
    """So the refusal does not name that remedy."""
    inside = bound(tool("image_generation", index=None), hosted_tools=HostedToolsRule.DROP).unpriced
    assert inside is not None
    assert not inside.can_drop


@pytest.mark.parametrize(("calls", "usd", "nusd"), [(0, "0.025", 0), (4, "0.025", 10**8)])
def test_the_fees_of_calls_are_held(calls: int, usd: str, nusd: int) -> None:
    """In nano-dollars."""
    assert calls_hold_nusd(calls, usd=Decimal(usd)) == nusd
    assert calls_hold_nusd(3, usd=Decimal("0.0000000001")) == 1


@pytest.mark.parametrize(
    ("provider", "model", "is_hosted", "fee"),
    [
        ("openai", "gpt-4o-search-preview", False, UncountedFee(kind=TokenKind.WEB_SEARCH)),
        ("openai", "gpt-5-search-api-2025-10-14", False, UncountedFee(kind=TokenKind.WEB_SEARCH)),
        ("openai", "gpt-5", False, None),
        ("openrouter", "qwen/qwen3:online", False, UncountedFee(kind=TokenKind.WEB_SEARCH)),
        ("groq", "groq/compound-mini", False, UncountedFee(kind=None)),
        (
            "openai_compatible",
            "sonar-pro",
            False,
            UncountedFee(kind=TokenKind.WEB_SEARCH, per_request=1),
        ),
        (
            "openai_compatible",
            "sonar-deep-research",
            False,
            UncountedFee(kind=TokenKind.WEB_SEARCH),
        ),
        ("vllm", "sonar-pro", True, None),
    ],
)
def test_a_model_that_searches_by_itself_has_a_fee(
    provider: str, model: str, is_hosted: bool, fee: UncountedFee | None
) -> None:
    """Its usage does not count the searches; an engine of one's own has no fees."""
    for is_hard in (False, True):
        found = bound(
            provider=provider,
            operation=Operation.CHAT,
            model=model,
            is_self_hosted=is_hosted,
            is_hard=is_hard,
        )
        assert (None if found.rounds is None else found.rounds.fee) == fee


def test_a_fee_of_each_request_is_held() -> None:
    """It is billed though no round reads the window again."""
    at: dict[str, Any] = {"provider": "openai_compatible", "operation": Operation.CHAT}
    for is_hard in (False, True):
        found = rounds(model="sonar-pro", is_hard=is_hard, **at)
        assert (found.windows, found.calls, found.call_usd) == (1, 1, Decimal("0.014"))


def test_a_request_has_a_fee_if_one_of_its_tools_is_not_counted() -> None:
    """Code at Anthropic is billed by the hour of a container, and nothing in the usage says so."""
    at: dict[str, Any] = {"provider": "anthropic", "operation": Operation.MESSAGES}
    counted = rounds(tool("web_search_20250305"), tool("web_fetch_20250910", 1), **at)
    assert counted.fee is None
    code = rounds(tool("code_execution_20250825"), hosted_rounds=10, **at)
    assert code.fee == UncountedFee(kind=TokenKind.CODE_INTERPRETER)
    assert rounds(tool("oftomorrow")).fee == UncountedFee(kind=None)
    assert rounds(tool("oftomorrow"), provider="vllm", is_self_hosted=True).fee is None


def test_every_fact_has_a_source_and_a_day() -> None:
    """A fact without a source is a guess."""
    rows = [row for at in TOOLS.values() for row in at.rows]
    rows += [entry.tool for entry in SEARCH_MODELS]
    for row in rows:
        assert row is UNKNOWN_TOOL or "2026-" in row.source, row
        assert row.limit is None or isinstance(row.limit, RoundLimit)
        assert row.bills_as is None or TokenKind(row.bills_as)
    assert search_model("mistral", "mistral-large") is None
