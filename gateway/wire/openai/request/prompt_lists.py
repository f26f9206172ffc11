"""Counts the items of a list of prompts and the bytes of a member's value, both as encoded."""

from __future__ import annotations

import msgspec

MAX_DECODED_BYTES = 4 * 2**20  # of a list of prompts: decoding single letters takes about 60 ms
NULL = b"null"
_decode_strings = msgspec.json.Decoder(list[str]).decode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def strings_in(value: bytes) -> int | None:
    """Count the items of a list that begins with a string; None if it holds other items too."""
    # in a string, or as another item: only decoding shows which
    if b"[" in value[1:] or b"{" in value:
        if len(value) > MAX_DECODED_BYTES:
            return None
        try:
            return len(_decode_strings(value))
        except msgspec.DecodeError:
            return None
    if b"\\" in value:
        value = value.replace(rb"\\", b"")  # an escaped backslash may precede a closing quote
        return (value.count(b'"') - value.count(rb"\"")) // 2
    return value.count(b'"') // 2


def items_in(value: bytes) -> int | None:
    """Count the items of a list of any kind; None if it is too long to be decoded."""
    if value[1:2] == b'"' and (count := strings_in(value)) is not None:
        return count
    return len(_decode_items(value)) if len(value) <= MAX_DECODED_BYTES else None


def size_of_value(value: msgspec.Raw | None) -> int:
    """Return the bytes of a member's value, 0 if it is absent or null."""
    if value is None:
        return 0
    size = memoryview(value).nbytes
    return 0 if size == len(NULL) and bytes(value) == NULL else size
