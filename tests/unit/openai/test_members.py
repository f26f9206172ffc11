"""Splices: one member changes, every other byte stays as it came."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.members import (
    MAX_MEMBERS,
    MalformedJson,
    _located_by_comparing,
    _located_by_length,
    _located_by_walking,
    cut,
    decode_members,
    locate,
    locate_one,
    replace,
)

names = st.text(max_size=8).filter(lambda s: s.isprintable() or s == "") | st.sampled_from(
    ['a"b', "a\\", "é", "\\\\", "a\tb", "}{,:"]
)
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)
)
objects = st.dictionaries(names, values, max_size=6)
blanks = st.text(" \t\r\n", max_size=3)


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], bytes]:
    """An object and one of the many ways to write it: blanks and escapes differ."""
    members = draw(objects)
    ascii_only = draw(st.booleans())
    parts = []
    for name, value in members.items():
        key = json.dumps(name, ensure_ascii=ascii_only)
        text = json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
        parts.append(
            "".join((draw(blanks), key, draw(blanks), ":", draw(blanks), text, draw(blanks)))
        )
    return members, "".join(
        (draw(blanks), "{", ",".join(parts) or draw(blanks), "}", draw(blanks))
    ).encode()


@given(bodies())
def test_locate_returns_the_range_of_each_member(written: tuple[dict[str, Any], bytes]) -> None:
    """The byte range of a value decodes to that value; ranges are in order and do not overlap."""
    members, body = written
    found = locate(body)
    assert {
        name: json.loads(body[place.start : place.end]) for name, place in found.items()
    } == members
    ends = [0]
    for place in found.values():
        assert ends[-1] <= place.name_start < place.start < place.end <= len(body)
        ends.append(place.end)


@given(bodies())
def test_locating_one_member_agrees_with_locating_all(
    written: tuple[dict[str, Any], bytes],
) -> None:
    """Even if its name also occurs elsewhere: below it, in a text, or spelled with escapes."""
    _, body = written
    for name, place in locate(body).items():
        quoted = json.dumps(name, ensure_ascii=False).encode()
        assert locate_one(body, quoted, body[place.start : place.end]) == place


@pytest.mark.parametrize(
    "body",
    [
        b'{"u":{"n":1},"n":1}',
        b'{"n":1,"u":{"n":1}}',
        b'{"t":"\\"n\\":1","n":1}',
        b'{"t":"n","n" : 1}',
        b'{"u":{"n":1},"\\u006e":1}',
        b'{"u":["n",1],"n":1}',
        b'{"nn":1,"n":1}',
        b'{ "n"\n:\t1 }',
    ],
)
def test_one_member_is_not_mistaken_for_another(body: bytes) -> None:
    """The same name and value below it, in a text, as a value."""
    assert locate_one(body, b'"n"', b"1") == locate(body)["n"]


def test_a_member_with_an_escaped_value_is_found() -> None:
    """Whoever knows it by its text need not know how it was spelled."""
    body = b'{"t":1,"n":"a\\/b"}'
    assert locate_one(body, b'"n"', b'"a/b"') == locate(body)["n"]


def test_one_member_that_occurs_twice_is_refused() -> None:
    with pytest.raises(MalformedJson, match="twice"):
        locate_one(b'{"n":1,"n":1}', b'"n"', b"1")


@given(bodies(), values, st.data())
def test_replacing_a_member_leaves_every_other_byte(
    written: tuple[dict[str, Any], bytes], value: Any, data: st.DataObject
) -> None:
    """Unchanged members are not re-encoded: number forms, escapes and order stay."""
    members, body = written
    name = data.draw(st.sampled_from([*members, "added"]))
    place = locate(body).get(name)
    changed = replace(body, [(place, json.dumps(name).encode(), json.dumps(value).encode())])
    assert json.loads(changed) == {**members, name: value}
    if place is not None:
        assert changed.startswith(body[: place.start])
        assert changed.endswith(body[place.end :])
    else:
        head = body[: body.rindex(b"}")].rstrip()
        assert changed.startswith(head)
        assert changed.endswith(body[body.rindex(b"}") :])


@given(bodies(), st.data())
def test_several_members_are_replaced_at_once(
    written: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    """Splices do not move each other's positions, in any order."""
    members, body = written
    chosen = data.draw(st.lists(st.sampled_from([*members, "one", "two"]), unique=True))
    places = locate(body)
    splices = [(places.get(name), json.dumps(name).encode(), b'"new"') for name in chosen]
    assert json.loads(replace(body, splices)) == {**members, **dict.fromkeys(chosen, "new")}


@given(bodies(), st.data())
def test_a_member_is_dropped_while_others_are_replaced(
    written: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    """The caller's maximum goes, and the one that the upstream knows comes."""
    members, body = written
    if not members:
        return
    places = locate(body)
    gone = data.draw(st.sampled_from([*members]))
    chosen = data.draw(st.lists(st.sampled_from([*members, "one"]), unique=True))
    splices = [
        (places.get(name), json.dumps(name).encode(), b"7") for name in chosen if name != gone
    ]
    left = {name: value for name, value in members.items() if name != gone}
    expected = {**left, **dict.fromkeys([name for name in chosen if name != gone], 7)}
    assert json.loads(replace(body, splices, [places[gone]])) == expected


@given(bodies(), st.data())
def test_cutting_a_member_leaves_the_others(
    written: tuple[dict[str, Any], bytes], data: st.DataObject
) -> None:
    """Cut, an object is still an object and lacks just that member."""
    members, body = written
    if not members:
        return
    name = data.draw(st.sampled_from(list(members)))
    changed = cut(body, locate(body)[name])
    assert json.loads(changed) == {key: value for key, value in members.items() if key != name}


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":12,"a":1}',
        b'{"a":12.5,"a":12}',
        b'{"a":1e9,"a":1}',
        b'{"a":"x","a":"y"}',
        b'{"a":{},"a":[]}',
        b'{"a":true,"b":1,"a":false}',
        b'{"a":1,"\\u0061":2}',
        b'{"a":10 ,"b":1,"a":1}',
    ],
)
def test_a_member_that_occurs_twice_is_refused(body: bytes) -> None:
    """Two parsers may disagree on the one that counts, and one of them decides the destination."""
    with pytest.raises(MalformedJson, match="'a' occurs twice"):
        locate(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"a"}',
        b'{"a":1,}',
        b'{"a":1}}',
        b"{'a':1}",
        b'{"a":NaN}',
        b'{"a":01}',
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    """One error for everything a parser chokes on; no other exception leaves."""
    with pytest.raises(MalformedJson):
        decode_members(body)


@given(st.binary(max_size=40) | st.text('{}[]",:\\ntfa1.e- ', max_size=30).map(str.encode))
def test_no_bytes_make_it_fail_otherwise(body: bytes) -> None:
    """Any bytes are located, or refused as malformed: never an index or decode error."""
    try:
        found = locate(body)
    except MalformedJson:
        return
    assert list(found) == list(json.loads(body))


def test_a_body_with_absurdly_many_members_is_refused() -> None:
    """Walking members costs time; a request has about fifteen."""
    body = json.dumps({str(i): i for i in range(MAX_MEMBERS + 1)}).encode()
    with pytest.raises(MalformedJson, match="more than 1000 members"):
        locate(body)


@given(bodies(), st.booleans())
def test_both_ways_to_find_members_agree(
    case: tuple[dict[str, Any], bytes], is_compact: bool
) -> None:
    """The short way takes only bodies whose length proves all positions; a wrong position would
    corrupt the splice.
    """
    members, body = case
    if is_compact:
        body = json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()
    values = decode_members(body)
    found = _located_by_length(body, values)
    assert found is None or found == _located_by_walking(body, values)
    has_escapes = any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in members)
    if is_compact and members and not has_escapes:
        assert found is not None


@given(bodies(), st.sampled_from([None, 0, 1, 4]), st.booleans())
def test_comparing_agrees_with_walking(
    case: tuple[dict[str, Any], bytes], indent: int | None, is_even: bool
) -> None:
    """Bodies as libraries write them are compared and not searched; in any other form, nothing is
    found or the same.
    """
    members, body = case
    if is_even:
        body = json.dumps(members, ensure_ascii=False, indent=indent).encode()
    found = _located_by_comparing(body, decode_members(body))
    assert found is None or found == _located_by_walking(body, decode_members(body))
    has_escapes = any(json.dumps(name, ensure_ascii=False) != f'"{name}"' for name in members)
    if is_even and members and not has_escapes:
        assert found is not None


pairs = st.lists(
    st.tuples(st.sampled_from(["a", "b", "model"]), scalars | st.integers(0, 20)),
    min_size=2,
    max_size=4,
)


@given(pairs, st.sampled_from(["", "\n "]))
def test_comparing_never_takes_a_member_that_occurs_twice(
    members: list[tuple[str, Any]], indent: str
) -> None:
    """Two parsers may disagree on which one counts."""
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in members]
    body = ("{" + indent + f",{indent or ' '}".join(parts) + "}").encode()
    found = _located_by_comparing(body, decode_members(body))
    assert (found is None) == (len({name for name, _ in members}) < len(members))


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "model"]), scalars), min_size=2, max_size=4))
def test_the_short_way_never_takes_a_member_that_occurs_twice(
    members: list[tuple[str, Any]],
) -> None:
    """Two parsers may disagree on which one counts."""
    parts = [
        f"{json.dumps(name)}:{json.dumps(value, separators=(',', ':'))}" for name, value in members
    ]
    body = ("{" + ",".join(parts) + "}").encode()
    if len({name for name, _ in members}) < len(members):
        assert _located_by_length(body, decode_members(body)) is None
