"""Schemas of answers and strict tools in the keywords that Claude's structured outputs take."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gateway.wire.anthropic.translation.upstream_request import write_messages_request
from gateway.wire.bedrock.request import write_converse_request
from gateway.wire.translation.conversation import (
    Conversation,
    ConversationTurn,
    OutputFormat,
    Role,
    TextPart,
    ToolSpec,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import of_grammar
from tests.oracles.requests.judges import grammar_faults

NAMES = st.sampled_from("ab")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["", "x", "2026-11-29"]),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(NAMES, one, max_size=2),
    max_leaves=6,
)
NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number", ["integer", "null"]])},
    optional={"minimum": st.integers(0, 3), "multipleOf": st.just(2), "title": st.just("N")},
)
TEXTS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 2),
        "pattern": st.just("x"),
        "format": st.sampled_from(["date", "regex"]),
        "default": st.just("x"),
        "description": st.just("A text."),
        "enum": st.just(["x", ""]),
    },
)
LITERALS = st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}) | (
    st.fixed_dictionaries({"const": VALUES})
)
REFERENCES = st.fixed_dictionaries(
    {"$ref": st.just("#/$defs/r")},
    optional={"description": st.just("It."), "title": st.just("R"), "maximum": st.just(1)},
)


def wider(one: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas that have the drawn ones as parts."""
    objects = st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["object", ["object", "null"]]),
            "properties": st.dictionaries(NAMES, one),
            "required": st.just(["a"]),
            "additionalProperties": st.booleans() | one,
            "minProperties": st.just(1),
        },
    )
    lists = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={"items": one, "minItems": st.integers(0, 2), "uniqueItems": st.just(True)},
    )
    several = st.lists(one, min_size=1, max_size=2)
    either = st.fixed_dictionaries({"anyOf": several}, optional={"not": one})
    all_of = st.fixed_dictionaries({"allOf": several})
    return objects | lists | either | all_of


PARTS = st.recursive(NUMBERS | TEXTS | LITERALS | REFERENCES, wider, max_leaves=6)
SCHEMAS = st.builds(lambda part, ref: part | {"$defs": {"r": ref}}, PARTS, NUMBERS | TEXTS)


def sent(schema: Any) -> Any:
    return json.loads(bytes(of_grammar(msgspec.Raw(json.dumps(schema).encode()))))


def with_words(schema: Any) -> Any:
    """Return a schema that a reader of its descriptions understands: with the words as keywords."""
    if isinstance(schema, list):
        return [with_words(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    words = str(schema.get("description", "")).rpartition("\n\n")[2]
    read = {name: with_words(one) for name, one in schema.items() if name != "description"}
    return read | ({"allOf": [json.loads(words), *read.get("allOf", ())]} if "{" in words else {})


@given(schema=SCHEMAS)
def test_a_schema_has_the_keywords_of_a_grammar_alone(schema: dict[str, Any]) -> None:
    """Any other one is answered by 400. A second gateway changes nothing."""
    assert list(grammar_faults(sent(schema))) == []
    assert sent(sent(schema)) == sent(schema)


@given(schema=SCHEMAS, value=VALUES)
def test_no_constraint_is_lost(schema: dict[str, Any], value: Any) -> None:
    """An answer that keeps to the schema and its words keeps to the caller's schema."""
    if Draft202012Validator(with_words(sent(schema))).is_valid(value):
        assert Draft202012Validator(schema).is_valid(value)


def test_a_choice_of_one_is_a_choice() -> None:
    """Grammars have no `oneOf`; a definition that only one of them names stays."""
    choice = {"oneOf": [{"$ref": "#/$defs/r"}, {"type": "null"}], "$defs": {"r": {"const": 1}}}
    assert sent(choice) == {"anyOf": choice["oneOf"], "$defs": choice["$defs"]}


def test_a_schema_of_a_grammar_goes_as_it_came() -> None:
    """Its bytes are part of the cached prompt; one that is none is the provider's to refuse."""
    taken = b'{ "additionalProperties" : false,"type":"object","properties":{} }'
    for raw in (taken, b"[1]", b'{"type":', b'{"items":' * 5000 + b"1" + b"}" * 5000):
        assert bytes(of_grammar(msgspec.Raw(raw))) == raw
    large = b'{"minimum":1,"title":"' + b"x" * 200_000 + b'"}'
    assert bytes(of_grammar(msgspec.Raw(large))) == large


def test_answers_and_strict_tools_have_such_schemas() -> None:
    """At Anthropic and Bedrock; a tool that is not strict keeps its schema."""
    raw = msgspec.Raw(b'{"type":"object","properties":{"a":{"type":"integer","minimum":1}}}')
    asked = Conversation(
        is_stream=False,
        turns=(ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),)),),
        tools=(
            ToolSpec(name="f", parameters=raw, is_strict=True),
            ToolSpec(name="g", parameters=raw),
        ),
        output_format=OutputFormat(schema=raw),
    )
    losses = Losses("one", drops=False)
    body = json.loads(msgspec.json.encode(write_messages_request(asked, losses)))
    strict, free = (tool["input_schema"] for tool in body["tools"])
    assert body["output_config"]["format"]["schema"] == strict == sent(json.loads(bytes(raw)))
    assert free == json.loads(bytes(raw))
    body = json.loads(msgspec.json.encode(write_converse_request(asked, losses, model="claude")))
    tools = [tool["toolSpec"]["inputSchema"]["json"] for tool in body["toolConfig"]["tools"]]
    form = body["outputConfig"]["textFormat"]["structure"]["jsonSchema"]
    assert [json.loads(form["schema"]), *tools] == [strict, strict, free]


@pytest.mark.parametrize("values", [b'{"type":"integer"}', b"true", b"{}"])
def test_a_map_is_closed_and_named(values: bytes) -> None:
    """No grammar has a map: a strict tool with one is sent as a free one, and a form says so."""
    inner = b'{"type":"object","additionalProperties":%b}' % values
    raw = msgspec.Raw(b'{"type":"object","properties":{"m":%b}}' % inner)
    asked = Conversation(
        is_stream=False,
        turns=(ConversationTurn(role=Role.USER, parts=(TextPart(text="Hi"),)),),
        tools=(ToolSpec(name="f", parameters=raw, is_strict=True),),
        output_format=OutputFormat(schema=raw),
        named={"output_format": "response_format"},
    )
    losses = Losses("one", drops=False)
    body = json.loads(msgspec.json.encode(write_messages_request(asked, losses)))
    (tool,) = body["tools"]
    assert (tool["input_schema"], "strict" in tool) == (json.loads(bytes(raw)), False)
    assert set(losses.fields) == {"strict", "response_format"}
    losses = Losses("one", drops=False)
    body = json.loads(msgspec.json.encode(write_converse_request(asked, losses, model="claude")))
    (tool,) = body["toolConfig"]["tools"]
    assert "strict" not in tool["toolSpec"]
    assert set(losses.fields) == {"strict", "response_format"}
