"""Reports errors in the names of a policy document: one that occurs twice, or that refers to a
missing thing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.domain.words import suggestion
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.yaml_blocks.blocks import Block
from gateway.wire.yaml_blocks.findings import Spot


def check_unique(block: Block, listed: str, kind: str, *, field: str = "name") -> None:
    """Report an error for each name that a list has twice."""
    first: dict[str, Spot] = {}
    for one in block.blocks_of(listed):
        name = one.of(field)
        if name in first:
            place = first[name].place
            one.error(field, f"{kind} '{name}' is there twice (first in {place})")
        elif name is not None:
            first[name] = one.spot_of(field)


def names_of(document: PolicyDocument, listed: str) -> Iterator[str]:
    """Yield the readable names of the blocks in one list of the document, repeated ones
    included.
    """
    return (block.of("name") for block in document.blocks_of(listed) if block.of("name"))


def known_names(document: PolicyDocument, listed: str) -> frozenset[str] | None:
    """Return the names in a list of the document, None if the list cannot be read."""
    return None if document.of(listed) is None else frozenset(names_of(document, listed))


def check_references(block: Block, field: str, kind: str, known: frozenset[str] | None) -> None:
    """Report an error for each listed name of a thing that is not in `known`, and for each that is
    listed twice.
    """
    if known is None:
        return
    seen = set[str]()
    for spot, name in block.items_of(field):
        if name not in known:
            spot.error(f"there is no {kind} '{name}'{suggestion(name, known)}")
        elif name in seen:
            spot.error(f"{kind} '{name}' is listed twice here; remove one")
        seen.add(name)
