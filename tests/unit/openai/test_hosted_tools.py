"""The tools of a request that its provider may run, as they are read in each dialect."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.request_fields import UNKNOWN_TOOLS
from gateway.domain.providers.hosted_tools import tools_at
from gateway.domain.request.request import HostedTool, RequestFacts
from gateway.wire.openai.request.hosted import argument_in, hosted_tool
from tests import factories

MESSAGES = [{"role": "user", "content": "x"}]


def facts(operation: Operation, **members: Any) -> RequestFacts:
    """The facts of a request."""
    prompt: dict[str, Any] = {"input": "x"}
    if operation is not Operation.RESPONSES:
        prompt = {"messages": MESSAGES}
    body = json.dumps({"model": "a", "max_tokens": 5, **prompt, **members}).encode()
    return factories.read(body, operation).facts


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ({"type": "web_search"}, "websearch"),
        ({"type": "of-tomorrow", "x": 1}, "oftomorrow"),
        ({"googleSearch": {}}, "googlesearch"),
        ({"type": 7, "url_context": {}}, "urlcontext"),
        ({"type": "shell", "environment": {"type": "container_auto"}}, "containerauto"),
        ({"type": "shell", "environment": {"type": "local"}}, "shell"),
        ({"type": "shell", "environment": {"type": 5}}, "shell"),
        ({"x": 1}, ""),
        ({"type": "y" * 100}, "y" * 64),
    ],
)
def test_a_tool_is_named_by_what_the_provider_runs(tool: dict[str, Any], name: str) -> None:
    """Tools of the caller's own are no such tools."""
    own = {"type": "function", "name": "f"}
    (found,) = facts(Operation.RESPONSES, tools=[own, tool]).hosted
    assert (found.name, found.index, found.member) == (name, 1, None)


@pytest.mark.parametrize("operation", [Operation.CHAT, Operation.RESPONSES])
@pytest.mark.parametrize("kind", ["function", "custom"])
def test_an_own_tool_with_an_unknown_member_is_still_the_callers(
    operation: Operation, kind: str
) -> None:
    """It has no rounds; a residency rule asks for leave because of the member."""
    tools = [{"type": kind, "name": "f", "of_tomorrow": 1}]
    found = facts(operation, tools=tools)
    assert (found.hosted, UNKNOWN_TOOLS in found.features) == ((), True)


def test_an_own_tool_of_anthropic_may_have_no_type() -> None:
    """Its clients leave it out."""
    own = {"name": "f", "input_schema": {}, "of_tomorrow": 1}
    search = {"google_search": {}}
    found = facts(Operation.MESSAGES, tools=[own, {**own, "type": "custom"}, search])
    assert [(one.name, one.index) for one in found.hosted] == [("googlesearch", 2)]
    assert UNKNOWN_TOOLS in found.features


def test_a_stored_prompt_may_name_tools() -> None:
    """The provider keeps them, and nothing in the request says which they are."""
    stored = facts(Operation.RESPONSES, prompt={"id": "pmpt_1"})
    assert [(one.name, one.index, one.member) for one in stored.hosted] == [("prompt", None, None)]


@pytest.mark.parametrize(
    ("container", "size"),
    [
        (None, ""),
        ({"type": "auto"}, ""),
        ({"type": "auto", "memory_limit": "1g"}, ""),
        ({"type": "auto", "memory_limit": "16g"}, "16g"),
        ({"type": "auto", "memory_limit": "640g"}, "ofanysize"),
        ({"type": "auto", "memory_limit": ["1g"]}, "ofanysize"),
        ("cntr_1", "ofanysize"),
    ],
)
def test_the_size_of_a_container_is_a_part_of_the_tools_name(container: Any, size: str) -> None:
    """The request chooses it, and 64 GB cost 64 times as much as the standard one."""
    tool = {"type": "code_interpreter", "container": container}
    (found,) = facts(Operation.RESPONSES, tools=[tool]).hosted
    assert found.name == f"codeinterpreter{size}"
    fee = tools_at("openai", Operation.RESPONSES).facts_of(found.name).most_call_usd
    assert str(fee) == {"": "0.03", "16g": "0.48", "ofanysize": "1.92"}[size]


MARK = {"type": "ephemeral"}


@pytest.mark.parametrize("operation", [Operation.MESSAGES, Operation.CHAT, Operation.RESPONSES])
@pytest.mark.parametrize("name", ["cache_control", "prompt_cache_breakpoint"])
@pytest.mark.parametrize(
    ("mark", "lifetimes"),
    [
        (MARK, {""}),
        (MARK | {"ttl": None}, {""}),
        (MARK | {"ttl": "5m"}, {"5m"}),
        (MARK | {"ttl": "1h"}, {"1h"}),
        ({"ttl": "12h"}, {"12h"}),
        (MARK | {"ttl": "365d"}, {"?"}),
        (MARK | {"ttl": ["1h"]}, {"?"}),
        (None, set()),
    ],
)
def test_each_lifetime_of_the_cache_is_read(
    operation: Operation, name: str, mark: Any, lifetimes: set[str]
) -> None:
    """Each has its own price, and one that no schema names may have any."""
    part = {"type": "text", "text": "x", name: mark}
    assert within(operation, part).cache_lifetimes == lifetimes


@pytest.mark.parametrize("operation", [Operation.MESSAGES, Operation.CHAT, Operation.RESPONSES])
def test_a_lifetime_of_a_tool_or_of_the_request_is_read_too(operation: Operation) -> None:
    """Tools are not decoded as a whole: a lifetime in them may be any."""
    own = {"type": "custom", "name": "f"}
    assert facts(operation, tools=[own]).cache_lifetimes == set()
    assert facts(operation, tools=[own | {"cache_control": MARK}]).cache_lifetimes == {""}
    longer = own | {"cache_control": MARK | {"ttl": "1h"}}
    assert facts(operation, tools=[longer]).cache_lifetimes == {"?"}
    whole = facts(operation, cache_control=MARK | {"ttl": "1h"})
    assert whole.cache_lifetimes == {"1h"}
    assert facts(operation, prompt_cache_options={"ttl": "12h"}).cache_lifetimes == {"12h"}


@pytest.mark.parametrize("kind", ["file", "input_file", "document"])
def test_a_file_in_the_prompt_is_read(kind: str) -> None:
    """A provider may add a tool that searches in it."""
    for operation in DIALECTS:
        assert within(operation, {"type": kind, "file_id": "f"}).has_files
        assert not within(operation, {"type": "text", "text": "file"}).has_files


def test_a_value_that_is_no_tool_has_no_name() -> None:
    """Prompts may hold lists of anything under this name."""
    assert hosted_tool(7, where="tools", index=None).name == ""


def test_members_are_tools_too() -> None:
    """A chat has no list of the provider's tools, but members."""
    found = facts(Operation.CHAT, web_search_options={}, plugins=None).hosted
    assert found == (
        HostedTool(
            name="websearchoptions", where="web_search_options", member="web_search_options"
        ),
    )
    servers = facts(Operation.MESSAGES, mcp_servers=[{"type": "url", "url": "https://x"}]).hosted
    assert [one.member for one in servers] == ["mcp_servers"]
    assert facts(Operation.CHAT, priority=3).hosted == ()


@pytest.mark.parametrize(
    ("value", "most"), [(8, 8), (0, 0), ("8", None), (1.5, None), (True, None), (None, None)]
)
def test_a_tool_of_anthropic_has_its_own_bound(value: Any, most: int | None) -> None:
    """Only a whole number is one."""
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": value}
    (found,) = facts(Operation.MESSAGES, tools=[search]).hosted
    assert (found.name, found.most_uses) == ("websearch20250305", most)


def test_an_advisor_is_another_model_and_no_round() -> None:
    """No bound covers it, so a hard budget refuses it with any uses."""
    found = facts(Operation.MESSAGES, tools=[{"type": "advisor_20260301", "name": "advisor"}])
    assert (found.hosted, "rerouting" in found.features) == ((), True)


def test_the_limits_of_the_request_are_read_beside_a_tool_alone() -> None:
    """They mean nothing without one. A value that is no number may mean anything."""
    limits = {"max_tool_calls": 3, "max_turns": "2", "stop_server_tools_when": None}
    search = [{"type": "web_search"}]
    assert facts(Operation.RESPONSES, **limits).round_limits == ()
    found = facts(Operation.RESPONSES, tools=search, **limits).round_limits
    assert found == (("max_tool_calls", 3), ("max_turns", -1))


def test_a_tool_inside_the_prompt_or_a_namespace_has_no_place_in_the_list() -> None:
    """It is one all the same."""
    space = {"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]}
    (inside,) = facts(Operation.RESPONSES, tools=[space]).hosted
    assert (inside.name, inside.index) == ("websearch", None)
    item = {"type": "tool_search_output", "tools": [{"type": "mcp", "server_label": "s"}]}
    (nested,) = facts(Operation.RESPONSES, input=[item]).hosted
    assert (nested.name, nested.where, nested.index) == ("mcp", "input: tools: mcp", None)


DIALECTS = (Operation.MESSAGES, Operation.CHAT, Operation.RESPONSES)
# Tools that a provider runs or that are another model, each with its feature.
DEFINED = [
    ({"type": "web_search_20250305", "name": "web_search"}, "hosted_tools"),
    ({"type": "web_fetch_20260318", "name": "web_fetch"}, "hosted_tools"),
    ({"type": "code_execution_20250825", "name": "c"}, "hosted_tools"),
    ({"type": "mcp_toolset", "mcp_server_name": "x"}, "hosted_tools"),
    ({"type": "web_search"}, "hosted_tools"),
    ({"type": "image_generation"}, "hosted_tools"),
    ({"type": "openrouter:web_search"}, "hosted_tools"),
    ({"type": "of_tomorrow_20270101", "name": "t"}, UNKNOWN_TOOLS),
]
OWN: dict[str, Any] = {"type": "custom", "name": "f", "description": "d"}
# Each way to put an object into a prompt; the first three are for whole definitions.
PLACES = {
    "definition": lambda tool: {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": tool},
    },
    "tool": lambda tool: {"type": "tool_addition", "tool": tool},
    "tools": lambda tool: {"type": "additional_tools", "role": "developer", "tools": [tool]},
    "itself": lambda tool: tool,
    "of tomorrow": lambda tool: {"type": "of_tomorrow", "x": [{"y": tool}]},
    "in a result": lambda tool: {"type": "tool_result", "tool_use_id": "t", "content": [tool]},
}


def within(operation: Operation, *items: dict[str, Any]) -> RequestFacts:
    """The facts of a request with these items or parts in its prompt."""
    if operation is Operation.RESPONSES:
        return facts(operation, input=list(items))
    return facts(operation, messages=[{"role": "system", "content": list(items)}])


@pytest.mark.parametrize("operation", DIALECTS)
@pytest.mark.parametrize(
    ("place", "tool", "feature"),
    [
        (place, tool, feature)
        for place in PLACES
        for tool, feature in DEFINED
        # A type of tomorrow is a tool only in the place of one.
        if feature != UNKNOWN_TOOLS or place in ("definition", "tool", "tools")
    ],
)
def test_a_tool_defined_inside_a_prompt_is_judged_as_in_the_list(
    operation: Operation, place: str, tool: dict[str, Any], feature: str
) -> None:
    """Neither its rounds nor a residency rule saw it, so a hosted search ran past both."""
    found = within(operation, PLACES[place](tool))
    listed = facts(operation, tools=[tool])
    assert feature in found.features
    assert [one.name for one in found.hosted] == [one.name for one in listed.hosted]
    assert {one.index for one in found.hosted} == {None}
    assert found.expansion_tokens is None


@pytest.mark.parametrize("operation", DIALECTS)
@pytest.mark.parametrize("place", ["definition", "tool", "tools"])
def test_an_own_tool_inside_a_prompt_is_the_callers(operation: Operation, place: str) -> None:
    """Claude Code adds its tools in the middle of a conversation."""
    found = within(operation, PLACES[place](OWN))
    assert (found.hosted, found.features) == ((), frozenset())


def test_an_own_tool_of_anthropic_inside_a_prompt_may_have_no_type() -> None:
    """Nor may its schema and its examples be taken for a tool."""
    search = {"type": "web_search"}
    own = {"name": "f", "input_schema": {"properties": search}, "input_examples": [search]}
    found = within(Operation.MESSAGES, PLACES["definition"](own))
    assert (found.hosted, found.features) == ((), frozenset())


def test_a_tool_inside_a_message_that_is_no_object_is_unknown() -> None:
    """The provider judges it, under a rule only with permission."""
    found = within(Operation.MESSAGES, {"type": "of_tomorrow", "tools": [5]})
    assert UNKNOWN_TOOLS in found.features


def test_an_advisor_inside_a_prompt_is_another_model() -> None:
    """As in the list."""
    advisor = {"type": "advisor_20260301", "name": "advisor", "model": "m"}
    for place in PLACES.values():
        assert "rerouting" in within(Operation.MESSAGES, place(advisor)).features


@pytest.mark.parametrize("operation", DIALECTS)
@pytest.mark.parametrize(
    "item",
    [
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}},
        {"type": "tool_addition", "tool": {"type": "mcp_toolset_reference", "server_name": "s"}},
        {"type": "tool_removal", "tool": {"type": "mcp_tool_reference", "name": "f"}},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"type": "web_search"}},
        {
            "type": "tool_use",
            "id": "t",
            "name": "f",
            "input": {},
            "caller": {"type": "code_execution_20250825", "tool_id": "s"},
        },
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"},
        },
        {
            "type": "code_execution_tool_result",
            "tool_use_id": "s",
            "content": {
                "type": "code_execution_result",
                "content": [{"type": "code_execution_output"}],
            },
        },
        {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}},
        {"type": "mcp_tool_result", "tool_use_id": "m", "content": [{"type": "text", "text": "x"}]},
        {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}},
        {"type": "file_search_call", "id": "w", "status": "completed", "queries": ["x"]},
        {"type": "code_interpreter_call", "id": "c", "code": "1", "outputs": [{"type": "logs"}]},
        {"type": "computer_call", "call_id": "c", "action": {"type": "click", "x": 1}},
        {"type": "mcp_call", "id": "m", "error": {"type": "mcp_protocol_error", "code": 1}},
        {"type": "mcp_approval_response", "approval_request_id": "m", "approve": True},
        {
            "type": "function_call",
            "call_id": "c",
            "name": "f",
            "arguments": '{"type": "web_search"}',
        },
        {"type": "function_call_output", "call_id": "c", "output": '{"type": "mcp"}'},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "web_search"},
        {
            "type": "shell_call",
            "call_id": "c",
            "action": {"commands": ["ls"]},
            "environment": {"type": "container_reference", "container_id": "c"},
        },
    ],
)
def test_a_call_in_an_earlier_turn_defines_no_tool(
    operation: Operation, item: dict[str, Any]
) -> None:
    """Clients send the whole conversation with each request."""
    found = within(operation, item)
    assert found.hosted == ()
    assert found.features.isdisjoint({"hosted_tools", "rerouting", UNKNOWN_TOOLS})


@pytest.mark.parametrize("value", [b'"\\ud800"', b"1e999", b'"' + b"x" * 5000 + b'"'])
def test_an_argument_that_cannot_be_read_is_no_word(value: bytes) -> None:
    """So it is named without its value, and no listed value stands for it."""
    assert argument_in(msgspec.Raw(value)) == ""
