"""A second reading of an answer, from RFC 9112 alone. It shares no code with the client.

It reads whole bytes, never pieces, and knows only framing. The client may refuse an answer that
this reading accepts; it must never understand one in another way. Two leniencies of the client's
parser are harmless, because they move no border of an answer: line breaks before a status line,
and odd bytes in its reason.

An odd head has the liberties of RFC 9112 §2.2 and §6.3 (single line feeds, a length beside chunks,
one length twice); the connection of such an answer is not used again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-9]\d\d)(?: [^\r\n]*)?\Z")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*\Z")
CHUNK = re.compile(rb"([0-9A-Fa-f]+)[^\r\n\0]*\r\n")


class Unreadable(Exception):
    """The bytes are no answer."""


class Unfinished(Exception):
    """The bytes are the beginning of an answer."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A complete answer. `rest` are the bytes behind it. `is_odd`: its head has liberties."""

    status: int
    body: bytes
    rest: bytes
    is_odd: bool = False


def strictly(raw: bytes, *, is_closed: bool) -> Reading:
    """Return the answer in these bytes. Raises `Unreadable` or `Unfinished`.

    `is_closed`: the connection ended properly behind them.
    """
    try:
        return _reading(raw, is_closed=is_closed)
    except (Unreadable, Unfinished):
        usual = _usual(raw)
        if usual is None:
            raise
    return replace(_reading(usual, is_closed=is_closed), is_odd=True)


def _usual(raw: bytes) -> bytes | None:
    """Return an answer with an odd head in its usual form; None for any other."""
    found = re.match(rb"(HTTP/1\.[01] [2-9].*?)\r*\n\r*\n", raw.lstrip(b"\r\n"), re.DOTALL)
    if found is None:
        return None
    head = re.sub(rb"\r?\n", b"\r\n", found[1])
    length = re.compile(rb"\r\ncontent-length:([^\r\n]*)", re.IGNORECASE)
    named = {one.strip(b" \t") for value in length.findall(head) for one in value.split(b",")}
    if re.search(rb"\r\ntransfer-encoding:", head, re.IGNORECASE):
        head = length.sub(b"", head)
    elif len(named) == 1:
        head = length.sub(b"", head) + b"\r\ncontent-length: " + named.pop()
    return head + b"\r\n\r\n" + raw.lstrip(b"\r\n")[found.end() :]


def _reading(raw: bytes, *, is_closed: bool) -> Reading:
    """Return the answer in bytes with a strict head."""
    while True:
        head, found, rest = raw.lstrip(b"\r\n").partition(b"\r\n\r\n")
        if not found:
            raise Unfinished
        status, fields = _head(head)
        if not 100 <= status < 200:
            break
        if status == 101:
            raise Unreadable
        raw = rest
    if status in (204, 304):
        return Reading(status, b"", rest)
    codings, lengths = fields.get(b"transfer-encoding", []), fields.get(b"content-length", [])
    if codings:
        if lengths or [coding.lower() for coding in codings] != [b"chunked"]:
            raise Unreadable
        return Reading(status, *_chunks(rest))
    if lengths:
        if len(lengths) > 1 or not re.fullmatch(rb"\d+", lengths[0]):
            raise Unreadable
        length = int(lengths[0])
        if len(rest) < length:
            raise Unfinished
        return Reading(status, rest[:length], rest[length:])
    if not is_closed:
        raise Unfinished
    return Reading(status, rest, b"")


def _head(head: bytes) -> tuple[int, dict[bytes, list[bytes]]]:
    opening, *lines = head.split(b"\r\n")
    line = STATUS_LINE.match(opening)
    if line is None:
        raise Unreadable
    fields: dict[bytes, list[bytes]] = {}
    for text in lines:
        field = FIELD.match(text)
        if field is None:
            raise Unreadable
        fields.setdefault(field[1].lower(), []).append(field[2])
    return int(line[1]), fields


def _chunks(raw: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        chunk = CHUNK.match(raw)
        if chunk is None:
            raise Unreadable if b"\r\n" in raw else Unfinished
        raw, size = raw[chunk.end() :], int(chunk[1], 16)
        if size == 0:
            break
        if len(raw) < size + 2:
            raise Unfinished
        if raw[size : size + 2] != b"\r\n":
            raise Unreadable
        body, raw = body + raw[:size], raw[size + 2 :]
    while not raw.startswith(b"\r\n"):
        line, found, raw = raw.partition(b"\r\n")
        if not found:
            raise Unfinished
        if FIELD.match(line) is None:
            raise Unreadable
    return body, raw[2:]
