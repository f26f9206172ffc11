"""What the ledger keeps of an end user's name: a keyed hash, unless the team's policy says to keep
the name.

The hash (BLAKE2b with a key, RFC 7693 §2.9) tells one person from another within a team and names
nobody: without the pepper it cannot be made, so not be guessed either, and the same person has
another one in another team. A new pepper makes new hashes.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b

from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.policy import EndUserRule, Team

_PURPOSE = (
    b"tollgate end user v1"  # another use of the pepper has another label, so no key serves two
)
PREFIX, HEX_DIGITS = "eu_", 32


def end_user_key(pepper: Pepper) -> bytes:
    """Return the key for end users' names, 32 bytes, derived from the pepper for this alone."""
    return hmac.digest(pepper.secret, _PURPOSE, "sha256")


def recorded_end_user(name: str | None, team: Team, *, key: bytes) -> str | None:
    """Return what is kept of a request's `user`: the name, or `eu_` and 32 hex digits; None where
    there is none.
    """
    if name is None or team.end_user is EndUserRule.KEEP:
        return name
    # A name can hold half a surrogate pair, which UTF-8 has no bytes for.
    message = f"{team.name}\0{name}".encode("utf-8", "surrogatepass")
    return PREFIX + blake2b(message, key=key, digest_size=HEX_DIGITS // 2).hexdigest()
