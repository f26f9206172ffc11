"""Declares how many choices an answer may have, and decodes lists up to that
maximum: an upstream may answer with millions of items, and each takes up to a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec

MAX_CHOICES = 4_096  # 2,048 prompts with two answers each; also for the items of a response

Item = TypeVar("Item", bound=msgspec.Struct)


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
