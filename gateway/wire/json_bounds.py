"""Refuses JSON bodies whose values, depth or escapes take too long to read, by counting bytes
before anything is decoded.

A body of 10 MiB can hold three million values. Decoding them took three seconds, in which every
other caller waited. This module counts the values without decoding them.
"""

from __future__ import annotations

from itertools import accumulate

from gateway.errors import InvalidRequest

MAX_VALUES = 100_000
MAX_LOOKED_AT = 40_000  # values that are decoded and inspected one by one, at a microsecond each
MAX_DEPTH = 64
MAX_ESCAPES = 2_000_000  # each takes 10 ns to read; a 10 MiB prompt of JSON in JSON has a million
# A smaller body cannot hold more than `MAX_VALUES` values, nor take more than a few milliseconds.
LARGE_BYTES = 100_000

_QUOTE, _COMMA, _BACKSLASH = b'"', b",", b"\\"
_NUMERIC = b"0123456789 \t\r\n+-.eE[],"
_START = 200  # bytes in which all values except arrays of numbers have a quote
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_PEELS = 16  # an ordinary body has no brackets left after this many


def check_large(body: bytes) -> None:
    """Raise `InvalidRequest` if a large body has more escapes or texts than can be read quickly."""
    if body.find(_BACKSLASH) >= 0 and body.count(_BACKSLASH) > MAX_ESCAPES:
        raise InvalidRequest(
            f"The body holds more than {MAX_ESCAPES:,} escapes (\\). Nothing was sent. "
            f"Send text as UTF-8 instead of escapes, or send less."
        )
    # A value has at most two texts, its name and itself, and each text has two unescaped quotes.
    most_quotes = 4 * MAX_VALUES
    if (quotes := body.count(_QUOTE)) > most_quotes and quotes - body.count(b'\\"') > most_quotes:
        raise _too_many("The body", MAX_VALUES)


def opens_in(body: bytes) -> int:
    """Return an upper bound of the number of objects and arrays in a body: its opening brackets,
    also those in texts.
    """
    return body.count(b"[") + body.count(b"{")


def check_depth(value: bytes) -> None:
    """Raise `InvalidRequest` if a member's value makes the body nest deeper than `MAX_DEPTH`."""
    if opens_in(value) >= MAX_DEPTH:
        _check_depth_outside(_without_texts(value))


def check_values(name: str, value: bytes, *, most: int) -> int:
    """Raise `InvalidRequest` if a value has more than `most` values or nests too deep; return the
    number of its objects' members, duplicates included.

    Numbers and texts count as values too.
    """
    outside = _without_texts(value)
    if opens_in(outside) + outside.count(_COMMA) > most:
        raise _too_many(f"'{name}'", most)
    _check_depth_outside(outside)
    return outside.count(b":")


def is_numeric(value: bytes) -> bool:
    """Return True if a JSON value is only arrays of numbers, like a prompt given as token ids.

    Raises as `check_values`.

    The numbers are not decoded, so they do not count: 2,048 embeddings inputs may have a million.
    """
    if value.find(_QUOTE, 0, _START) >= 0 or value.translate(None, _NUMERIC):
        return False
    if opens_in(value) > MAX_VALUES:
        raise _too_many("The prompt", MAX_VALUES)
    _check_depth_outside(value)
    return True


def _without_texts(value: bytes) -> bytes:
    """Return a JSON value with a single quote in place of each text, to remove brackets and commas
    in texts.
    """
    if value.find(_BACKSLASH) >= 0:
        # In a run of backslashes the pairs are removed first: a remaining one escapes the quote
        # after it. They are replaced by blanks of the same length, which takes 60 % of the time of
        # deleting them.
        value = value.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    return _QUOTE.join(value.split(_QUOTE)[::2])


def _check_depth_outside(outside: bytes) -> None:
    """Raise `InvalidRequest` if more than `MAX_DEPTH` brackets are nested outside of texts, the
    body's own included.

    Removing the innermost pairs is ten times as fast as counting, and most bodies are soon empty.
    """
    if opens_in(outside) < MAX_DEPTH:
        return
    rest = brackets = outside.translate(None, _NO_BRACKETS)
    for _ in range(_PEELS):
        rest = rest.replace(b"[]", b"").replace(b"{}", b"")
        if not rest:
            return
    if max(accumulate(memoryview(brackets.translate(_STEPS)).cast("b"))) >= MAX_DEPTH:
        raise InvalidRequest(
            f"The body nests deeper than {MAX_DEPTH} levels. Nothing was sent. Send a flatter one."
        )


def _too_many(what: str, most: int) -> InvalidRequest:
    """Return the error for a body or member with more values than can be read quickly."""
    return InvalidRequest(f"{what} holds more than {most} values. Nothing was sent. Send fewer.")
