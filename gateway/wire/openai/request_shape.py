"""How large a request body may be in what costs time to read: values, depth, escapes and names.

A body of 10 MiB can hold three million values, which took three seconds to decode while every other
caller waited. Here the values are counted without decoding them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

import msgspec

from gateway.domain.policy.known_members import KNOWN_MEMBERS, NAMED_MEMBERS, folded
from gateway.errors import InvalidRequest

MAX_VALUES = 100_000
MAX_LOOKED_AT = 40_000  # of values that are decoded and looked at one by one, at a microsecond each
MAX_DEPTH = 64
MAX_ESCAPES = 2_000_000  # each takes 10 ns to read; a 10 MiB prompt of JSON in JSON has a million
MAX_NAME_LETTERS = 256
# A smaller body cannot hold more than `MAX_VALUES` values, nor take more than a few milliseconds.
LARGE_BYTES = 100_000
# Members of which some are decoded into objects, and how many bytes they may have.
MAX_BYTES = {"tools": 2**20, "stream_options": 2**10, "modalities": 2**10}

_QUOTE, _COMMA, _BACKSLASH = b'"', b",", b"\\"
_NUMERIC = b"0123456789 \t\r\n+-.eE[],"
_START = 200  # bytes in which all but arrays of numbers have a quote
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_PEELS = 16  # of honest bodies nothing is left by then


def check_large(body: bytes) -> None:
    """Raise `InvalidRequest` for a large body with more escapes or texts than can be read
    quickly.
    """
    if body.find(_BACKSLASH) >= 0 and body.count(_BACKSLASH) > MAX_ESCAPES:
        raise InvalidRequest(
            f"The body holds more than {MAX_ESCAPES:,} escapes (\\). Nothing was sent. "
            f"Send text as UTF-8 instead of escapes, or send less."
        )
    # A value has at most two texts, its name and itself, and each text has two quotes that are not
    # escaped.
    most_quotes = 4 * MAX_VALUES
    if (quotes := body.count(_QUOTE)) > most_quotes and quotes - body.count(b'\\"') > most_quotes:
        raise _too_many("The body", MAX_VALUES)


def opens_in(body: bytes) -> int:
    """Return an upper bound of the objects and arrays in a body: brackets in its texts count
    too.
    """
    return body.count(b"[") + body.count(b"{")


def check_depth(value: bytes) -> None:
    """Raise `InvalidRequest` for a member that makes a body nest deeper than `MAX_DEPTH`."""
    if opens_in(value) >= MAX_DEPTH:
        _check_depth_outside(_without_texts(value))


def check_values(name: str, value: bytes, *, most: int) -> int:
    """Return how many members the objects of a value have together, those that stand twice
    included.

    Raises `InvalidRequest` for too many values, numbers included, and for too deep ones.
    """
    outside = _without_texts(value)
    if opens_in(outside) + outside.count(_COMMA) > most:
        raise _too_many(f"'{name}'", most)
    _check_depth_outside(outside)
    return outside.count(b":")


def is_numeric(value: bytes) -> bool:
    """Return True for arrays of numbers alone, as prompts given as tokens are.

    Raises as `check_values`.

    They are not decoded, so their numbers do not count: 2,048 inputs of embeddings may be a
    million.
    """
    if value.find(_QUOTE, 0, _START) >= 0 or value.translate(None, _NUMERIC):
        return False
    if opens_in(value) > MAX_VALUES:
        raise _too_many("The prompt", MAX_VALUES)
    _check_depth_outside(value)
    return True


def check_names(names: Iterable[str]) -> None:
    """Raise `InvalidRequest` for a name that another parser may take for a member that decides
    something.
    """
    for name in names:
        if name in KNOWN_MEMBERS:
            continue
        if len(name) > MAX_NAME_LETTERS:
            raise InvalidRequest(
                f"A member's name is longer than {MAX_NAME_LETTERS} letters: '{name[:40]}…'. "
                "Nothing was sent."
            )
        refuse_variant(name, NAMED_MEMBERS, where="The body")


def refuse_variant(name: str, named: Mapping[str, str], *, where: str) -> None:
    """Raise `InvalidRequest` if a name differs by case alone from one of `named`, which are by what
    they fold to.
    """
    meant = named.get(name.lower() if name.isascii() else folded(name), name)
    if meant != name:
        raise InvalidRequest(
            f"{where} has the member '{name[:64]}'. Some servers read it as '{meant}', others "
            "do not, so it could "
            f"be read in two ways. Nothing was sent. Write '{meant}', or leave it out.",
            param=meant,
        )


def check_sizes(members: Mapping[str, msgspec.Raw]) -> None:
    """Raise `InvalidRequest` for members that are decoded and too large for it."""
    for name, most in MAX_BYTES.items():
        value = members.get(name)
        if value is not None and (size := memoryview(value).nbytes) > most:
            raise InvalidRequest(
                f"'{name}' has {size:,} bytes; at most {most:,} are read. Nothing was sent. "
                "Send less.",
                param=name,
            )


def _without_texts(value: bytes) -> bytes:
    """The value with a single quote in place of each text, so that brackets and commas in texts are
    gone.
    """
    if value.find(_BACKSLASH) >= 0:
        # In a run of backslashes the pairs go first: what is left of it escapes the quote after it.
        # Blanks of the same length are written in place, which takes 60 % of the time of leaving
        # out.
        value = value.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    return _QUOTE.join(value.split(_QUOTE)[::2])


def _check_depth_outside(outside: bytes) -> None:
    """Raise `InvalidRequest` if more than `MAX_DEPTH` brackets stand in each other, the body's own
    among them.

    Taking out the innermost pairs is ten times as quick as counting, and shortens most bodies to
    nothing.
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
    return InvalidRequest(f"{what} holds more than {most} values. Nothing was sent. Send fewer.")
