"""Refuses request members whose names two servers may read in two ways, members that are too large
to decode, and members that ask for an answer later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from gateway.domain.policy.known_members import (
    KNOWN_MEMBERS,
    NAMED_MEMBERS,
    by_folded,
    folded,
)
from gateway.domain.policy.request_fields import ANSWERED_LATER, TEMPLATE_CONTROLS
from gateway.domain.request.request import RequestBody
from gateway.errors import InvalidRequest
from gateway.wire.members import MalformedJson, decode_members, locate

MAX_NAME_LETTERS = 256
# Members that are partly decoded into objects, with their maximum size in bytes.
MAX_BYTES = {"tools": 2**20, "stream_options": 2**10, "modalities": 2**10}
_TEMPLATE_ARGUMENTS = "chat_template_kwargs"
# The beginning of the type of an edit that writes a summary first; an escape could spell it.
_COMPACTS = (b"compact", b"\\u")
_CONTROLS = by_folded(TEMPLATE_CONTROLS)


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


def refuse_later(read: RequestBody) -> None:
    """Raise `InvalidRequest` if a request asks to be answered later: its usage would come after the
    answer, and nothing of it could be settled.
    """
    for name in sorted(ANSWERED_LATER & read.members.keys()):
        place = read.members[name]
        if read.body[place.start : place.end] not in (b"null", b"false"):
            raise InvalidRequest(
                f"'{name}' is not offered: the usage would come after the answer. Leave it out, "
                "and stream the answer if it takes long. Nothing was sent.",
                param=name,
            )


def template_control(members: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the first argument of a chat template that is not a scalar, or that the tokenizer
    takes; None if there is none. Raises `InvalidRequest`.
    """
    value = members.get(_TEMPLATE_ARGUMENTS)
    if value is None:
        return None
    for name, inner in unambiguous_members(_TEMPLATE_ARGUMENTS, value, _CONTROLS).items():
        if name in TEMPLATE_CONTROLS or bytes(inner)[:1] in (b"{", b"["):
            return name[:64]
    return None


def has_compaction(members: Mapping[str, msgspec.Raw]) -> bool:
    """Return True if the provider may write a summary first, which no maximum bounds."""
    management = members.get("context_management")
    return management is not None and any(word in bytes(management) for word in _COMPACTS)


def unambiguous_members(
    name: str, value: msgspec.Raw, named: Mapping[str, str]
) -> Mapping[str, msgspec.Raw]:
    """Refuse a JSON object that could be read in two ways, and return its members; empty for any
    other value. `named` are the known member names by their case-folded form.

    Raises `InvalidRequest` if it can be read in two ways.
    """
    encoded = bytes(value)
    if not encoded.startswith(b"{"):
        return {}
    members = decode_members(encoded)
    try:
        locate(encoded, members)
    except MalformedJson as broken:
        raise InvalidRequest(
            f"'{name}' could be read in two ways: {broken}. Nothing was sent.", param=name
        ) from None
    for inner in members:
        refuse_variant(inner, named, where=f"'{name}'")
    return members
