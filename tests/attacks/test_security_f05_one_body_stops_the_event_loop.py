"""Security F5: a body of 10 MiB was decoded on the event loop, which took seconds and half a
gigabyte.

`python -m bench.hostile_bodies` measures the time; these tests do not depend on the machine. Commit
e47127a accepts most of these bodies.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest

from bench.hostile_bodies import BODIES, CHAT, MESSAGES, MODEL, Body, padded
from gateway.api.plain.route_explain import read_question
from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.openai.request.read import prepare, read_request

MIB = 2**20
SIZE = 2 * MIB  # a fifth of the default limit, with more values than any request has
HOSTILE = [one for one in BODIES if one[0].startswith("F5")]
HONEST = [one for one in BODIES if one[0].startswith("honest")]


def names(body: Body) -> str:
    return body[0]


@pytest.mark.parametrize("hostile", HOSTILE, ids=names)
def test_a_body_of_the_audit_is_refused_before_it_is_decoded(hostile: Body) -> None:
    """Each of these bodies made more objects than memory allows; now they are only counted."""
    _, operation, make = hostile
    body = make(10 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as refused:
            read_request(operation, body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "Nothing was sent" in refused.value.message
    assert peak_bytes < 5 * len(body), "copies of the bytes, no objects"


@pytest.mark.parametrize(
    "piece",
    [b",[]", b",{}", b',""', b",null", b",1", b',{"a":1}', b',{"role":"u","content":""}'],
    ids=repr,
)
@pytest.mark.parametrize(
    "member", ["messages", "stop", "logit_bias", "tomorrow", "tools", "prompt_cache_key"]
)
def test_values_of_every_kind_count_in_every_member(member: str, piece: bytes) -> None:
    """Only members of objects in the messages were counted, and only after everything had been
    decoded.
    """
    opening = MODEL + b'"messages":[],' if member != "messages" else MODEL
    body = padded(opening + b'"%b":[{"image_url":"data:,"}' % member.encode(), piece, b"]}")(SIZE)
    with pytest.raises(InvalidRequest):
        read_request(CHAT, body)


@pytest.mark.parametrize("hostile", HOSTILE, ids=names)
def test_a_question_about_a_body_is_no_dearer_than_the_body(hostile: Body) -> None:
    """`POST /v1/route/explain` decoded the whole body, even one that its endpoint would have
    refused.
    """
    _, _, make = hostile
    body = make(10 * MIB)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest):
            read_question(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 5 * len(body)


def test_a_long_name_is_refused_before_it_is_looked_for() -> None:
    """A name made of escapes was searched for byte by byte."""
    with pytest.raises(InvalidRequest, match="longer than 256 letters"):
        read_request(CHAT, MODEL + b'"' + b'a\\"' * 1000 + b'":1}')


def test_a_body_of_blanks_is_read_without_copies_of_them() -> None:
    """The blanks before the first member were copied for each member: gigabytes for a thousand
    members.
    """
    members = ",".join(f'"m{n}": 1' for n in range(900))
    body = b"{" + b" " * MIB + b'"model": "m", "messages": [], %b}' % members.encode()
    tracemalloc.start()
    try:
        assert read_request(CHAT, body).facts.model == "m"
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10 * len(body)


@pytest.mark.parametrize("honest", HONEST, ids=names)
def test_an_honest_large_body_passes_unchanged(honest: Body) -> None:
    """A long prompt, a picture, many inputs and many tools must stay below every count."""
    _, operation, make = honest
    body = make(10 * MIB)
    read = read_request(operation, body)
    assert read.facts.features == frozenset()
    assert prepare(read, {}) == body


def test_a_text_full_of_brackets_and_escapes_is_one_value() -> None:
    """Brackets inside a text are not arrays, even if escapes precede the text's closing quote."""
    text = '\\"[{,' * 50_000 + "\\"
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    content = [{"type": "text", "text": text}, part]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    assert read_request(CHAT, body).facts.capabilities == {"vision"}


def test_arrays_of_numbers_are_counted_too() -> None:
    """A prompt of token ids may be a million numbers, but not a million arrays."""
    body = padded(MODEL + b'"input":[[1]', b",[1]", b"]}")(SIZE)
    with pytest.raises(InvalidRequest, match="more than 100000 values"):
        read_request(Operation.EMBEDDINGS, body)


def test_an_answer_cannot_be_asked_for_by_millions_of_numbers_in_a_message() -> None:
    """Numbers are unlimited only in prompts of token ids, which are not decoded."""
    body = padded(MESSAGES + b'{"role":"user","content":[1', b",1", b"]}]}")(SIZE)
    with pytest.raises(InvalidRequest, match="'messages' holds more than 40000 values"):
        read_request(CHAT, body)
    tokens = padded(MODEL + b'"prompt":[1', b",1", b"]}")(SIZE)
    assert read_request(Operation.COMPLETIONS, tokens).facts.prompts == 1
