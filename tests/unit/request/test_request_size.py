"""A request's maximum size, read from its bytes: its maximum, its prompts, and the hidden parts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import OF_OPENAI, Operation
from gateway.domain.request.request import RequestFacts
from gateway.errors import InvalidRequest
from gateway.wire.members import decode_members
from gateway.wire.openai.request.prompt_lists import MAX_DECODED_BYTES
from gateway.wire.openai.request.read import is_empty_input, read_request
from gateway.wire.openai.request.size import (
    MAX_OUTPUT_TOKENS,
    PROMPTS_IN,
    TOOL_PREFACE_TOKENS,
    count_prompts,
)

PROMPTS = {
    Operation.CHAT: "messages",
    Operation.COMPLETIONS: "prompt",
    Operation.RESPONSES: "input",
    Operation.EMBEDDINGS: "input",
    Operation.RERANK: "documents",
    Operation.SCORE: "text_2",
}
MAXIMA = {
    Operation.CHAT: {"max_tokens", "max_completion_tokens"},
    Operation.COMPLETIONS: {"max_tokens"},
    Operation.RESPONSES: {"max_output_tokens"},
    Operation.EMBEDDINGS: set[str](),
    Operation.RERANK: set[str](),
    Operation.SCORE: set[str](),
}


def facts(operation: Operation = Operation.CHAT, **members: Any) -> RequestFacts:
    return read_request(operation, json.dumps({"model": "m", **members}).encode()).facts


def refused(operation: Operation = Operation.CHAT, **members: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        facts(operation, **members)
    return caught.value


def counted(encoded: bytes, operation: Operation = Operation.COMPLETIONS) -> int | None:
    body = b'{"model":"m","%b":%b}' % (PROMPTS[operation].encode(), encoded)
    return count_prompts(operation, decode_members(body))


@pytest.mark.parametrize("operation", sorted(OF_OPENAI))
@pytest.mark.parametrize("member", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
def test_only_the_endpoints_own_maximum_counts(operation: Operation, member: str) -> None:
    """Upstreams ignore the others, so they bound nothing; neither their value nor type matters."""
    own = member in MAXIMA[operation]
    assert facts(operation, **{member: 7}).output_bound_tokens == (7 if own else None)
    if not own:
        assert facts(operation, **{member: "x"}).output_bound_tokens is None
        assert facts(operation, **{member: 10**12}).output_bound_tokens is None


def test_the_larger_of_two_maxima_counts() -> None:
    """One server honours the one and another server the other."""
    assert facts(max_tokens=5, max_completion_tokens=7).output_bound_tokens == 7
    assert facts(max_tokens=7, max_completion_tokens=5).output_bound_tokens == 7


def test_a_maximum_of_the_wrong_type_is_refused_by_name() -> None:
    """Two readers could take it for two numbers."""
    error = refused(max_tokens="5")
    assert (error.param, "Expected int | null, got str" in error.message) == ("max_tokens", True)
    assert refused(max_completion_tokens=-1).param == "max_completion_tokens"


@pytest.mark.parametrize(
    ("operation", "members"),
    [
        (Operation.CHAT, {"max_tokens": MAX_OUTPUT_TOKENS}),
        (Operation.CHAT, {"max_completion_tokens": MAX_OUTPUT_TOKENS // 128, "n": 128}),
        (Operation.COMPLETIONS, {"max_tokens": MAX_OUTPUT_TOKENS // 64, "prompt": ["a"] * 64}),
        (
            Operation.COMPLETIONS,
            {"max_tokens": MAX_OUTPUT_TOKENS // 64, "prompt": ["a"] * 8, "best_of": 8},
        ),
        (Operation.RESPONSES, {"max_output_tokens": MAX_OUTPUT_TOKENS}),
    ],
)
def test_so_many_tokens_pass_and_not_one_answer_more(
    operation: Operation, members: dict[str, Any]
) -> None:
    """No engine writes so much for one request; larger figures would only fill a column."""
    name = next(iter(members))
    assert facts(operation, **members).output_bound_tokens == members[name]
    error = refused(operation, **{**members, name: members[name] + 1})
    assert (error.code, error.param, "16,777,216" in error.message) == (
        "invalid_request",
        name,
        True,
    )
    assert ("answers" in error.message) == (len(members) > 1), "nobody asked for more than one"


def test_best_of_may_be_0_and_counts_as_one() -> None:
    """OpenAI's schema allows 0 to 20, and its SDK sends it."""
    assert facts(Operation.COMPLETIONS, prompt="a", best_of=0).choices == 1
    assert refused(Operation.COMPLETIONS, prompt="a", best_of=-1).param == "best_of"
    assert refused(Operation.COMPLETIONS, prompt="a", n=0).param == "n"


@pytest.mark.parametrize(
    ("encoded", "prompts"),
    [
        (b'"one"', 1),
        (b"null", 1),
        (b"[]", 1),
        (b"[1,2,3]", 1),
        (b"[[1,2],[3], [ ]]", 3),
        (b'["a"]', 1),
        (b'[ "a", "b" , "c"]', 3),
        (rb'["a\"b", "\\", "\\\"", "c\\\\"]', 4),
        (rb'["[1, 2]", "{\"a\": [\"b\"]}"]', 2),
        (b'["a", [1]]', None),
        (b'["a", {"text": "b"}]', None),
        (b'[{"text": "a"}]', None),
        (b"[1, [2]]", None),
        (b'[1, "a", "b"]', None),
        (b'[["a", "b"]]', None),
        (b'[null, "a"]', None),
        (b"[true]", None),
        (b'{"text": "a"}', None),
        (b"7", None),
    ],
)
def test_prompts_are_counted_or_not_known(encoded: bytes, prompts: int | None) -> None:
    """Each is answered by itself; an estimate that is too low would overrun a budget."""
    assert counted(encoded) == prompts
    assert counted(encoded, Operation.EMBEDDINGS) == prompts


def test_items_of_a_conversation_are_one_prompt() -> None:
    """A response answers a list of objects as a whole; for a list of strings that is not known."""
    assert counted(b'[{"role":"user","content":"[a]"}, {"role":"user"}]', Operation.RESPONSES) == 1
    assert counted(b'["a","b"]', Operation.RESPONSES) == 2
    assert facts(messages=[{"role": "user", "content": "a"}] * 3).prompts == 1
    assert facts(Operation.COMPLETIONS).prompts == 1


TEXTS = st.lists(st.text(max_size=8), min_size=1, max_size=5)
EMBEDDED = [name for name in PROMPTS_IN[Operation.EMBEDDINGS] if name != "messages"]


@given(st.dictionaries(st.sampled_from(EMBEDDED), TEXTS | st.none(), min_size=1))
def test_each_member_with_prompts_is_counted(members: dict[str, list[str] | None]) -> None:
    """A server may read any of them, and another name of a list was one prompt."""
    most = sum(len(texts or ()) for texts in members.values())
    found = facts(Operation.EMBEDDINGS, **members)
    assert found.prompts == max(most, 1)
    talk = [{"role": "user", "content": "a"}]
    assert facts(Operation.EMBEDDINGS, **members, messages=talk).prompts == most + 1


def test_a_list_that_cannot_be_read_is_not_counted_under_any_name() -> None:
    """llama.cpp takes texts and token ids in one list."""
    for name in EMBEDDED:
        assert facts(Operation.EMBEDDINGS, **{name: [1, "a"]}).prompts is None
        ids = {"input": "a"} | {name: [[1], [2]]}
        assert facts(Operation.EMBEDDINGS, **ids).prompts == (2 if name == "input" else 3)


@pytest.mark.parametrize(
    ("members", "is_empty"),
    [
        ({"input": ["", ""]}, True),
        ({"input": ["a"]}, False),
        ({"input": "", "content": "text"}, False),
        ({"input": "", "inputs": ["text"]}, False),
        ({"inputs": [""]}, False),
    ],
)
def test_inputs_are_empty_only_if_no_other_member_has_some(
    members: dict[str, Any], is_empty: bool
) -> None:
    """A count of 0 is believed only for a request without a text."""
    read = read_request(Operation.EMBEDDINGS, json.dumps({"model": "m", **members}).encode())
    assert is_empty_input(read) is is_empty


def test_encoded_prompts_and_lists_too_long_to_decode_are_not_counted() -> None:
    """vLLM's tensors do not show how many they are, and to decode megabytes would stop the loop."""
    assert facts(Operation.COMPLETIONS, prompt="a", prompt_embeds="AAAA").prompts is None
    assert facts(Operation.COMPLETIONS, prompt="a", prompt_embeds=None).prompts == 1
    large = b'["%b["]' % (b"x" * MAX_DECODED_BYTES)
    assert counted(large) is None
    assert counted(large.replace(b"x[", b"xx")) == 1


@given(st.lists(st.text(max_size=8), min_size=1, max_size=8), st.booleans(), st.booleans())
def test_any_list_of_texts_is_counted(texts: list[str], ascii_only: bool, spaced: bool) -> None:
    """Quotes, brackets and backslashes in them do not count."""
    separators = (", ", ": ") if spaced else (",", ":")
    encoded = json.dumps(texts, ensure_ascii=ascii_only, separators=separators)
    try:
        body = encoded.encode()
        msgspec.json.decode(body)
    except (UnicodeEncodeError, msgspec.DecodeError):
        return  # half a surrogate pair
    assert counted(body) == len(texts)


TOOL = {"type": "function", "function": {"name": "f"}}


def size(value: object) -> int:
    return len(json.dumps(value))


@pytest.mark.parametrize(
    ("members", "tokens"),
    [
        ({"messages": [{"role": "user", "content": "a_b"}]}, 0),
        ({"tools": [TOOL]}, TOOL_PREFACE_TOKENS + 3 * size([TOOL])),
        ({"functions": [{}]}, TOOL_PREFACE_TOKENS + 12),
        ({"tools": None, "response_format": {"type": "text"}}, 3 * size({"type": "text"})),
        (
            {"text": {"format": {"type": "json_schema"}}},
            3 * size({"format": {"type": "json_schema"}}),
        ),
        ({"documents": ["abc"], "chat_template_kwargs": {"a": 1}}, 3 * (7 + 8)),
        ({"chat_template": "{{ x }}"}, None),
        ({"chat_template": None}, 0),
        (
            {"messages": [{"tool_calls": [1, 2]}, {"function_call": {}}]},
            size([1, 2]) + 2,
        ),
        (
            {"messages": [{"tool_calls": [1, 2]}], "tools": [TOOL]},
            size([1, 2]) + TOOL_PREFACE_TOKENS + 3 * size([TOOL]),
        ),
        ({"messages": [{"content": "about tool_calls"}, {"content": "\u00e4"}]}, 0),
        ({"messages": [{"content": [{"type": "file", "file": {"file_data": "AA"}}]}]}, None),
        ({"messages": [{"content": [{"image_embeds": "AA"}]}]}, None),
        ({"messages": [{"content": [{"audio_embeds": "AA"}]}]}, None),
        ({"messages": [{"content": [{"text": "a \u00e4"}]}]}, 0),
        ({"messages": ["\u00e4"]}, None),
        ({"messages": [{"content": [1, "\u00e4"]}]}, None),
        ({"messages": ["\u00e4"], "tools": [TOOL]}, None),
        ({"messages": "a_\u00e4"}, 0),
    ],
)
def test_a_templates_addition_is_known_or_the_size_is_unbounded(
    members: dict[str, Any], tokens: int | None
) -> None:
    """Templates write schemas out, and charge pages as pictures: bytes alone are no bound there."""
    assert facts(**members).expansion_tokens == tokens


def test_the_results_of_tools_in_a_response_may_be_files() -> None:
    """An output may hold parts, as a message does."""
    output = [{"type": "input_file", "file_data": "AA"}]
    assert facts(Operation.RESPONSES, input=[{"output": output}]).expansion_tokens is None
    call = {"type": "function_call", "arguments": '{"a":1}'}
    declared = size(call["arguments"])
    assert facts(Operation.RESPONSES, input=[call]).expansion_tokens == declared


CALL = {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}


@pytest.mark.parametrize(
    ("members", "is_undeclared"),
    [
        ({"messages": [CALL]}, True),
        ({"messages": [CALL], "tools": []}, False),
        ({"messages": [CALL], "tools": [TOOL]}, False),
        ({"messages": [CALL], "tools": None, "functions": None}, True),
        ({"messages": [CALL], "functions": [{}]}, False),
        ({"messages": [{"function_call": {"name": "f"}}]}, True),
        ({"messages": [{"role": "tool", "tool_call_id": "a", "content": "b"}]}, False),
        ({"messages": ["a"], "response_format": {"type": "text"}}, False),
        ({"prompt": "a", "response_format": {"type": "text"}}, False),
    ],
)
def test_calls_of_a_request_without_tools_are_noted(
    members: dict[str, Any], is_undeclared: bool
) -> None:
    """A translation that has to declare their tools sends more than the body."""
    assert facts(**members).calls_undeclared == is_undeclared


def test_a_prediction_is_output_besides() -> None:
    """OpenAI charges its rejected tokens on top of the maximum."""
    assert facts(prediction={"content": "abc"}).predicted_bytes == size({"content": "abc"})
    assert facts(prediction=None).predicted_bytes == 0
