"""Requests of `/v1/responses` as neutral conversations, and as chats."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.openai.chat_translation.request_writer import write_chat_request
from gateway.wire.openai.responses_translation.request_reader import read_responses_request
from gateway.wire.openai.responses_translation.sealed_thoughts import encrypted
from gateway.wire.openai.tool_call_ids import with_signature
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Media,
    OutputFormat,
    Reasoning,
    Role,
    Sampling,
    TextPart,
    Thought,
    ToolCall,
    ToolChoice,
    ToolMode,
    ToolResult,
    ToolSpec,
)
from gateway.wire.translation.losses import Losses
from tests import factories

SCHEMA = {"type": "object"}
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4AWNgAAAAAgABc3UBGAAAAABJRU5ErkJggg=="
)


def conversation(**members: Any) -> Conversation:
    """The conversation of a body."""
    body = {"model": "assistant", "input": "Hello", **members}
    read = factories.read(json.dumps(body).encode(), Operation.RESPONSES)
    return read_responses_request(read)


def user(*parts: Any, **values: Any) -> ConversationTurn:
    return ConversationTurn(role=Role.USER, parts=parts, **values)


def test_instructions_and_a_text_are_a_conversation() -> None:
    """The smallest request."""
    found = conversation(instructions="Be brief.", store=False, truncation="disabled")
    assert found == Conversation(
        is_stream=False,
        system=(TextPart(text="Be brief."),),
        turns=(user(TextPart(text="Hello")),),
        named=found.named,
    )


def test_items_next_to_one_another_are_one_turn() -> None:
    """A response's items come back one by one."""
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": None,
        },
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [
                {"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []},
                {"type": "refusal", "refusal": "No."},
            ],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "status": "completed",
            "call_id": with_signature("c", "sig="),
            "name": "look",
            "arguments": "{}",
        },
        {"type": "function_call", "call_id": "d", "name": "look", "arguments": "[]"},
        {
            "type": "function_call_output",
            "call_id": with_signature("c", "sig="),
            "output": "1",
        },
        {
            "type": "function_call_output",
            "call_id": "d",
            "output": [{"type": "input_text", "text": "2"}],
        },
        {"role": "system", "content": "It is noon."},
    ]
    found = conversation(input=items)
    assert found.system == (TextPart(text="Be kind."),)
    assert found.turns == (
        user(TextPart(text="Hi")),
        ConversationTurn(
            role=Role.ASSISTANT,
            parts=(
                Thought(text="Hm."),
                TextPart(text="Yes."),
                TextPart(text="No.", is_refusal=True),
                ToolCall(call_id="c", name="look", arguments="{}", signature="sig="),
                ToolCall(call_id="d", name="look", arguments="[]"),
            ),
        ),
        user(
            ToolResult(call_id="c", parts=(TextPart(text="1"),)),
            ToolResult(call_id="d", parts=(TextPart(text="2"),)),
        ),
        user(TextPart(text="It is noon."), is_instruction=True),
    )
    assert found.others == {}


def test_media_of_an_input() -> None:
    """By their bytes or their address."""
    parts = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "low"},
        {"type": "input_file", "file_data": "JVBERi0=", "filename": "a.pdf"},
        {"type": "input_file", "file_url": "https://a.example/b.pdf"},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    found = conversation(input=[{"role": "user", "content": parts}])
    assert found.turns == (
        user(
            Media(kind="image", media_type="image/png", data=PIXEL, detail="low"),
            Media(kind="document", media_type="application/pdf", data="JVBERi0=", name="a.pdf"),
            Media(kind="document", url="https://a.example/b.pdf"),
            Media(kind="audio", media_type="audio/wav", data="UklGRg=="),
        ),
    )


def test_wishes_about_the_answer() -> None:
    """Under the names of this dialect."""
    found = conversation(
        tools=[{"type": "function", "name": "look", "parameters": SCHEMA, "strict": False}],
        tool_choice={"type": "function", "name": "look"},
        parallel_tool_calls=True,
        text={
            "format": {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True},
            "verbosity": "low",
        },
        reasoning={"effort": "high", "summary": "auto"},
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=99,
        service_tier="flex",
        user="ann",
        prompt_cache_key="k",
        metadata={"a": "b"},
    )
    schema = msgspec.Raw(json.dumps(SCHEMA).encode())
    assert found.tools == (ToolSpec(name="look", parameters=schema, is_strict=False),)
    assert found.tool_choice == ToolChoice(mode=ToolMode.NAMED, name="look")
    assert found.output_format == OutputFormat(schema=schema, name="city", is_strict=True)
    assert found.reasoning == Reasoning(effort="high", is_shown=True)
    assert found.sampling == Sampling(temperature=0.5, top_p=0.25, top_logprobs=0)
    assert (found.most_tokens, found.service_tier, found.user) == (99, "flex", "ann")
    assert (found.cache_key, found.verbosity, found.has_parallel_calls) == ("k", "low", True)
    assert found.others == {}


def test_words_and_absent_wishes() -> None:
    """Each of them has a form of one word, or none at all."""
    found = conversation(
        tool_choice="none", text={"format": {"type": "json_object"}}, reasoning={}, top_logprobs=2
    )
    assert found.tool_choice == ToolChoice(mode=ToolMode.NONE)
    assert found.output_format == OutputFormat()
    assert (found.reasoning, found.sampling.top_logprobs) == (None, 2)
    found = conversation(text={"format": {"type": "text"}})
    assert (found.output_format, found.verbosity) == (None, None)


def test_codex_reaches_a_chat_backend_if_fields_may_be_dropped() -> None:
    """Its tools are of four types, and the functions among them are kept."""
    body = {
        "model": "assistant",
        "instructions": "You are Codex.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Sandbox."}],
            },
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "custom_tool_call", "call_id": "x", "name": "apply_patch", "input": "*"},
        ],
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": SCHEMA},
            {"type": "namespace", "name": "agents", "tools": []},
            {"type": "web_search", "external_web_access": False},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
    }
    read = factories.read(json.dumps(body).encode(), Operation.RESPONSES)
    losses = Losses("one", drops=True)
    sent = write_chat_request(read_responses_request(read), losses, model="assistant")
    assert losses.fields == ["input[2]", "tools[1]", "tools[2]", "tools[3]", "client_metadata"]
    assert json.loads(sent) == {
        "model": "assistant",
        "messages": [
            {"role": "system", "content": "You are Codex.\nSandbox."},
            {"role": "user", "content": "hi"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "exec_command",
                    "parameters": {"properties": {}, "type": "object"},
                    "strict": False,
                },
            }
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning_effort": "medium",
        "prompt_cache_key": "k",
        "stream": True,
    }


@pytest.mark.parametrize("name", ["previous_response_id", "conversation", "prompt"])
def test_what_gives_a_request_its_meaning_is_never_dropped(name: str) -> None:
    """Without the earlier turns, another question would be answered."""
    found = conversation(**{name: "x"})
    with pytest.raises(Untranslatable) as refused:
        write_chat_request(found, Losses("one", drops=True), model="m")
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ({"store": True}, "store"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format"),
        ({"reasoning": {"context": "all"}}, "reasoning.context"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        (
            {"input": [{"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]},
            "input[0].encrypted_content",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0]",
        ),
    ],
)
def test_a_member_that_nothing_carries_is_named_by_its_path(
    members: dict[str, Any], name: str
) -> None:
    """The refusal and the header name it."""
    assert list(conversation(**members).others) == [name]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {
                "input": [
                    {
                        "role": "system",
                        "content": [{"type": "input_image", "image_url": "https://a.example"}],
                    }
                ]
            },
            "input[0].content",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"text": 7}, "text"),
    ],
)
def test_a_member_of_a_wrong_type_is_refused_by_its_path(
    members: dict[str, Any], param: str
) -> None:
    """A caller's mistake is a 400, never an error of the gateway."""
    with pytest.raises(InvalidRequest) as refused:
        conversation(**members)
    assert refused.value.param == param


def test_the_proof_of_a_thought_comes_back() -> None:
    """Anthropic refuses an earlier thought without it."""
    items = [
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": encrypted(signature="c2ln", sealed=""),
        },
        {
            "type": "reasoning",
            "summary": [],
            "encrypted_content": encrypted(signature="", sealed="b3BhcXVl"),
        },
    ]
    found = conversation(input=items)
    assert found.turns[0].parts == (
        Thought(text="Hm.", signature="c2ln"),
        Thought(sealed="b3BhcXVl"),
    )
    assert found.others == {}
    assert encrypted(signature="", sealed="") is None
