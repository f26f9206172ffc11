"""Request bodies: the facts that are read, the fields that are refused by name, and all other
bytes unchanged.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import OF_OPENAI, Operation
from gateway.domain.policy.known_members import NAMED_MEMBERS, folded
from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER
from gateway.domain.request.request import RequestBody, RequestFacts
from gateway.errors import InvalidRequest
from gateway.providers.openai import OpenAI
from gateway.providers.vllm import Vllm
from gateway.wire.json_bounds import MAX_LOOKED_AT
from gateway.wire.members import locate
from gateway.wire.openai.dialect import OpenAIDialect
from gateway.wire.openai.request.media import _FOLDED
from gateway.wire.openai.request.read import (
    is_empty_input,
    prepare,
    read_request,
    stream_options,
)
from gateway.wire.prompt_text import has_prompt_text
from tests.answers import at_once
from tests.factories import deployment, request
from tests.unit.openai.test_members import values

CHAT = {"model": "assistant", "messages": [{"role": "user", "content": "hi"}]}


def understood(operation: Operation = Operation.CHAT, **members: Any) -> RequestFacts:
    return read_request(operation, json.dumps({**CHAT, **members}).encode()).facts


def refused(body: bytes, operation: Operation = Operation.CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_request(operation, body)
    return caught.value


def test_a_plain_request_needs_nothing() -> None:
    """The ordinary case asks for no leave and no capability."""
    body = json.dumps(CHAT).encode()
    assert read_request(Operation.CHAT, body).facts == RequestFacts(
        operation=Operation.CHAT,
        model="assistant",
        is_stream=False,
        wants_usage=False,
        wants_running_usage=False,
        output_bound_tokens=None,
        choices=1,
        capabilities=frozenset(),
        features=frozenset(),
        end_user=None,
        body_bytes=len(body),
    )


@pytest.mark.parametrize(
    ("members", "field", "expected"),
    [
        ({"stream": True}, "is_stream", True),
        ({"stream": None}, "is_stream", False),
        ({"stream_options": {"include_usage": True}}, "wants_usage", True),
        ({"stream_options": {"include_usage": False}}, "wants_usage", False),
        ({"stream_options": {"continuous_usage_stats": True}}, "wants_running_usage", True),
        ({"max_tokens": 5}, "output_bound_tokens", 5),
        ({"max_completion_tokens": 7, "max_tokens": 5}, "output_bound_tokens", 7),
        ({"max_output_tokens": 9}, "output_bound_tokens", None),
        ({"max_tokens": 0}, "output_bound_tokens", None),
        ({"max_tokens": None}, "output_bound_tokens", None),
        ({"n": 3}, "choices", 3),
        ({"n": 2, "best_of": 4}, "choices", 4),
        ({"user": "u-1"}, "end_user", "u-1"),
        ({"user": "u-1", "safety_identifier": "s-1"}, "end_user", "s-1"),
        ({"user": "x" * 300}, "end_user", "x" * 256),
        ({"user": ""}, "end_user", None),
    ],
)
def test_the_fields_that_decide_bound_or_attribute(
    members: dict[str, Any], field: str, expected: object
) -> None:
    """The little that is read of a body."""
    assert getattr(understood(**members), field) == expected


@pytest.mark.parametrize(
    ("members", "capabilities"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, {"tools"}),
        ({"functions": []}, {"tools"}),
        ({"tools": []}, set()),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, {"json_schema"}),
        ({"response_format": {"type": "text"}}, set()),
        ({"response_format": "a shape of tomorrow"}, set()),
        ({"text": {"format": {"type": "json_schema"}}}, {"json_schema"}),
        ({"text": "a shape of tomorrow"}, set()),
    ],
)
def test_required_capabilities_are_read_from_the_body(
    members: dict[str, Any], capabilities: set[str]
) -> None:
    """Capabilities are read from the body; a shape we do not know is the upstream's to judge."""
    assert understood(**members).capabilities == capabilities


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


@pytest.mark.parametrize(
    ("members", "features", "capabilities"),
    [
        ({"store": True}, {"store"}, set()),
        ({"store": False}, set(), set()),
        ({"background": True}, {"store"}, set()),
        ({"background": False}, set(), set()),
        ({"previous_response_id": "resp_1"}, {"stored_state"}, set()),
        ({"previous_response_id": None}, set(), set()),
        ({"conversation": {"id": "c"}}, {"stored_state"}, set()),
        ({"web_search_options": {}}, {"hosted_tools"}, set()),
        ({"tools": [{"type": "web_search_preview"}]}, {"hosted_tools"}, {"tools"}),
        ({"tools": [{"type": "mcp", "server_url": "https://x"}]}, {"hosted_tools"}, {"tools"}),
        ({"tools": [{"type": "namespace"}, {}]}, {"unknown_tools"}, {"tools"}),
        ({"service_tier": "flex"}, {"service_tier=flex"}, set()),
        ({"service_tier": "Priority"}, {"service_tier=priority"}, set()),
        ({"service_tier": "made-up"}, {"service_tier"}, set()),
        ({"service_tier": "on_demand"}, set(), set()),
        ({"service_tier": "auto"}, set(), set()),
        ({"modalities": ["text", "audio"]}, {"audio"}, set()),
        ({"audio": {"voice": "x"}}, {"audio"}, set()),
        ({"cache_salt": "mine"}, {"engine_control"}, set()),
        ({"priority": 0}, {"engine_control"}, set()),
        (
            message({"type": "image_url", "image_url": {"url": "https://x/y.png"}}),
            {"remote_media"},
            {"vision"},
        ),
        (
            message({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
            set(),
            {"vision"},
        ),
        (
            message({"type": "image_url", "image_url": {"url": " DATA:image/png;base64,AA"}}),
            set(),
            {"vision"},
        ),
        (
            message({"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}),
            {"remote_media"},
            {"vision"},
        ),
        (message({"type": "input_audio", "input_audio": {"data": "AA"}}), {"audio"}, set()),
        (message({"type": "file", "file": {"file_id": "file-1"}}), {"stored_state"}, set()),
        (message({"type": "text", "text": "about an image_url and a file"}), set(), set()),
    ],
)
def test_fields_that_need_leave(
    members: dict[str, Any], features: set[str], capabilities: set[str]
) -> None:
    """Fields that store, fetch or send data elsewhere, or control the engine, are found at every
    place.
    """
    found = understood(**members)
    assert (found.features, found.capabilities) == (features, capabilities)


@pytest.mark.parametrize("name", sorted(FEATURE_OF_MEMBER))
def test_every_member_of_the_table_is_noticed(name: str) -> None:
    """An unchecked row of the deny table would protect no data."""
    assert FEATURE_OF_MEMBER[name] in understood(**{name: "some value"}).features
    assert understood(**{name: None}).features == frozenset()


def test_an_escaped_name_is_the_same_name() -> None:
    r"""`"file_id"` spelled with \u escapes is still a file id."""
    body = rb'{"model":"m","messages":[{"content":[{"f\u0069le_id":"x"}]}],"\u0063ache_salt":"y"}'
    assert read_request(Operation.CHAT, body).facts.features == {"stored_state", "engine_control"}


def test_responses_keep_state_and_look_into_their_input() -> None:
    """`/v1/responses` names its media `input_…` and its stored prompts `prompt`."""
    body = {
        "model": "m",
        "prompt": {"id": "p"},
        "input": [
            {
                "content": [
                    {"type": "input_image", "image_url": "https://x/y.png"},
                    {"type": "input_file", "file_url": "https://x/f"},
                ]
            }
        ],
    }
    found = read_request(Operation.RESPONSES, json.dumps(body).encode()).facts
    assert found.features == {"stored_state", "remote_media"}
    assert found.capabilities == {"vision"}
    assert found.wants_usage


def test_a_prompt_of_completions_is_just_text() -> None:
    """Only `/v1/responses` means stored state by `prompt`."""
    body = b'{"model":"m","prompt":"say"}'
    assert read_request(Operation.COMPLETIONS, body).facts.features == frozenset()


@pytest.mark.parametrize(
    ("prompt", "has_text"),
    [
        ({"prompt": ""}, False),
        ({"prompt": ["", ""]}, False),
        ({"prompt": [[]]}, False),
        ({"prompt": [[0]]}, True),
        ({"prompt": "a"}, True),
        ({"input": ""}, False),
        ({"input": " " * 5000}, True),
        ({}, False),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": ""}]}]}, False),
        ({"messages": [{"role": "user", "content": None}]}, False),
        ({"messages": [{"content": "hi"}]}, True),
        ({"input": "", "instructions": "be brief"}, True),
    ],
)
def test_an_empty_prompt_may_have_no_tokens(prompt: dict[str, Any], has_text: bool) -> None:
    """Any other has one: an upstream that says 0 gives it away."""
    body = json.dumps({"model": "m", **prompt}).encode()
    assert has_prompt_text(RequestBody(understood(), body, locate(body))) is has_text


@pytest.mark.parametrize("key", ["k" * 2000, 5, ["k"]])
def test_a_cache_key_that_is_no_short_text_names_no_session(key: object) -> None:
    """The upstream judges it; here it would only cost time."""
    assert understood(prompt_cache_key=key).cache_key is None
    assert understood(prompt_cache_key="k").cache_key == "k"


@pytest.mark.parametrize("tools", [[5], [["f"]], [None]])
def test_tools_are_objects(tools: list[object]) -> None:
    """As every upstream says too."""
    error = refused(json.dumps({**CHAT, "tools": tools}).encode())
    assert (error.param, error.message) == (
        "tools",
        "'tools' has the wrong type: each tool is an object. Nothing was sent.",
    )


@pytest.mark.parametrize(
    "tools",
    [
        "f",
        [5],
        [{"type": []}],
        [{"type": "namespace", "tools": 5}],
        [{"type": "namespace", "tools": [5]}],
    ],
)
def test_tools_of_a_strange_shape_in_an_item_are_unknown(tools: object) -> None:
    """The upstream judges its content, under a rule only with permission."""
    item = {"type": "additional_tools", "role": "developer", "tools": tools}
    body = json.dumps({"model": "m", "input": [item]}).encode()
    expected = set() if tools == "f" else {"unknown_tools"}
    assert read_request(Operation.RESPONSES, body).facts.features == expected


def test_the_callers_own_data_is_counted_and_not_interpreted() -> None:
    """Lists and objects in metadata and arguments, however they are named."""
    own = {"metadata": {"URL": ["https://x", {"Type": 1}], "n": 1}}
    body = json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "image"}], **own}]}
    ).encode()
    assert read_request(Operation.CHAT, body).facts.features == frozenset()


def test_embeddings_do_not_stream() -> None:
    """A `stream` there has no meaning; the answer is whole."""
    body = b'{"model":"m","input":[[1,2]],"stream":true}'
    assert not read_request(Operation.EMBEDDINGS, body).facts.is_stream


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": 5}, "model"),
        ({"model": ""}, "model"),
        ({"stream": "true"}, "stream"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 10**10}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"best_of": -1}, "best_of"),
        ({"stream_options": []}, "stream_options"),
        ({"tools": "f"}, "tools"),
        ({"user": 5}, "user"),
        ({"store": "yes"}, "store"),
    ],
)
def test_a_wrong_value_is_refused_by_name(members: dict[str, Any], param: str) -> None:
    """The error names the field and its correct form; nothing was sent."""
    error = refused(json.dumps({**CHAT, **members}).encode())
    assert error.param == param
    assert f"'{param}'" in error.message


def test_a_missing_model_points_to_the_list_of_routes() -> None:
    """The commonest mistake of a first call."""
    error = refused(b'{"messages":[]}')
    assert (error.param, error.message) == (
        "model",
        "'model' is missing. GET /v1/models lists your models.",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"model":"m"',
        b'{"model":"m","model":"n"}',
        b'{"model":"m","max_tokens":12.5,"max_tokens":12}',
        b'{"model":"\xff"}',
        b'{"model":"m","x":' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'{"model":"m","\\u006dodel":"n"}',
        b'{"model":"m","messages":' + b"[" * 900 + b'"image_url"' + b"]" * 900 + b"}",
    ],
)
def test_a_body_that_cannot_be_trusted_is_refused(body: bytes) -> None:
    """Malformed, twice named, or nested beyond reason: 400, and never another exception."""
    assert refused(body).message.startswith("The body ")


def test_messages_with_too_many_values_are_refused() -> None:
    """Looking for media walks every value; that walk has a bound."""
    body = json.dumps(
        {"model": "m", "messages": [{"image_url": 1, **{str(i): 0 for i in range(MAX_LOOKED_AT)}}]}
    )
    assert "more than 40000 values" in refused(body.encode()).message


@given(
    st.binary(max_size=60)
    | st.dictionaries(
        st.sampled_from(
            [
                "model",
                "stream",
                "messages",
                "input",
                "tools",
                "n",
                "stream_options",
                "text",
                "response_format",
                "modalities",
                "store",
                "user",
                "service_tier",
                "max_tokens",
                "prompt",
            ]
        ),
        values,
    ).map(lambda d: json.dumps(d).encode()),
    st.sampled_from(sorted(OF_OPENAI)),
)
def test_any_body_is_understood_or_refused(body: bytes, operation: Operation) -> None:
    """No body makes the gateway fail: it is read, or it is the caller's mistake."""
    with suppress(InvalidRequest):
        assert read_request(operation, body).body == body


def has_variant(value: Any) -> bool:
    """Return True if a member inside is another case of a known name: `ID` is refused."""
    if isinstance(value, list):
        return any(map(has_variant, value))
    if not isinstance(value, dict):
        return False
    return any(
        _FOLDED.get(folded(name), name) != name or has_variant(inner)
        for name, inner in value.items()
    )


READ_OTHERWISE = {*FEATURE_OF_MEMBER, "n", "user", "text", "tools", "store"}
foreign = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(
        # Another case of a known name, such as `toP_P`, is refused.
        lambda name: name not in READ_OTHERWISE and NAMED_MEMBERS.get(folded(name), name) == name
    ),
    values.filter(lambda value: not has_variant(value)),
    max_size=4,
)


@given(
    foreign,
    st.booleans(),
    st.booleans(),
    st.sampled_from([Operation.CHAT, Operation.RESPONSES]),
    st.sampled_from([None, 2]),
)
def test_the_upstream_body_differs_only_in_named_members(
    extra: dict[str, Any], is_stream: bool, is_vllm: bool, operation: Operation, indent: int | None
) -> None:
    """Every byte but `model`, `stream_options`, `cache_salt` and `store` reaches the upstream as it
    came.
    """
    sent = {**extra, **CHAT, "stream": is_stream}
    body = json.dumps(sent, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    read = read_request(operation, body)
    provider = Vllm(b"salt key") if is_vllm else OpenAI()
    one = deployment(provider="vllm" if is_vllm else "openai_compatible")
    call = at_once(provider.call(one, request(read)))
    got = json.loads(call.body)
    ours = {"model", "stream_options", "cache_salt", "store"}
    was = json.loads(body)
    assert {name: value for name, value in got.items() if name not in ours} == {
        name: value for name, value in was.items() if name not in ours
    }
    assert got["model"] == "m-1"
    assert ("cache_salt" in got) == is_vllm
    assert got.get("store") == (False if operation is Operation.RESPONSES else None)
    if is_stream and operation is Operation.CHAT:
        assert got["stream_options"]["include_usage"] is True
    # Byte for byte: undo the splices and the original is there again.
    place = read.members["model"]
    head, tail = body[: place.start], body[place.end :].rstrip().removesuffix(b"}").rstrip()
    assert call.body.startswith(head + b'"m-1"' + tail)


def test_nothing_to_change_changes_nothing() -> None:
    """The caller asks for the upstream's own model name and no stream: the bytes go through."""
    body = b'{ "model" : "m-1", "temperature": 1.0e0 , "messages": [] }\n'
    read = read_request(Operation.CHAT, body)
    assert (
        prepare(read, OpenAI().values(deployment(), read, "payments", is_assembled=False)) == body
    )


def test_the_callers_stream_options_are_kept() -> None:
    """Ours are laid over the caller's; a member the caller sent is replaced, never duplicated."""
    body = b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"include_obfuscation":false}}'  # noqa: E501
    read = read_request(Operation.CHAT, body)
    wanted = stream_options(read, include_usage=True)
    assert wanted == {"include_usage": True, "include_obfuscation": False}
    assert prepare(read, {"stream_options": wanted}).count(b"stream_options") == 1


def test_a_chat_without_messages_is_refused_before_anything_is_sent() -> None:
    """A completion's body at the chats' address."""
    with pytest.raises(InvalidRequest, match="'messages' is missing") as refused:
        OpenAIDialect().read_request(Operation.CHAT, b'{"model":"m","prompt":"x"}')
    assert refused.value.param == "messages"


def test_embeddings_without_an_input_are_not_empty_ones() -> None:
    """The upstream refuses them; only empty texts may have no tokens."""
    assert not is_empty_input(read_request(Operation.EMBEDDINGS, b'{"model":"m"}'))
    assert is_empty_input(read_request(Operation.EMBEDDINGS, b'{"model":"m","input":[""]}'))
