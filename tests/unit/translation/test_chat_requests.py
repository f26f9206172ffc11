"""Chat requests as neutral conversations and back."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.providers.table import PROVIDERS
from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.openai.chat_translation.request_reader import read_chat_request
from gateway.wire.openai.chat_translation.request_writer import write_chat_request
from gateway.wire.openai.tool_call_ids import with_signature, without_signature
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

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR4AWNgAAAAAgABc3UBGAAAAABJRU5ErkJggg=="
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
USER = {"role": "user", "content": "Hello"}


def conversation(**members: Any) -> Conversation:
    """The conversation of a chat body."""
    body = {"model": "assistant", "messages": [USER], **members}
    return read_chat_request(factories.read(json.dumps(body).encode()))


def chat(spoken: Conversation, *, drops: bool = False, **settings: Any) -> dict[str, Any]:
    """The chat body of a conversation."""
    losses = Losses("one (OpenAI, chat)", drops=drops)
    body: dict[str, Any] = json.loads(
        write_chat_request(spoken, losses, model="assistant", **settings)
    )
    return body


def test_system_text_before_the_first_turn_stands_apart_and_later_text_stays() -> None:
    """Text that moves to the front would change the whole cached prompt behind it."""
    found = conversation(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            USER,
            {"role": "system", "content": "It is noon."},
        ]
    )
    assert found.system == (TextPart(text="Be brief."), TextPart(text="Be kind."))
    assert found.turns == (
        ConversationTurn(role=Role.USER, parts=(TextPart(text="Hello"),)),
        ConversationTurn(
            role=Role.USER, parts=(TextPart(text="It is noon."),), is_instruction=True
        ),
    )
    assert [one["role"] for one in chat(found)["messages"]] == ["system", "user", "system"]


def test_results_of_tools_are_one_turn_of_the_user() -> None:
    """As every dialect but OpenAI's has them."""
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at":1}'}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    found = conversation(
        messages=[
            USER,
            {"role": "assistant", "content": None, "tool_calls": calls, "annotations": []},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
            {"role": "user", "content": "And?", "name": "ann"},
        ]
    )
    assert found.turns[1:] == (
        ConversationTurn(
            role=Role.ASSISTANT,
            parts=(
                ToolCall(call_id="a", name="look", arguments='{"at":1}'),
                ToolCall(call_id="b", name="look", arguments="{}"),
            ),
        ),
        ConversationTurn(
            role=Role.USER,
            parts=(
                ToolResult(call_id="a", parts=(TextPart(text="1"),)),
                ToolResult(call_id="b", parts=(TextPart(text="2"),)),
            ),
        ),
        ConversationTurn(role=Role.USER, parts=(TextPart(text="And?"),), name="ann"),
    )
    assert found.others == {}


def test_media_of_a_message_are_read_by_their_bytes_or_address() -> None:
    """Each dialect has a form of its own for them."""
    parts = [
        {"type": "text", "text": "Look", "cache_control": {"type": "ephemeral"}},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        {"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": "low"}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "mp3"}},
        {
            "type": "file",
            "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="},
        },
    ]
    found = conversation(messages=[{"role": "user", "content": parts}])
    assert found.turns[0].parts == (
        TextPart(text="Look", cache_control=msgspec.Raw(b'{"type": "ephemeral"}')),
        Media(kind="image", media_type="image/png", data=PIXEL),
        Media(kind="image", url="https://a.example/b.png", detail="low"),
        Media(kind="audio", media_type="audio/mpeg", data="UklGRg=="),
        Media(kind="document", media_type="application/pdf", data="JVBERi0=", name="a.pdf"),
    )
    del parts[0]["cache_control"]
    found = conversation(messages=[{"role": "user", "content": parts}])
    assert chat(found)["messages"][0]["content"] == parts


def test_every_value_of_a_chat_is_carried() -> None:
    """A value that is read and not written again would be lost without a name."""
    members: dict[str, Any] = {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "description": "Looks.",
                    "parameters": SCHEMA,
                    "strict": True,
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        },
        "reasoning_effort": "low",
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 40,
        "min_p": 0.125,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "stop": ["END"],
        "logit_bias": {"12": -100},
        "logprobs": True,
        "top_logprobs": 3,
        "n": 2,
        "user": "ann",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "verbosity": "low",
        "max_completion_tokens": 50,
        "stream": True,
    }
    found = conversation(**members)
    assert found.others == {}
    assert chat(found, facts=PROVIDERS["vllm"]) == {
        "model": "assistant",
        "messages": [USER],
        **members,
    }
    assert found.tools == (
        ToolSpec(
            name="look",
            description="Looks.",
            parameters=msgspec.Raw(json.dumps(SCHEMA).encode()),
            is_strict=True,
        ),
    )
    assert found.sampling == Sampling(
        temperature=0.5,
        top_p=0.25,
        top_k=40,
        min_p=0.125,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        stop=("END",),
        top_logprobs=3,
        logit_bias=msgspec.Raw(b'{"12": -100}'),
    )


@pytest.mark.parametrize(
    ("members", "name"),
    [
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"store": True}, "store"),
        ({"metadata": {"a": "b"}}, "metadata"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": 7}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        (
            {"messages": [USER, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[1].tool_calls[0]",
        ),
        ({"messages": [USER, {"role": "function", "name": "f", "content": "1"}]}, "messages[1]"),
        (
            {"messages": [USER, {"role": "assistant", "audio": {"id": "a"}}]},
            "messages[1].audio",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video_url"}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
    ],
)
def test_a_member_that_nothing_carries_is_named_by_its_path(
    members: dict[str, Any], name: str
) -> None:
    """The refusal and the header name it, so that the caller finds it."""
    found = conversation(**members)
    assert list(found.others) == [name]
    with pytest.raises(Untranslatable) as refused:
        chat(found)
    assert refused.value.param == name


def calls_at(*indexes: int) -> dict[str, Any]:
    """Return messages with an earlier answer whose calls have these indexes."""
    function = {"name": "f", "arguments": "{}"}
    calls = [
        {"id": f"c{at}", "type": "function", "function": function, "index": index}
        for at, index in enumerate(indexes)
    ]
    return {"messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}


def test_a_calls_index_is_a_loss_only_if_it_is_not_its_place() -> None:
    """Clients that join the pieces of a stream send each call with its index: its own place."""
    assert conversation(**calls_at(0, 1)).others == {}
    assert list(conversation(**calls_at(0, 7)).others) == ["messages[0].tool_calls[1].index"]


@pytest.mark.parametrize(
    "members",
    [
        {"store": False},
        {"store": None, "user": None, "tools": None, "stop": None},
        {"modalities": ["text"]},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
    ],
)
def test_a_member_that_says_nothing_new_is_no_loss(members: dict[str, Any]) -> None:
    """SDKs send defaults, and a refusal of them would stop every request."""
    found = conversation(**members)
    assert found.others == {}
    assert found.output_format is None
    assert found.sampling == Sampling()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"messages": "Hello"}, "messages"),
        ({"messages": [7]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
        ),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"seed": 2**70}, "seed"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:x"}}],
                    }
                ]
            },
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    {
                        "role": "system",
                        "content": [
                            {"type": "image_url", "image_url": {"url": "https://a.example"}}
                        ],
                    }
                ]
            },
            "messages[0].content",
        ),
        ({"thinking": {"type": "much"}}, "thinking.type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].image_url.url",
        ),
    ],
)
def test_a_member_of_a_wrong_type_is_refused_by_its_path(
    members: dict[str, Any], param: str
) -> None:
    """A caller's mistake is a 400, never an error of the gateway."""
    with pytest.raises(InvalidRequest) as refused:
        conversation(**members)
    assert refused.value.param == param


def test_wishes_about_the_answer() -> None:
    """In the words of the values that every dialect shares."""
    found = conversation(
        response_format={"type": "json_object"},
        tool_choice="required",
        thinking={"type": "enabled", "budget_tokens": 2000},
        stop="END",
        safety_identifier="ann",
        user="bob",
    )
    assert found.output_format == OutputFormat()
    assert found.tool_choice == ToolChoice(mode=ToolMode.REQUIRED)
    assert found.reasoning == Reasoning(budget_tokens=2000, is_shown=True)
    assert found.sampling.stop == ("END",)
    assert (found.user, found.name_of("user")) == ("ann", "safety_identifier")


def test_earlier_thoughts_come_with_their_signatures() -> None:
    """Anthropic takes a thought only with its signature; others are read and not sent on."""
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
    ]
    message = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    found = conversation(messages=[USER, message | {"thinking_blocks": blocks}])
    assert found.turns[1].parts == (
        Thought(text="Hm.", signature="c2ln"),
        Thought(sealed="b3BhcXVl"),
        TextPart(text="Yes."),
    )
    found = conversation(messages=[USER, message])
    assert found.turns[1].parts == (Thought(text="Hm."), TextPart(text="Yes."))
    assert chat(found)["messages"][1] == {"role": "assistant", "content": "Yes."}


def test_a_marked_picture_and_a_refusal_keep_what_they_have() -> None:
    """The mark of a prefix may stand at any part."""
    mark = msgspec.Raw(b'{"type":"ephemeral"}')
    picture = {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}}
    found = conversation(
        messages=[
            {"role": "user", "content": [picture | {"cache_control": {"type": "ephemeral"}}]},
            {
                "role": "assistant",
                "name": "bot",
                "content": [{"type": "refusal", "refusal": "No."}],
            },
            {"role": "assistant", "refusal": "Never."},
        ]
    )
    (marked,) = found.turns[0].parts
    assert isinstance(marked, Media)
    assert json.loads(bytes(marked.cache_control)) == json.loads(bytes(mark))
    assert found.turns[1].parts == (TextPart(text="No.", is_refusal=True),)
    assert found.turns[2].parts == (TextPart(text="Never.", is_refusal=True),)
    plain = msgspec.structs.replace(found, turns=found.turns[1:])
    assert chat(plain)["messages"] == [
        {"role": "assistant", "content": None, "refusal": "No.", "name": "bot"},
        {"role": "assistant", "content": None, "refusal": "Never."},
    ]


def test_gemini_gets_its_signature_back_through_a_chat() -> None:
    """Google's chat endpoint reads it beside the call."""
    call = ToolCall(call_id="c", name="f", arguments="", signature="c2ln")
    turn = ConversationTurn(role=Role.ASSISTANT, parts=(call,))
    result = ConversationTurn(role=Role.USER, parts=(ToolResult(call_id="c", parts=()),))
    spoken = Conversation(is_stream=False, turns=(turn, result))
    sent = chat(spoken)["messages"][0]["tool_calls"][0]
    assert sent == {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "c2ln"}},
    }


def test_a_disabled_thought_and_a_word_for_json() -> None:
    """Both have a form without any number or schema."""
    found = conversation(
        thinking={"type": "disabled"}, response_format={"type": "json_object"}, tool_choice="auto"
    )
    assert found.reasoning == Reasoning(effort="none")
    body = chat(found)
    assert body["response_format"] == {"type": "json_object"}
    assert "tool_choice" not in body  # without tools it has no meaning


@given(call_id=st.text(), signature=st.text())
def test_an_id_gives_back_the_signature_that_it_carries(call_id: str, signature: str) -> None:
    """Byte for byte, whatever either of them is."""
    sent = with_signature(call_id, signature)
    assert without_signature(sent) == (call_id, signature)
    assert signature == "" or sent.removeprefix(call_id).replace("-", "_").isidentifier()


@pytest.mark.parametrize("sent", ["call__thought__%", "a__thought__AB=", "b__thought__x"])
def test_a_foreign_id_with_the_mark_stays_as_it_is(sent: str) -> None:
    """Else the call and its result would no longer belong together."""
    assert without_signature(sent) == (sent, "")


def test_a_signature_comes_back_by_the_id_or_by_googles_member() -> None:
    """Most clients send back standard members alone."""
    call = {"id": with_signature("c", "s+/=="), "function": {"name": "look", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "1"}
    found = conversation(messages=[USER, {"role": "assistant", "tool_calls": [call]}, result])
    assert found.turns[1].parts == (
        ToolCall(call_id="c", name="look", arguments="{}", signature="s+/=="),
    )
    assert found.turns[2].parts == (ToolResult(call_id="c", parts=(TextPart(text="1"),)),)
    call |= {"id": "c", "extra_content": {"google": {"thought_signature": "s+/=="}}}
    found = conversation(messages=[USER, {"role": "assistant", "tool_calls": [call]}])
    assert found.turns[1].parts == (
        ToolCall(call_id="c", name="look", arguments="{}", signature="s+/=="),
    )
    assert found.others == {}


def test_what_a_chat_has_no_place_for_is_lost_by_name() -> None:
    """Conversations of Anthropic's callers have more than a chat."""
    marked = TextPart(text="a", cache_control=msgspec.Raw(b"{}"))
    picture = Media(kind="image", media_type="image/png", data=PIXEL)
    spoken = Conversation(
        is_stream=False,
        system=(marked, TextPart(text="b")),
        turns=(
            ConversationTurn(
                role=Role.ASSISTANT, parts=(ToolCall(call_id="c", name="f", arguments="{}"),)
            ),
            ConversationTurn(
                role=Role.USER,
                parts=(
                    TextPart(text="before"),
                    ToolResult(
                        call_id="c",
                        parts=(TextPart(text="1"), picture, TextPart(text="2")),
                        is_error=True,
                    ),
                    Media(kind="document", url="https://a.example/b.pdf"),
                ),
            ),
            ConversationTurn(role=Role.ASSISTANT, parts=(Thought(text="Hm."), picture)),
        ),
        sampling=Sampling(top_k=3),
        service_tier="standard_only",
        user="u" * 65,
        others={"context_management": msgspec.Raw(b"{}")},
        named={"user": "metadata.user_id"},
    )
    losses = Losses("one", drops=True)
    body = json.loads(write_chat_request(spoken, losses, model="m"))
    assert body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "a\nb"},
            {"role": "assistant", "content": None, "tool_calls": [call_of("c")]},
            {"role": "tool", "tool_call_id": "c", "content": "1\n2"},
            {"role": "user", "content": "before"},
            {"role": "assistant", "content": ""},
        ],
    }
    assert losses.fields == [
        "context_management",
        "top_k",
        "cache_control",
        "is_error",
        "tool_result.image",
        "document.url",
        "assistant.image",
        "service_tier",
        "metadata.user_id",
    ]


@pytest.mark.parametrize(
    ("budget_tokens", "word"),
    [(0, "none"), (500, "minimal"), (1024, "low"), (2048, "medium"), (30000, "high")],
)
def test_a_bound_of_reasoning_becomes_a_word(budget_tokens: int, word: str) -> None:
    """A chat has words alone."""
    spoken = Conversation(is_stream=False, reasoning=Reasoning(budget_tokens=budget_tokens))
    assert chat(spoken)["reasoning_effort"] == word
    assert "reasoning_effort" not in chat(
        Conversation(is_stream=False, reasoning=Reasoning(is_adaptive=True))
    )


def call_of(call_id: str) -> dict[str, Any]:
    """A call of an earlier turn."""
    return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def shown(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """The messages of a chat: the role with the text, or with the ids of calls and results."""
    return [
        (
            one["role"],
            one.get("tool_call_id")
            or [call["id"] for call in one.get("tool_calls", ())]
            or one["content"],
        )
        for one in body["messages"]
    ]


def test_results_follow_their_calls_at_once() -> None:
    """Servers refuse anything between them; text that stood there follows the last result. The
    order is that of the calls.
    """
    found = conversation(
        messages=[
            {"role": "assistant", "tool_calls": [call_of("a"), call_of("b")]},
            {"role": "developer", "content": "One."},
            {"role": "tool", "tool_call_id": "b", "content": "2"},
            {"role": "user", "content": "Two."},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "user", "content": "Three."},
        ]
    )
    assert shown(chat(found)) == [
        ("assistant", ["a", "b"]),
        ("tool", "a"),
        ("tool", "b"),
        ("system", "One."),
        ("user", "Two."),
        ("user", "Three."),
    ]


def test_each_call_has_an_id_of_its_own() -> None:
    """Servers that count from 0 or give none, in one turn and in the next."""
    turn = [
        {"role": "assistant", "tool_calls": [call_of(""), call_of("")]},
        {"role": "tool", "tool_call_id": "", "content": "1"},
        {"role": "tool", "tool_call_id": "", "content": "2"},
    ]
    assert shown(chat(conversation(messages=[*turn, *turn]))) == [
        ("assistant", ["call", "call_2"]),
        ("tool", "call"),
        ("tool", "call_2"),
        ("assistant", ["call_3", "call_4"]),
        ("tool", "call_3"),
        ("tool", "call_4"),
    ]


def test_a_result_or_a_call_alone_is_lost() -> None:
    """Engines take a history that was cut, OpenAI does not; `untranslatable: drop` serves both."""
    alone = [
        {"role": "tool", "tool_call_id": "x", "content": "0"},
        {"role": "assistant", "tool_calls": [call_of("a"), call_of("b")]},
        {"role": "tool", "tool_call_id": "b", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "tool_calls": [call_of("c")]},
    ]
    for cut in (alone, alone[1:3], alone[3:], alone[4:]):
        with pytest.raises(Untranslatable) as refused:
            chat(conversation(messages=cut))
        assert refused.value.param == "tool_call_id"
    assert shown(chat(conversation(messages=alone), drops=True)) == [
        ("assistant", ["b"]),
        ("tool", "b"),
        ("user", "Go on."),
    ]


def test_a_request_without_a_message_gets_one() -> None:
    """A list without any is refused."""
    assert chat(Conversation(is_stream=False))["messages"] == [{"role": "user", "content": "."}]


def test_more_stops_than_openai_takes_are_lost_by_name() -> None:
    """Four there; other servers get all of them."""
    found = conversation(stop=["1", "2", "3", "4", "5"])
    with pytest.raises(Untranslatable, match="'stop'"):
        chat(found, facts=PROVIDERS["openai"])
    assert "stop" not in chat(found, drops=True, facts=PROVIDERS["openai"])
    assert len(chat(found)["stop"]) == 5
    assert len(chat(conversation(stop=["1"] * 4), facts=PROVIDERS["openai"])["stop"]) == 4


def test_a_tool_without_a_schema_has_none() -> None:
    """OpenAI's responses may have null; OpenAI's chats refuse it."""
    (tool,) = chat(Conversation(is_stream=False, tools=(ToolSpec(name="f"),)))["tools"]
    assert tool == {"type": "function", "function": {"name": "f"}}
    null = ToolSpec(name="f", parameters=msgspec.Raw(b"null"))
    (tool,) = chat(Conversation(is_stream=False, tools=(null,)))["tools"]
    assert tool == {"type": "function", "function": {"name": "f"}}
    odd = ToolSpec(name="f", parameters=msgspec.Raw(b'{"type":"string"}'))
    (tool,) = chat(Conversation(is_stream=False, tools=(odd,)))["tools"]
    assert tool["function"]["parameters"] == {"type": "string"}
