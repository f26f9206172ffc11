"""Finds the byte positions of a JSON object's members, and replaces, appends or cuts single ones;
all other bytes stay unchanged.

Re-encoding a body would also change other bytes (number forms, escapes, key order). So a body is
decoded once, partially, and changed by splices: `"model"` here, `"usage"` there.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import msgspec

from gateway.domain.request.request import MemberPlace

MAX_MEMBERS = 1000  # per object; a request has about fifteen
MAX_WALKED_BYTES = 2**20  # a larger body may have millions of members
MAX_SAME_NAMES = 100  # members with the name that are compared
MAX_BLANKS = 64  # before the first member, as libraries write it
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_skip_members = msgspec.json.Decoder(msgspec.defstruct("Nothing", [])).decode
_decode_name = msgspec.json.Decoder(str).decode
_BLANK = b" \t\r\n"
_find_blanks = re.compile(rb"[ \t\r\n]*").match
_CLOSE, _COMMA, _BACKSLASH, _SPACE = b"},\\ "


class MalformedJson(ValueError):
    """The bytes are not one JSON object, or they name a member twice."""


def decode_members(body: bytes) -> dict[str, msgspec.Raw]:
    """Return a JSON object's top-level members with their values still encoded. Raises
    `MalformedJson`.
    """
    require_utf8(body)
    try:
        return _decode_members(body)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except msgspec.DecodeError as broken:
        raise MalformedJson(str(broken)) from None


def require_object(body: bytes) -> None:
    """Raise `MalformedJson` if the body is not one JSON object. Creates no objects for its
    members.
    """
    require_utf8(body)
    try:
        _skip_members(body)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    except msgspec.DecodeError as broken:
        raise MalformedJson(str(broken)) from None


def require_utf8(body: bytes) -> None:
    """Raise `MalformedJson` if the bytes are not UTF-8: the decoder does not check values that
    it skips.
    """
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError as broken:
        raise MalformedJson(f"invalid UTF-8 at byte {broken.start}") from None


def locate(body: bytes, members: dict[str, msgspec.Raw] | None = None) -> dict[str, MemberPlace]:
    """Return the byte position of each top-level member of a JSON object.

    Walks from member to member: the decoder has already found the length of each value. Raises
    `MalformedJson` if a member occurs twice: two parsers may disagree on which one counts, and one
    of them decides the request's destination.
    """
    values = decode_members(body) if members is None else members
    if len(values) > MAX_MEMBERS:
        raise MalformedJson(f"more than {MAX_MEMBERS} members")
    colon = body.find(b'":')
    is_compact = body[colon + 2 : colon + 3] != b" "
    found = _located_by_length(body, values) if is_compact else _located_by_comparing(body, values)
    return found or _located_by_walking(body, values)


def locate_one(body: bytes, name: bytes, value: bytes) -> MemberPlace:
    """Return the byte position of one member: `name` in its quotes, `value` as the decoder found
    it.

    Raises as `locate`.

    If its name occurs once among the bytes, and no escape could spell it in another way, no other
    member is located.
    """
    at = body.find(name)
    end = at + len(name)
    # Searching for one byte takes a tenth of the time of searching for two. `in` would create and
    # drop an exception (Python 3.11).
    is_plain = body.find(b"\\") < 0 or body.find(b"\\u") < 0
    if is_plain and at >= 0 and body.find(name, end) < 0:
        start = body.find(value, end)
        if start >= 0 and body[end:start].strip(_BLANK) == b":":
            return MemberPlace(at, start, start + len(value))
    if len(body) > MAX_WALKED_BYTES:
        return _only_one(body, name, value)
    return locate(body)[_decode_name(name)]


def _only_one(body: bytes, name: bytes, value: bytes) -> MemberPlace:
    """Return a member's position in a body that is too large to walk: its name with this value
    occurs once.
    """
    found, at = [], 0
    for _ in range(MAX_SAME_NAMES):
        at = body.find(name, at)
        if at < 0:
            break
        end = at + len(name)
        start = body.find(value[:1], end, end + MAX_BLANKS)
        if start >= 0 and body.startswith(value, start) and body[end:start].strip(_BLANK) == b":":
            found.append(MemberPlace(at, start, start + len(value)))
        at = end
    if at >= 0 or len(found) != 1:
        raise MalformedJson(f"the member {name.decode()} cannot be told from others of its name")
    return found[0]


def _located_by_length(
    body: bytes, values: dict[str, msgspec.Raw]
) -> dict[str, MemberPlace] | None:
    """Return the members' positions in a body without blanks between its tokens; None for any other
    body.

    A blank, an escape in a name and a duplicate member each make a body longer than its decoded
    members. So equal lengths prove that there is none of them, at a fifth of the cost of walking.
    """
    found: dict[str, MemberPlace] = {}
    at, is_ascii = 1, body.isascii()
    for name, raw in values.items():
        start = at + len(name if is_ascii else name.encode()) + 3  # two quotes and the colon
        end = start + memoryview(raw).nbytes
        found[name] = MemberPlace(at, start, end)
        at = end + 1  # after the comma or the bracket
    return found if at == len(body) else None


def _located_by_comparing(
    body: bytes, values: dict[str, msgspec.Raw]
) -> dict[str, MemberPlace] | None:
    """Return the members' positions in a body with regular blanks, as libraries write it; None for
    any other.

    Encodes the decoded object again, with the blanks of its first member. If the result equals the
    body, byte for byte, the body holds nothing else and no member twice.
    """
    at = body.find(b'"')
    if at > MAX_BLANKS:
        return None  # it would be encoded again for each member
    opening = body[:at]
    if not opening.startswith(b"{") or opening[1:].strip(_BLANK):
        return None
    comma = b"," + (opening[1:] or b" ")
    written = [b'"%b": %b' % (name.encode(), raw) for name, raw in values.items()]
    whole = opening + comma.join(written)
    if not body.startswith(whole) or body[len(whole) :].strip(_BLANK) != b"}":
        return None
    found: dict[str, MemberPlace] = {}
    for (name, raw), member in zip(values.items(), written, strict=True):
        end = at + len(member)
        found[name] = MemberPlace(at, end - memoryview(raw).nbytes, end)
        at = end + len(comma)
    return found


def _located_by_walking(body: bytes, values: dict[str, msgspec.Raw]) -> dict[str, MemberPlace]:
    """Return the members' positions in any body, by walking through it. Raises `MalformedJson` if a
    member occurs twice.
    """
    found: dict[str, MemberPlace] = {}
    at = _skip(body, body.index(b"{") + 1)
    while body[at] != _CLOSE:
        name_end = _string_end(body, at)
        name = _name(body, at, name_end)
        start = _skip(body, _skip(body, name_end) + 1)  # after the colon
        value = bytes(values[name])
        end = start + len(value)
        if name in found or not body.startswith(value, start):
            raise MalformedJson(f"the member {name!r} occurs twice")
        found[name] = MemberPlace(at, start, end)
        at = _skip(body, end)
        if body[at] == _COMMA:
            at = _skip(body, at + 1)
        elif body[at] != _CLOSE:  # an earlier `12` begins like the later `1` that the decoder kept
            raise MalformedJson(f"the member {name!r} occurs twice")
    return found


def replace(
    body: bytes,
    splices: list[tuple[MemberPlace | None, bytes, bytes]],
    dropped: Collection[MemberPlace] = (),
) -> bytes:
    """Return `body` with members replaced: (position or None to append, `"name"` encoded, value
    encoded).

    The members in `dropped` are left out, each with one comma: neighbours too, in any number.
    """
    added, places = [], []
    for member, name, value in splices:
        if member is None:
            added.append(name + b":" + value)
        else:
            places.append((member.start, member.end, value))
    if dropped:
        places += [(start, end, b"") for start, end in _ranges_with_commas(body, dropped)]
    if places:
        places.sort()
        parts: list[bytes] = []
        at = 0
        for start, end, value in places:
            parts += (body[at:start], value)
            at = end
        parts.append(body[at:])
        body = b"".join(parts)
    return append(body, b",".join(added)) if added else body


def append(body: bytes, members: bytes) -> bytes:
    """Return `body`, an object, with encoded members added at its end: `"name":value`, separated
    by commas.
    """
    end = body.rindex(b"}")
    head = body[:end].rstrip(_BLANK)
    return b"".join((head, b"" if head.endswith(b"{") else b",", members, body[end:]))


def cut(body: bytes, member: MemberPlace) -> bytes:
    """Return the JSON object `body` without one member and one adjacent comma."""
    before, after = body[: member.name_start].rstrip(_BLANK), body[member.end :].lstrip(_BLANK)
    if before.endswith(b","):
        return before[:-1] + after
    return before + after.removeprefix(b",")


def without_member(body: bytes, name: str) -> bytes:
    """Return the JSON object `body` without a member, however often it stands there and however its
    name is spelt; the same object if it has none. Raises `MalformedJson`.
    """
    if body.find(name.encode()) < 0 and body.find(b"\\") < 0:
        return body
    members = decode_members(body)
    if name not in members:
        return body
    try:
        return cut(body, locate(body, members)[name])
    except MalformedJson:  # a member occurs twice; the last one counts
        del members[name]
    kept = (msgspec.json.encode(other) + b":" + bytes(raw) for other, raw in members.items())
    return b"{" + b",".join(kept) + b"}"


def _ranges_with_commas(body: bytes, dropped: Collection[MemberPlace]) -> list[tuple[int, int]]:
    """Return the byte ranges of the members to leave out, each with the comma after it.

    The last ones of the object have no comma after them: they go as one range, with the comma
    before it.
    """
    members = sorted(dropped, key=lambda one: one.name_start)
    found: list[tuple[int, int]] = []
    for member in members:
        end = _skip(body, member.end)
        if body[end] == _COMMA:
            found.append((member.name_start, end + 1))
            continue
        start = member.name_start
        while found and _skip(body, found[-1][1]) == start:
            start = found.pop()[0]
        comma = body.rfind(b",", 0, start)
        found.append((start if comma < 0 else comma, member.end))
    return found


def _skip(body: bytes, at: int) -> int:
    """Return the index of the first byte at or after `at` that is not a blank."""
    if body[at] > _SPACE:  # in valid JSON no other control character stands between tokens
        return at
    blanks = _find_blanks(body, at)
    assert blanks is not None, "it matches nothing at least"
    return blanks.end()


def _name(body: bytes, quote: int, end: int) -> str:
    """Return the member's name that stands in quotes at `[quote, end)`."""
    text = body[quote + 1 : end - 1]
    return _decode_name(body[quote:end]) if b"\\" in text else text.decode()


def _string_end(body: bytes, at: int) -> int:
    """Return the index after the closing quote of the string that opens at `at`."""
    end = body.index(b'"', at + 1)
    while body[end - 1] == _BACKSLASH and _backslashes_before(body, end) % 2:
        end = body.index(b'"', end + 1)
    return end + 1


def _backslashes_before(body: bytes, at: int) -> int:
    """Return the number of backslashes directly before a byte: an odd number escapes it."""
    count = 0
    while body[at - count - 1] == _BACKSLASH:
        count += 1
    return count
