"""Makes the salt by which an engine keeps the cached prompts of each team apart."""

from __future__ import annotations

import hmac
from functools import lru_cache
from hashlib import sha256

MEMBER = "cache_salt"


@lru_cache(maxsize=1024)  # a policy has a few teams
def salt_of(key: bytes, team: str) -> str:
    """Return a team's salt. Without it a team could time cached prefixes and detect another team's
    prompts. `key` is secret, so that no team can guess another's salt.
    """
    return hmac.new(key, team.encode(), sha256).hexdigest()[:32]
