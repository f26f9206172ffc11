"""Conversations as generateContent requests: each member by google-genai's types."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.gemini.contents import FOREIGN_CALL, MADE_ID, MOST_URL_CHARS
from gateway.wire.gemini.request import with_maximum, write_gemini_request
from gateway.wire.gemini.thinking import thinking_config
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    Media,
    OutputFormat,
    Part,
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

SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}')
TOOL = ToolSpec(name="weather", description="The weather.", parameters=SCHEMA)


def user(*parts: Part) -> ConversationTurn:
    return ConversationTurn(role=Role.USER, parts=parts)


def model(*parts: Part) -> ConversationTurn:
    return ConversationTurn(role=Role.ASSISTANT, parts=parts)


HELLO = user(TextPart(text="Hello"))


def written(
    *turns: ConversationTurn, to: str = "gemini-3.8-flash", drops: bool = False, **values: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return the request as its upstream reads it, and the lost fields."""
    losses = Losses("g", drops=drops)
    conversation = Conversation(is_stream=False, turns=turns or (HELLO,), **values)
    body = write_gemini_request(conversation, losses, model=to)
    return msgspec.json.decode(msgspec.json.encode(body)), losses.fields


def test_a_conversation_with_a_call_and_its_result() -> None:
    """The result's name is found by the call's id, and the signature comes back byte-exact."""
    body, _ = written(
        HELLO,
        model(
            TextPart(text="I look."),
            ToolCall(call_id="c1", name="weather", arguments='{"city":"Ulm"}', signature="AbC+/="),
            ToolCall(call_id="c2", name="time", arguments=""),
        ),
        user(ToolResult(call_id="c1", parts=(TextPart(text="sun"), TextPart(text="18 C")))),
        user(
            ToolResult(call_id="c2", parts=(TextPart(text="no clock"),), is_error=True),
            TextPart(text="Go on."),
        ),
        system=(TextPart(text="Be brief."),),
    )
    assert body == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Hello"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "I look."},
                    {
                        "functionCall": {"name": "weather", "args": {"city": "Ulm"}, "id": "c1"},
                        "thoughtSignature": "AbC+/=",
                    },
                    {"functionCall": {"name": "time", "args": {}, "id": "c2"}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {
                        "functionResponse": {
                            "name": "weather",
                            "response": {"output": "sun\n18 C"},
                            "id": "c1",
                        }
                    },
                    {
                        "functionResponse": {
                            "name": "time",
                            "response": {"error": "no clock"},
                            "id": "c2",
                        }
                    },
                ],
            },
            {"role": "user", "parts": [{"text": "Go on."}]},
        ],
        "generationConfig": {},
    }


def test_a_call_of_another_model_is_marked_for_models_that_check() -> None:
    """Gemini 3 refuses a first call without a signature; a session may have moved here."""
    call = model(ToolCall(call_id=MADE_ID + "1", name="f", arguments="{}"))
    answer = user(ToolResult(call_id=MADE_ID + "1", parts=()))
    bare = {"functionCall": {"name": "f", "args": {}}}
    assert written(HELLO, call, answer)[0]["contents"][1]["parts"] == [
        {**bare, "thoughtSignature": FOREIGN_CALL}
    ]
    assert written(HELLO, call, answer, to="gemini-2.5-pro")[0]["contents"][1]["parts"] == [bare]


def test_media_go_inline_or_by_address() -> None:
    """Bytes as they came, an address with the type that it shows."""
    body, _ = written(
        user(
            Media(kind="image", media_type="image/png", data="AAAA", detail="low"),
            Media(kind="audio", media_type="audio/wav", data="BBBB"),
            Media(kind="document", url="https://a.example/b.pdf?x=1", name="b.pdf"),
            Media(kind="image", url="https://a.example/picture"),
            Media(kind="image", url="http://[broken"),
        )
    )
    assert body["contents"][0]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "BBBB"}},
        {"fileData": {"fileUri": "https://a.example/b.pdf?x=1", "mimeType": "application/pdf"}},
        {"fileData": {"fileUri": "https://a.example/picture"}},
        {"fileData": {"fileUri": "http://[broken"}},
    ]
    assert body["generationConfig"] == {"mediaResolution": "MEDIA_RESOLUTION_LOW"}


def test_a_picture_of_a_tool_stands_in_its_result() -> None:
    """Multimodal results are parts of the response; its wish for a resolution counts too."""
    body, lost = written(
        HELLO,
        model(ToolCall(call_id="c", name="draw", arguments="{}")),
        user(
            ToolResult(
                call_id="c",
                name="draw",
                parts=(Media(kind="image", media_type="image/png", data="AA", detail="high"),),
            )
        ),
    )
    assert body["contents"][2]["parts"][0]["functionResponse"]["parts"] == [
        {"inlineData": {"mimeType": "image/png", "data": "AA"}}
    ]
    assert body["generationConfig"]["mediaResolution"] == "MEDIA_RESOLUTION_HIGH"
    assert lost == []


def test_earlier_thoughts_come_back_as_thoughts() -> None:
    """An empty one is nothing, and one that another provider sealed is lost by name."""
    body, lost = written(
        HELLO,
        model(Thought(text="Hm."), Thought(signature="s"), Thought(sealed="x"), TextPart(text="")),
        drops=True,
    )
    assert body["contents"][1:] == [{"role": "model", "parts": [{"text": "Hm.", "thought": True}]}]
    assert lost == ["sealed"]


def test_a_system_prompt_alone_is_a_turn() -> None:
    """Gemini refuses a request without contents, and OpenAI answers one."""
    losses = Losses("g", drops=False)
    only = Conversation(is_stream=False, system=(TextPart(text="Write."),))
    body = write_gemini_request(only, losses, model="m")
    assert body["contents"] == [{"role": "user", "parts": [{"text": "Write."}]}]
    assert "systemInstruction" not in body


@pytest.mark.parametrize(
    ("choice", "calling"),
    [
        (None, None),
        (ToolChoice(mode=ToolMode.AUTO), {"mode": "AUTO"}),
        (ToolChoice(mode=ToolMode.NONE), {"mode": "NONE"}),
        (ToolChoice(mode=ToolMode.REQUIRED), {"mode": "ANY"}),
        (
            ToolChoice(mode=ToolMode.NAMED, name="weather"),
            {"mode": "ANY", "allowedFunctionNames": ["weather"]},
        ),
    ],
)
def test_the_wish_about_calls(choice: ToolChoice | None, calling: Any) -> None:
    """Each mode has Gemini's word."""
    body, _ = written(tools=(TOOL,), tool_choice=choice)
    assert body["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "weather",
                    "description": "The weather.",
                    "parametersJsonSchema": msgspec.json.decode(SCHEMA),
                }
            ]
        }
    ]
    expected = None if calling is None else {"functionCallingConfig": calling}
    assert body.get("toolConfig") == expected


def test_strict_tools_are_validated() -> None:
    """`strict` is a promise about arguments, which Gemini keeps in a mode of its own."""
    body, _ = written(tools=(ToolSpec(name="f", is_strict=True),))
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "VALIDATED"}}


def test_all_settings_of_an_answer() -> None:
    """Each value has its member, and the maximum is not among them."""
    body, lost = written(
        sampling=Sampling(
            temperature=0.5,
            top_p=0.9,
            top_k=40,
            seed=7,
            presence_penalty=0.1,
            frequency_penalty=0.2,
            stop=("END",),
            top_logprobs=3,
        ),
        choices=2,
        service_tier="default",
        most_tokens=100,
        output_format=OutputFormat(schema=SCHEMA, name="place", description="A place."),
        has_parallel_calls=True,
    )
    assert body["serviceTier"] == "standard"
    assert body["generationConfig"] == {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 40,
        "seed": 7,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "stopSequences": ["END"],
        "candidateCount": 2,
        "responseLogprobs": True,
        "logprobs": 3,
        "responseMimeType": "application/json",
        "responseJsonSchema": {"description": "A place.", **msgspec.json.decode(SCHEMA)},
    }
    assert lost == []


def test_json_without_a_schema() -> None:
    """And log probabilities of the drawn tokens alone."""
    body, _ = written(
        output_format=OutputFormat(), sampling=Sampling(top_logprobs=0), service_tier="auto"
    )
    assert body["generationConfig"] == {
        "responseMimeType": "application/json",
        "responseLogprobs": True,
    }
    assert "serviceTier" not in body


@pytest.mark.parametrize(
    ("to", "wish", "config"),
    [
        ("gemini-2.5-pro", Reasoning(), None),
        (
            "gemini-2.5-pro",
            Reasoning(effort="low"),
            {"thinkingBudget": 1024, "includeThoughts": True},
        ),
        ("gemini-2.5-flash", Reasoning(effort="none"), {"thinkingBudget": 0}),
        (
            "gemini-3.8-flash",
            Reasoning(effort="high"),
            {"thinkingLevel": "HIGH", "includeThoughts": True},
        ),
        (
            "gemini-3.8-flash",
            Reasoning(effort="high", is_shown=False),
            {"thinkingLevel": "HIGH"},
        ),
        (
            "gemini-4-argon",
            Reasoning(budget_tokens=500, effort="low"),
            {"thinkingBudget": 500, "includeThoughts": True},
        ),
        ("g", Reasoning(is_adaptive=True), {"thinkingBudget": -1, "includeThoughts": True}),
        ("g", Reasoning(is_shown=True), {"includeThoughts": True}),
    ],
)
def test_the_wish_about_thinking(to: str, wish: Reasoning, config: Any) -> None:
    """A budget up to 2.5 and a level since 3, never both; thoughts come with a wish for them."""
    body, lost = written(to=to, reasoning=wish)
    assert body["generationConfig"].get("thinkingConfig") == config
    assert lost == []


@pytest.mark.parametrize(
    ("to", "effort", "maximum", "budget"),
    [
        ("gemini-2.5-flash", "high", None, 24_576),
        ("gemini-2.5-flash", "high", 100_000, 24_576),
        ("gemini-2.5-flash", "high", 4_000, 2_000),
        ("gemini-2.5-flash", "low", 1_000, 500),
        ("gemini-2.5-flash", "low", 100, 0),
        ("gemini-2.5-flash-lite", "low", 600, 512),
        ("gemini-2.5-flash-lite", "low", 512, 0),
        ("gemini-2.5-pro", "low", 100, 128),
        ("gemini-2.5-flash", "none", 4_000, 0),
    ],
)
def test_an_effort_leaves_half_of_the_maximum_to_the_answer(
    to: str, effort: str, maximum: int | None, budget: int
) -> None:
    """Thoughts count inside the maximum: `high` with 4,000 was answered by thoughts alone."""
    body, lost = written(to=to, reasoning=Reasoning(effort=effort), most_tokens=maximum)
    config = body["generationConfig"]["thinkingConfig"]
    assert config == {"thinkingBudget": budget} | ({"includeThoughts": True} if budget else {})
    assert lost == []


@pytest.mark.parametrize("budget", [4_000, 5_000])
def test_a_budget_that_leaves_nothing_for_the_answer_is_lost_by_name(budget: int) -> None:
    """As for Claude; without a budget the model would think as long as it likes."""
    wish: dict[str, Any] = {"reasoning": Reasoning(budget_tokens=budget), "most_tokens": 4_000}
    with pytest.raises(Untranslatable, match="not below the maximum of 4000"):
        written(to="gemini-2.5-flash", **wish)
    body, lost = written(to="gemini-2.5-flash", drops=True, **wish)
    assert body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 2_000
    assert lost == ["reasoning"]


@pytest.mark.parametrize(
    ("config", "maximum", "sent"),
    [
        ({"thinkingBudget": 1_024, "includeThoughts": True}, 1_025, 1_024),
        ({"thinkingBudget": 1_024, "includeThoughts": True}, 1_024, 512),
        ({"thinkingBudget": 1_024, "includeThoughts": True}, 100, 0),
        ({"thinkingBudget": -1, "includeThoughts": True}, 100, -1),
        ({"thinkingLevel": "HIGH", "includeThoughts": True}, 100, None),
        (None, 100, None),
    ],
)
def test_the_maximum_of_a_route_leaves_room_for_the_answer(
    config: dict[str, Any] | None, maximum: int, sent: int | None
) -> None:
    body = {"generationConfig": {} if config is None else {"thinkingConfig": config}}
    found = with_maximum(body, maximum, model="gemini-2.5-flash")["generationConfig"]
    assert found["maxOutputTokens"] == maximum
    assert found.get("thinkingConfig", {}).get("thinkingBudget") == sent
    assert with_maximum(body, None, model="gemini-2.5-flash") == body


CACHED = msgspec.Raw(b'{"type":"ephemeral"}')


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("min_p", {"sampling": Sampling(min_p=0.1)}),
        ("logit_bias", {"sampling": Sampling(logit_bias=msgspec.Raw(b'{"1":2}'))}),
        ("user", {"user": "ann"}),
        ("prompt_cache_key", {"cache_key": "k", "named": {"cache_key": "prompt_cache_key"}}),
        ("verbosity", {"verbosity": "low"}),
        ("has_parallel_calls", {"tools": (TOOL,), "has_parallel_calls": False}),
        ("service_tier", {"service_tier": "scale"}),
        ("reasoning", {"reasoning": Reasoning(effort="none")}),
        ("store", {"others": {"store": msgspec.Raw(b"true")}}),
        ("cache_control", {"system": (TextPart(text="a", cache_control=CACHED),)}),
        ("cache_control", {"tools": (ToolSpec(name="f", cache_control=CACHED),)}),
        (
            "output_format.description",
            {
                "output_format": OutputFormat(
                    schema=msgspec.Raw(b'{"description":"x"}'), description="y"
                )
            },
        ),
        (
            "output_format.description",
            {"output_format": OutputFormat(schema=msgspec.Raw(b"true"), description="y")},
        ),
    ],
)
def test_a_value_without_a_place_is_refused_or_dropped_by_name(
    field: str, values: dict[str, Any]
) -> None:
    """Never silently."""
    with pytest.raises(Untranslatable, match=field) as refused:
        written(**values)
    assert refused.value.param == field
    assert written(drops=True, **values)[1] == [field]


def test_names_of_speakers_and_mixed_details_are_lost() -> None:
    """Values of turns too."""
    turn = ConversationTurn(
        role=Role.USER,
        name="ann",
        parts=(
            Media(kind="image", media_type="image/png", data="A", detail="low"),
            Media(kind="image", media_type="image/png", data="B", detail="high"),
        ),
    )
    assert written(turn, drops=True)[1] == ["name", "detail"]


def test_calls_that_mean_nothing_are_refused() -> None:
    """By an error that the caller can fix, not by Google's."""
    answer = user(ToolResult(call_id="c", parts=()))
    with pytest.raises(InvalidRequest, match="are not a JSON object"):
        written(HELLO, model(ToolCall(call_id="c", name="f", arguments="[1]")), answer)
    with pytest.raises(InvalidRequest, match="no turn before"):
        written(HELLO, user(ToolResult(call_id="c", parts=())))


@pytest.mark.parametrize("name", ["0", "-a", "a b", "x" * 129])
def test_a_name_that_gemini_refuses_is_refused_before(name: str) -> None:
    """Among the tools and in an earlier call."""
    with pytest.raises(Untranslatable, match="name"):
        written(HELLO, tools=(ToolSpec(name=name),))
    call = model(ToolCall(call_id="c", name=name, arguments="{}"))
    with pytest.raises(Untranslatable, match="name"):
        written(HELLO, call, user(ToolResult(call_id="c", parts=())))


def test_a_result_has_the_name_of_its_own_call() -> None:
    """Servers that count calls in each turn from 0 send one id again, for another tool."""

    def turns(name: str) -> tuple[ConversationTurn, ConversationTurn]:
        call = ToolCall(call_id="0", name=name, arguments="{}")
        return model(call), user(ToolResult(call_id="0", parts=(TextPart(text=name),)))

    contents = written(HELLO, *turns("ls"), *turns("cat"))[0]["contents"]
    results = [
        (part["functionResponse"]["name"], part["functionResponse"]["response"]["output"])
        for content in contents
        for part in content["parts"]
        if "functionResponse" in part
    ]
    assert results == [("ls", "ls"), ("cat", "cat")]


def test_an_address_that_is_too_long_shows_no_type() -> None:
    """The upstream judges the picture by its bytes; a made id of a call goes to no upstream."""
    picture = Media(kind="image", url="https://a.example/" + "x" * MOST_URL_CHARS + ".png")
    call = ToolCall(call_id=f"{MADE_ID}1", name="weather", arguments="{}")
    answer = ToolResult(call_id=call.call_id, parts=(TextPart(text="sun"),))
    body, _ = written(user(picture), model(call), user(answer))
    assert body["contents"][0]["parts"] == [{"fileData": {"fileUri": picture.url}}]
    assert "id" not in body["contents"][2]["parts"][0]["functionResponse"]


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("gemini-3-pro-preview", "minimal", "LOW"),
        ("gemini-3-pro-preview", "medium", "HIGH"),
        ("gemini-3-flash", "minimal", "MINIMAL"),
        ("gemini-3.7-flash", "minimal", "LOW"),
        ("gemini-3.1-pro", "medium", "MEDIUM"),
    ],
)
def test_an_effort_is_a_level_that_the_model_has(model: str, effort: str, sent: str) -> None:
    """Any other level is answered by 400; the nearest one is sent, as at Google's own endpoint."""
    asked = Conversation(is_stream=False, reasoning=Reasoning(effort=effort))
    config = thinking_config(asked, Losses("one", drops=False), model=model)
    assert config == {"thinkingLevel": sent, "includeThoughts": True}


def test_a_model_that_always_thinks_is_sent_its_least_budget() -> None:
    """2.5 Pro refuses 0: the wish is lost by name, and dropped it thinks as little as it can."""
    asked = Conversation(is_stream=False, reasoning=Reasoning(effort="none"))
    with pytest.raises(Untranslatable, match=r"'reasoning'.*always thinks"):
        thinking_config(asked, Losses("one", drops=False), model="gemini-2.5-pro")
    losses = Losses("one", drops=True)
    config = thinking_config(asked, losses, model="gemini-2.5-pro")
    assert config is not None
    assert config["thinkingBudget"] == 128
    assert losses.fields == ["reasoning"]


@pytest.mark.parametrize("number", [1, 5, 6])
def test_more_than_five_stops_are_lost_by_name(number: int) -> None:
    """Gemini refuses the request; an empty one stops nothing, and is not sent."""
    sampling = Sampling(stop=("", *"abcdefg"[:number]))
    asked = Conversation(is_stream=False, sampling=sampling)
    losses = Losses("one", drops=True)
    body = write_gemini_request(asked, losses, model="gemini-2.5-pro")
    stops = body["generationConfig"].get("stopSequences", [])
    assert stops == (list("abcde"[:number]) if number < 6 else [])
    assert losses.fields == ([] if number < 6 else ["stop"])
