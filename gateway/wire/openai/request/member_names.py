"""Refuses request members whose names two servers may read in two ways, and members that are too
large to decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gateway.domain.policy.known_members import KNOWN_MEMBERS, NAMED_MEMBERS, folded
from gateway.errors import InvalidRequest

MAX_NAME_LETTERS = 256
# Members that are partly decoded into objects, with their maximum size in bytes.
MAX_BYTES = {"tools": 2**20, "stream_options": 2**10, "modalities": 2**10}


def check_names(names: Iterable[str]) -> None:
    """Raise `InvalidRequest` if another parser may take a request member's name for a member that
    matters.
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
    """Raise `InvalidRequest` if a name differs only by case from one of `named`, whose keys are
    case-folded.
    """
    meant = named.get(name.lower() if name.isascii() else folded(name), name)
    if meant != name:
        raise InvalidRequest(
            f"{where} has the member '{name[:64]}'. Some servers read it as '{meant}', others do "
            f"not, so it could be read in two ways. Nothing was sent. Write '{meant}', or leave it "
            "out.",
            param=meant,
        )


def check_sizes(members: Mapping[str, msgspec.Raw]) -> None:
    """Raise `InvalidRequest` if a member that has to be decoded is too large for that."""
    for name, most in MAX_BYTES.items():
        value = members.get(name)
        if value is not None and (size := memoryview(value).nbytes) > most:
            raise InvalidRequest(
                f"'{name}' has {size:,} bytes; at most {most:,} are read. Nothing was sent. "
                "Send less.",
                param=name,
            )
