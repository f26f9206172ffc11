"""Carries the proof of another provider's thought in a reasoning item's `encrypted_content`, which
clients of responses send back unread.
"""

from __future__ import annotations

from gateway.wire.translation.conversation import Thought

_SIGNATURE, _SEALED = "tollgate.signature.", "tollgate.sealed."


def encrypted(*, signature: str, sealed: str) -> str | None:
    """Return the `encrypted_content` of a thought; None if it has no proof."""
    if sealed:
        return _SEALED + sealed
    return _SIGNATURE + signature if signature else None


def thought_of(text: str, encrypted_content: str) -> Thought | None:
    """Return the thought that the gateway encoded; None for a provider's own encryption."""
    if encrypted_content.startswith(_SEALED):
        return Thought(sealed=encrypted_content.removeprefix(_SEALED))
    if encrypted_content.startswith(_SIGNATURE):
        return Thought(text=text, signature=encrypted_content.removeprefix(_SIGNATURE))
    return None
