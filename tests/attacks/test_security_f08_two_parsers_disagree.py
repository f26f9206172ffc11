"""Security F8: names that differ only in case, and repeated names, were read differently here and
upstream.

Commit e47127a accepts everything that is refused here.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.known_members import NAMED_MEMBERS
from gateway.errors import InvalidRequest
from gateway.wire.openai.request.read import prepare, read_request

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {
    "type": "object",
    "properties": {"Model": {"Type": "string"}, "model": {"type": "string"}},
}


def body(**members: Any) -> bytes:
    return json.dumps({**CHAT, **members}, ensure_ascii=False).encode()


def messages(encoded: str) -> bytes:
    return b'{"model":"m","messages":%b}' % encoded.encode()


def refused(sent: bytes, operation: Operation = Operation.CHAT) -> InvalidRequest:
    with pytest.raises(InvalidRequest, match=r"two ways|twice") as caught:
        read_request(operation, sent)
    return caught.value


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("Model", "model"),
        ("STORE", "store"),
        ("Max_Tokens", "max_tokens"),
        ("N", "n"),
        ("ſtream", "stream"),
        ("top_K", "top_k"),
        ("max_toKens", "max_tokens"),
        ("mıx", None),
        ("prıority", "priority"),
        ("provİder", "provider"),
        ("Provider", "provider"),
        ("CACHEDCONTENT", "cachedContent"),
    ],
)
def test_a_name_that_differs_by_case_alone_is_refused(name: str, meant: str | None) -> None:
    """Go, Java and .NET match names without case and take the last one, so another model would
    have run.
    """
    if meant is None:
        assert read_request(Operation.CHAT, body(**{name: 1})).facts.named == (
            ("unknown_fields", name),
        )
        return
    error = refused(body(**{name: 1}))
    assert error.param == meant
    assert name in error.message


def test_no_named_member_has_a_passing_twin() -> None:
    """The test tries every name of the tables in upper case."""
    for name in NAMED_MEMBERS.values():
        refused(body(**{name.upper(): 1}))


@pytest.mark.parametrize(
    "encoded",
    [
        '[{"role":"user","content":[{"image_url":{"url":"http://evil"},"image_url":{"detail":"low"}}]}]',
        '[{"role":"user","content":[{"image_url":{"url":"http://evil","url":"data:,"}}]}]',
        '[{"role":"user","content":"hi","content":[{"image_url":{"url":"data:,"}}]}]',
        '[{"role":"user","content":[{"type":"image_url","Image_URL":{"url":"http://evil"}}]}]',
        '[{"role":"user","content":[{"type":"file","file":{"FILE_ID":"f"}}]}]',
        '[{"role":"user","content":[{"type":"text","Type":"image_url","text":"x"}]}]',
        '[{"role":"user","Content":[{"type":"text","text":"x"}]}]',
        '[{"role":"user","content":[{"ſource":{"url":"x"}}]}]',
        '[{"role":"user","content":[{"image_url":{"url":"data:,","\\u0075rl":"data:,x"}}]}]',
    ],
)
def test_parts_that_could_be_read_in_two_ways_are_refused(encoded: str) -> None:
    """Go merges repeated objects and other parsers take the first, so an unchecked address
    passed.
    """
    refused(messages(encoded))


@pytest.mark.parametrize(
    "members",
    [
        '"tools":[{"type":"function","type":"web_search"}]',
        '"tools":[{"type":"function","Type":"web_search"}]',
        '"tools":[{"type":"namespace","tools":[{"type":"function","type":"mcp"}]}]',
        '"stream_options":{"include_usage":true,"include_usage":false}',
        '"stream_options":{"Include_Usage":true}',
        '"response_format":{"type":"text","type":"json_schema"}',
        '"text":{"format":{"type":"text"},"Format":{}}',
        '"chat_template_kwargs":{"Chat_Template":"x"}',
    ],
)
def test_objects_that_decide_something_are_read_in_one_way(members: str) -> None:
    """The names in these objects decide which tools run and whether usage is reported."""
    refused(b'{"model":"m","messages":[],%b}' % members.encode())


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
        {"metadata": {"Model": "x", "MODEL": "y", "Stream": "z"}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA},
            }
        },
        {"messages": [{"role": "user", "content": '{"Model": 1, "model": 2}'}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Model, MODEL"}]}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x"}],
                    "metadata": {"Role": "x"},
                }
            ]
        },
        {"mine": {"Model": "x"}},
    ],
)
def test_schemas_labels_and_words_are_free(members: dict[str, Any]) -> None:
    """No parser interprets a name in them, and a refusal would break honest callers."""
    sent = body(**members)
    assert prepare(read_request(Operation.CHAT, sent), {}) == sent


@pytest.mark.parametrize(
    "members",
    [
        '"tools":[{"type":"function","function":{"name":"f","parameters":{"a":1,"a":2}}}]',
        '"metadata":{"a":"1","a":"2"}',
        '"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]',
        '"messages":[{"role":"user","content":[{"image_url":"data:,"}],"metadata":{"a":{"b":1,"b":2}}}]',
    ],
)
def test_duplicate_names_pass_in_schemas_labels_and_text(members: str) -> None:
    """Names decide nothing in schemas, labels and text."""
    sent = b'{"model":"m",%b}' % members.encode()
    assert prepare(read_request(Operation.CHAT, sent), {}) == sent


CALL = '{"id":"c","type":"function","function":{"name":"f","arguments":"%s"}}'
LONG, SHORT = (f'"tool_calls":[{CALL % ("x" * length)}]' for length in (4_000, 1))
HIDDEN = LONG.replace("tool", "\\u0074ool")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('"content":"%s"' % ("x" * 4_000), '"content":"x"'),
        (LONG, SHORT),
        (HIDDEN, SHORT),
        (LONG, '"tool_calls":null'),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_text_that_is_named_twice_is_bounded_by_both(
    first: str, second: str, is_first: bool
) -> None:
    """Messages of text alone pass. An upstream that reads either one reads no more than is held;
    the calls of tools count twice, because templates write them out.
    """

    def bounded(*members: str) -> int:
        named = ",".join(('"role":"assistant"', *members))
        sent = messages(f"[{{{named}}}]")
        read = read_request(Operation.CHAT, sent)
        assert prepare(read, {}) == sent, "the same bytes are bounded and sent"
        assert read.facts.features == frozenset()
        assert read.facts.expansion_tokens is not None
        return read.facts.body_bytes + read.facts.expansion_tokens

    both = bounded(*((first, second) if is_first else (second, first)))
    alone = first.replace("\\u0074", "t")
    assert both >= max(bounded(alone), bounded(second))


def test_ordinary_calls_count_as_before() -> None:
    """A larger hold of an ordinary conversation would refuse what its budget can pay."""
    calls = [json.loads(CALL % "x")]
    for letter, of_its_id in (("a", 0), ("é", 9)):
        turn = {"role": "assistant", "content": f'{letter} "tool_calls": 1', "tool_calls": calls}
        facts = read_request(Operation.CHAT, messages(json.dumps([turn]))).facts
        # Bedrock alone declares the tool, as the request does not, and holds its preface there.
        assert facts.expansion_tokens == len(json.dumps(calls)) + of_its_id
