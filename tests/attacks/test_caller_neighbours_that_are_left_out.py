"""Two neighbouring members at the end of a body that were both left out left a comma behind: a
server that takes no `stream_options` and no `max_completion_tokens` got a body that is no JSON.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.providers.registry import build_providers
from gateway.wire.members import locate, replace
from tests.factories import deployment, read, request

BLANKS = st.sampled_from(["", " ", "\n\t", "\r\n  "])
NAMES = ("model", "stream", "messages", "n", "user", "store", "a\\u0062", "é")
VALUES = st.sampled_from(['"m"', "1", "1.50", "[ {}, 2 ]", '{"a" : ","}', '"},{\\""', "null"])
KEPT, DROPPED, REPLACED = "kept", "dropped", "replaced"


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[tuple[str, str, str]]]:
    """A body in any spelling, and its members: name, the member as written, and its fate."""
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=len(NAMES)))
    members = []
    for name in names:
        member = f'"{name}"{draw(BLANKS)}:{draw(BLANKS)}{draw(VALUES)}'
        members.append((name, member, draw(st.sampled_from([KEPT, DROPPED, REPLACED]))))
    inside = ",".join(f"{draw(BLANKS)}{member}{draw(BLANKS)}" for _, member, _ in members)
    return f"{draw(BLANKS)}{{{inside}}}{draw(BLANKS)}", members


@given(written(), st.lists(st.sampled_from(["added", "more"]), unique=True))
@example(('{"a":1,"b":2}', [("a", '"a":1', DROPPED), ("b", '"b":2', DROPPED)]), ["added"])
def test_any_members_may_be_left_out_replaced_and_added(
    body: tuple[str, list[tuple[str, str, str]]], added: list[str]
) -> None:
    """The result is JSON, and every other member stands in it byte for byte, in its order."""
    text, members = body
    places = locate(text.encode())
    spelled = {name: json.loads(f'"{name}"') for name, _, _ in members}
    sent = replace(
        text.encode(),
        [(places[spelled[n]], b"", b'"new"') for n, _, fate in members if fate == REPLACED]
        + [(None, json.dumps(name).encode(), b"7") for name in added],
        [places[spelled[n]] for n, _, fate in members if fate == DROPPED],
    ).decode()
    expected = {
        spelled[name]: json.loads("{" + member + "}")[spelled[name]] if fate == KEPT else "new"
        for name, member, fate in members
        if fate != DROPPED
    }
    decoded = json.loads(sent)
    assert list(decoded.items()) == [*expected.items(), *((name, 7) for name in added)]
    at = 0
    for name, member, fate in members:
        if fate == KEPT:
            at = sent.index(member, at) + len(member)
        elif fate == REPLACED:
            at = sent.index(f'"{name}"', at)


@pytest.mark.parametrize("provider", ["mistral", "trtllm", "triton"])
async def test_the_order_of_the_official_library_is_sent_as_json(provider: str) -> None:
    """`max_completion_tokens` and `stream_options` stand last in the body of OpenAI's own SDK."""
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]}
    body |= {"store": False, "user": None, "max_completion_tokens": 16}
    body |= {"stream_options": {"include_usage": True}}
    at = deployment(provider=provider)
    adapter = build_providers(salt_key=bytes(32))[provider]
    asked = request(read(json.dumps(body).encode(), Operation.CHAT))
    translation = adapter.translate(at, asked.body)
    call = await adapter.call(at, asked, output_cap_tokens=16, translation=translation)
    assert json.loads(call.body)["max_tokens"] == 16
