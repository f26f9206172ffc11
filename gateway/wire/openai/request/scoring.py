"""Computes the size of a rerank or score request: its pairs of texts, and the bytes that the model
reads again with each pair.

A cross-encoder reads the query once with every document, so 100 documents cost 100 queries. Others
read each text once, which is less.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.domain.operation import Operation
from gateway.wire.openai.request.prompt_lists import items_in, size_of_value

# The members of the two sides of a pair: vLLM's four spellings (0.32,
# entrypoints/pooling/scoring/protocol.py), SGLang's `query` of a score and llama.cpp's `texts`.
FIRST: Mapping[Operation, tuple[str, ...]] = {
    Operation.RERANK: ("query",),
    Operation.SCORE: ("text_1", "data_1", "queries", "query"),
}
SECOND: Mapping[Operation, tuple[str, ...]] = {
    Operation.RERANK: ("documents", "texts"),
    Operation.SCORE: ("text_2", "data_2", "documents", "items"),
}


class _Parts(msgspec.Struct):
    """vLLM's form for pictures: an older one has a single object for all documents."""

    content: msgspec.Raw = msgspec.Raw()


_decode_parts = msgspec.json.Decoder(_Parts).decode


def count_texts(operation: Operation, members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the most prompts that the model reads: the pairs, and the first texts once more for a
    model that reads each text by itself. None if a list cannot be counted.
    """
    first = _most(FIRST[operation], members)
    second = _most(SECOND[operation], members)
    return None if first is None or second is None else first + max(first, second)


def repeated_bytes(operation: Operation, members: Mapping[str, msgspec.Raw]) -> int:
    """Return the bytes that the model may read again with each pair: all but the lists of several
    texts, each of which belongs to one pair.
    """
    divided = {
        name
        for name in (*FIRST[operation], *SECOND[operation])
        if name in members and (_count(members[name]) or 1) > 1
    }
    return sum(
        len(name) + size_of_value(value) for name, value in members.items() if name not in divided
    )


def _most(names: tuple[str, ...], members: Mapping[str, msgspec.Raw]) -> int | None:
    """Return the most texts that one of these members has, at least 1; None if one cannot be
    counted.
    """
    counts = [_count(members[name]) for name in names if name in members]
    return None if None in counts else max((n for n in counts if n is not None), default=1)


def _count(raw: msgspec.Raw) -> int | None:
    """Return the number of texts in a member: the items of a list, or of the `content` of an
    object, else one. None if a list is too large to be counted.
    """
    value = bytes(raw)
    if value[:1] == b"{":
        value = bytes(_decode_parts(value).content)
    if value[:1] != b"[":
        return 1
    count = items_in(value)
    return None if count is None else max(count, 1)
