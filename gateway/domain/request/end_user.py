"""Computes the ledger's form of an end user's name: a keyed hash, or the name itself if the team's
policy keeps it.

The hash (BLAKE2b with a key, RFC 7693 §2.9) distinguishes persons within a team and names none.
Without the pepper it cannot be computed, so it cannot be guessed either. The same person has
another hash in another team. A new pepper makes new hashes.
"""

from __future__ import annotations

from hashlib import blake2b

from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.policy import EndUserRule, Team

_PURPOSE = (
    # each use of the pepper has another label, so no derived key serves two
    b"tollgate end user v1"
)
PREFIX, HEX_DIGITS = "eu_", 32


def end_user_key(pepper: Pepper) -> bytes:
    """Return the key for end users' names, 32 bytes, derived from the pepper for this use alone."""
    return pepper.derived(_PURPOSE)


def recorded_end_user(name: str | None, team: Team, *, key: bytes) -> str | None:
    """Return the recorded form of a request's `user`: the name, or `eu_` and 32 hex digits; None
    without one.
    """
    if name is None or team.end_user is EndUserRule.KEEP:
        return name
    # A name can contain half a surrogate pair, which UTF-8 cannot encode.
    message = f"{team.name}\0{name}".encode("utf-8", "surrogatepass")
    return PREFIX + blake2b(message, key=key, digest_size=HEX_DIGITS // 2).hexdigest()
