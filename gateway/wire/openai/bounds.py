"""Checks on an answer's bytes whether it is small enough to be decoded into objects, and decodes
lists up to a maximum.

An upstream may answer with millions of values, and each takes up to a microsecond on the event
loop. Skipping a value takes a hundredth of that. So values are counted on their bytes before
decoding; an answer beyond the bounds passes on as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

SMALL_BYTES = 16 * 1024  # fewer bytes take a few milliseconds, whatever they contain
MAX_DECODED_BYTES = 2**20
MAX_DECODED_VALUES = 20_000  # objects and arrays; members of objects count separately
MAX_CHOICES = 4_096  # 2,048 prompts with two answers each; also for the items of a response
MAX_USAGE_BYTES = 64 * 1024  # vLLM's longest usage has 600

Item = TypeVar("Item", bound=msgspec.Struct)


def is_quick(value: msgspec.Raw | bytes, *, most_bytes: int = MAX_DECODED_BYTES) -> bool:
    """Return True if a JSON value has few enough bytes, objects, lists and members to be decoded
    into objects within about 20 ms for each MiB.

    They are counted on the bytes, so text that looks like one counts too.
    """
    size = memoryview(value).nbytes
    if size < SMALL_BYTES:
        return True
    if size > most_bytes:
        return False
    encoded = bytes(value)
    return (
        encoded.count(b"{") + encoded.count(b"[") <= MAX_DECODED_VALUES
        and encoded.count(b'":') <= MAX_DECODED_VALUES
    )


def decode_few(value: msgspec.Raw, item: type[Item]) -> list[Item]:
    """Return the decoded items of a list of at most `MAX_CHOICES`.

    Stops at the first surplus item: a bound in the list's own type would be checked after all items
    were created. Raises `msgspec.DecodeError` for such a list, and if the value is not a list.
    """
    return [
        found
        for found in msgspec.structs.astuple(_bounded_list_decoder(item)(value))
        if found is not None
    ]


@cache  # takes 30 ms to create, and most processes never need it
def _bounded_list_decoder(item: type[msgspec.Struct]) -> Callable[[msgspec.Raw], Any]:
    """Return a function that decodes a list of at most `MAX_CHOICES` items and fails on a longer
    one.
    """
    fields: list[tuple[str, Any, Any]] = [
        (f"item_{place}", item | None, None) for place in range(MAX_CHOICES)
    ]
    # Extra items of an array are skipped, unless unknown fields are forbidden: then the first one
    # is an error.
    few = msgspec.defstruct("Few", fields, array_like=True, forbid_unknown_fields=True)
    return msgspec.json.Decoder(few).decode
