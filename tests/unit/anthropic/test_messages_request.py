"""The facts of a messages request: its needs, its end user, and bounds that are never too small."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.request.request import RequestFacts
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.request.read import read_request
from gateway.wire.anthropic.request.tools import KNOWN_TOOL_TOKENS, MAX_TOOLS
from gateway.wire.openai.request.size import MAX_OUTPUT_TOKENS, TOOL_PREFACE_TOKENS

PLAIN: dict[str, Any] = {
    "model": "assistant",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
TOOL = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


def facts(**members: Any) -> RequestFacts:
    return read_request(json.dumps(PLAIN | members).encode()).facts


def in_turn(*blocks: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def refused(body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_request(body)
    return caught.value


def test_a_plain_request_needs_nothing() -> None:
    """The members that every client sends."""
    read = facts(
        system=[{"type": "text", "text": "Be.", "cache_control": {"type": "ephemeral"}}],
        stop_sequences=["x"],
        temperature=0.5,
        top_k=3,
        thinking={"type": "enabled", "budget_tokens": 1024},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "user_1"},
        stream=True,
        service_tier="standard_only",
        tool_choice={"type": "auto"},
        cache_control={"type": "ephemeral"},
        speed="standard",
    )
    assert read.operation is Operation.MESSAGES
    assert (read.model, read.is_stream, read.end_user) == ("assistant", True, "user_1")
    assert (read.features, read.capabilities) == (frozenset(), frozenset())
    assert (read.output_bound_tokens, read.expansion_tokens, read.prompts) == (100, 0, 1)


@pytest.mark.parametrize(
    ("members", "feature"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "hosted_tools"),
        ({"tools": [{"type": "web_fetch_20260318", "name": "web_fetch"}]}, "hosted_tools"),
        ({"tools": [{"type": "computer_toolset_20260801"}]}, "unknown_tools"),
        ({"tools": [{"type": "browser_toolset_20260801"}]}, "unknown_tools"),
        ({"tools": [{"type": "code_execution_20250825", "name": "x"}]}, "hosted_tools"),
        ({"tools": [{"type": "mcp_toolset", "mcp_server_name": "x"}]}, "hosted_tools"),
        ({"tools": [{"type": "advisor_20260301", "name": "x"}]}, "rerouting"),
        ({"tools": [{"type": "new_20270101", "name": "x"}]}, "unknown_tools"),
        ({"tools": [{**TOOL, "new_member": 1}]}, "unknown_tools"),
        ({"tools": [{**TOOL, "type": 7}]}, "unknown_tools"),
        ({"mcp_servers": [{"type": "url", "url": "https://x.example"}]}, "hosted_tools"),
        ({"container": "c_1"}, "hosted_tools"),
        ({"inference_geo": "us"}, "rerouting"),
        ({"fallbacks": [{"model": "other"}]}, "rerouting"),
        ({"billing_policy": {"type": "billing_policy"}}, "rerouting"),
        ({"thread": {"id": "t"}}, "stored_state"),
        ({"diagnostics": {"previous_message_id": "msg_1"}}, "stored_state"),
        ({"compaction": {"type": "summarize"}}, "other_maximum"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "other_maximum"),
        ({"speed": "fast"}, "service_tier=fast"),
        ({"service_tier": "batchy"}, "service_tier"),
        ({"cache_salt": "x"}, "engine_control"),
        ({"vllm_xargs": {"a": 1}}, "engine_control"),
        ({"brand_new": 1}, "unknown_fields"),
        (
            in_turn({"type": "image", "source": {"type": "url", "url": "https://x.example"}}),
            "remote_media",
        ),
        (
            in_turn({"type": "document", "source": {"type": "file", "file_id": "f_1"}}),
            "stored_state",
        ),
        (in_turn({"type": "container_upload", "file_id": "f_1"}), "stored_state"),
    ],
)
def test_members_that_leave_the_place_need_leave(members: dict[str, Any], feature: str) -> None:
    """One that is not seen would be sent anywhere."""
    assert feature in facts(**members).features


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [TOOL]},
        {"tools": [{**TOOL, "type": "custom", "cache_control": {"type": "ephemeral"}}]},
        {"tools": [{"type": "bash_20250124", "name": "bash"}]},
        {"tools": [{"type": "text_editor_20250728", "name": "edit", "max_characters": 9}]},
        {
            "tools": [
                {
                    "type": "computer_20251124",
                    "name": "computer",
                    "display_width_px": 1280,
                    "display_height_px": 800,
                    "display_number": 1,
                    "enable_zoom": True,
                }
            ]
        },
        {"tools": [{"type": "memory_20250818", "name": "memory"}]},
    ],
)
def test_tools_that_the_caller_runs_need_no_leave(members: dict[str, Any]) -> None:
    """Claude Code sends them with each request."""
    read = facts(**members)
    assert read.features == frozenset()
    assert read.capabilities == {"tools"}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "server_tool_use", "id": "s", "name": "web_fetch", "input": {"url": "http://x"}},
        {"type": "web_search_result", "url": "https://x.example", "title": "T"},
        {"type": "search_result", "source": "https://x.example", "title": "T", "content": []},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"url": "https://x.example"}},
        {
            "type": "text",
            "text": "as found",
            "citations": [{"type": "web_search_result_location", "url": "https://x.example"}],
        },
        {"type": "thinking", "thinking": "", "signature": "EqQBCgYI"},
        {"type": "redacted_thinking", "data": "EmwK"},
    ],
)
def test_what_an_earlier_turn_found_is_not_fetched_again(block: dict[str, Any]) -> None:
    """A caller sends the whole conversation each time."""
    assert facts(**in_turn(block)).features == frozenset()


@pytest.mark.parametrize(
    "members",
    [
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"output_format": {"type": "json_schema", "schema": {}}},
    ],
)
def test_structured_output_is_a_capability(members: dict[str, Any]) -> None:
    """A deployment may not have it."""
    assert facts(**members).capabilities == {"json_schema"}
    assert facts(output_config={"effort": "low"}).capabilities == frozenset()


def test_pictures_are_vision_and_documents_have_no_bound() -> None:
    """A page of a document is charged as a picture."""
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    picture = facts(**in_turn({"type": "image", "source": source}))
    assert picture.capabilities == {"vision"}
    pdf = {**source, "media_type": "application/pdf"}
    for block in (
        {"type": "document", "source": pdf},
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "document", "source": pdf}],
        },
        {"type": "tool_reference", "tool_name": "x"},
    ):
        assert facts(**in_turn(block)).expansion_tokens is None


@pytest.mark.parametrize(
    ("tokens", "bound"), [(0, 1), (1, 1), (4096, 4096), (MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)]
)
def test_the_maximum_bounds_the_answer(tokens: int, bound: int) -> None:
    """A maximum of 0 only fills the cache; it is not the same as none."""
    assert facts(max_tokens=tokens).output_bound_tokens == bound


@pytest.mark.parametrize("tokens", [-1, MAX_OUTPUT_TOKENS + 1, "7", 1.5, True, [1]])
def test_an_odd_maximum_is_refused_by_name(tokens: object) -> None:
    """It would bound nothing."""
    error = refused(json.dumps(PLAIN | {"max_tokens": tokens}).encode())
    assert error.param == "max_tokens"


def test_no_other_maximum_bounds_the_answer() -> None:
    """The endpoint does not know the members of the others."""
    body = dict(PLAIN)
    del body["max_tokens"]
    for more in ({}, {"max_tokens": None}, {"max_completion_tokens": 7}):
        assert read_request(json.dumps(body | more).encode()).facts.output_bound_tokens is None


def test_tools_and_schemas_add_to_the_prompt() -> None:
    """Templates indent a schema, and the provider writes the definition of a tool that it knows."""
    tools = [TOOL, {"type": "bash_20250124", "name": "bash"}]
    size = len(json.dumps(tools))
    assert facts(tools=tools).expansion_tokens == (
        TOOL_PREFACE_TOKENS + KNOWN_TOOL_TOKENS + 3 * size
    )
    schema = {"format": {"type": "json_schema", "schema": {"a": [1, 2, 3]}}}
    for member in ("output_config", "output_format", "chat_template_kwargs"):
        assert facts(**{member: schema}).expansion_tokens == 3 * len(json.dumps(schema))
    assert facts(tools=[{"type": "new_20270101", "name": "x"}]).expansion_tokens is None
    assert facts(tools=[]).expansion_tokens == 3 * len("[]")
    assert facts(chat_template="x").expansion_tokens is None


def test_sealed_and_repeated_parts_add_to_the_prompt() -> None:
    """The model reads what is inside of a signature, and a template writes a past call again."""
    signature = "x" * 100
    block = {"type": "thinking", "thinking": "", "signature": signature}
    assert facts(**in_turn(block)).expansion_tokens == 3 * 102
    redacted = {"type": "redacted_thinking", "data": "x" * 100}
    assert facts(**in_turn(redacted)).expansion_tokens == 3 * 102
    sealed = {"type": "compaction", "encrypted_content": "x" * 100}
    assert facts(**in_turn(sealed)).expansion_tokens == 3 * 102
    spelled = json.dumps(PLAIN | in_turn(block)).replace('"signature"', r'"sign\u0061ture"')
    assert read_request(spelled.encode()).facts.expansion_tokens == 3 * 102
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}
    declared = len('{"a": 1}')
    assert facts(**in_turn(call)).expansion_tokens == declared
    found = {"type": "web_search_tool_result", "content": [{"encrypted_content": "x" * 50}]}
    assert facts(**in_turn(found)).expansion_tokens == 3 * len(json.dumps(found["content"]))
    spelled = json.dumps(PLAIN | in_turn(found)).replace('"encrypted_', r'"\u0065ncrypted_')
    assert read_request(spelled.encode()).facts.expansion_tokens == 3 * (
        len(json.dumps(found["content"])) + len(r"\u0065") - 1
    )
    words = {"role": "user", "content": 'The "input" is text.'}
    both = {"messages": [words, *in_turn(call)["messages"]]}
    assert facts(**both).expansion_tokens == declared
    odd = {"messages": [{"role": "user", "content": [7, {"type": "tool_use", "input": {}}]}]}
    assert facts(**odd).expansion_tokens is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"messages":[]}', "model"),
        (b'{"model":"","messages":[]}', "model"),
        (b'{"model":7,"messages":[]}', "model"),
        (b'{"model":"m"}', "messages"),
        (b'{"model":"m","messages":[],"stream":"yes"}', "stream"),
        (b'{"model":"m","messages":[],"Max_tokens":1}', "max_tokens"),
        (b'{"model":"m","messages":[],"tools":7}', "tools"),
        (b'{"model":"m","messages":[],"tools":[7]}', "tools"),
        (b'{"model":"m","messages":[],"tools":[{"type":"a","type":"b"}]}', "tools"),
        (b'{"model":"m","messages":[],"tools":[{"Type":"a"}]}', "type"),
        (b'{"model":"m","messages":[],"metadata":{"user_id":"a","user_id":"b"}}', "metadata"),
        (b'{"model":"m","messages":[],"metadata":{"User_id":"a"}}', "user_id"),
        (b'{"model":"m","messages":[{"role":"a","role":"b"}]}', "messages"),
        (b"[]", None),
        (b"{", None),
        (b'{"model":"m","model":"n","messages":[]}', None),
        (rb'{"model":"m","messages":[{"content":"\ud83d"}]}', None),
        (rb'{"model":"m","messages":[],"metadata":{"user_id":"\ud83d"}}', None),
        (b'{"model":"m","messages":' + b"[" * 500 + b"]" * 500 + b"}", None),
        (b'{"model":"m","messages":[%s]}' % b",".join([b"{}"] * 50_000), None),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_refused(body: bytes, param: str | None) -> None:
    """Nothing that one server reads and another does not may decide a destination."""
    assert refused(body).param == param


def test_a_request_has_a_bound_number_of_tools() -> None:
    """Each is inspected."""
    body = json.dumps(PLAIN | {"tools": [{"name": "x"}] * (MAX_TOOLS + 1)}).encode()
    assert refused(body).param == "tools"


@pytest.mark.parametrize("value", [None, False])
def test_a_member_that_asks_for_nothing_needs_no_leave(value: object) -> None:
    """Official clients send `null` for a member that is not set."""
    assert facts(mcp_servers=value, container=value).features == frozenset()
