"""Computes 64-bit hashes of names, equal in every process and release, for session affinity and
weighted routing; not for secrets.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

_MASK = 2**64 - 1


def hash64(text: str) -> int:
    """Return 64 bits of a text's hash, equal in every process."""
    return int.from_bytes(
        blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big"
    )


known_hash64 = lru_cache(maxsize=1024)(hash64)  # of deployment names; a policy has a few


def mixed(x: int) -> int:
    """Return a 64-bit number with its bits mixed, by the finalizer of splitmix64: it combines two
    hashes in a fifth of the time of hashing both.
    """
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
