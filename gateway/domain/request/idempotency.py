"""Idempotency keys: what is kept of a keyed request, and when it may be tried again.

Kept are two keyed hashes (HMAC-SHA-256), neither the key's text, in which a caller may have put a
secret, nor the body. Without the pepper they cannot be made, so not be guessed either. A new pepper
makes new hashes: what was claimed under the old one is not recognised any more.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from gateway.domain.policy.api_keys import Pepper

KEPT = timedelta(hours=24)  # a key's claim, from when it was made
HASH_BYTES = 32
_PURPOSE = (
    b"tollgate idempotency v1"  # another use of the pepper has another label, so no key serves two
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One request's right to be sent under its key, which is its team's alone."""

    team: str
    key_hash: bytes
    request_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The claim that was there before: whose, for the same body or not, and whether that request
    has ended.
    """

    request_id: UUID
    is_same_body: bool
    is_finished: bool


def claim_secret(pepper: Pepper) -> bytes:
    """Return the secret of the hashes, 32 bytes, derived from the pepper for this alone."""
    return hmac.digest(pepper.secret, _PURPOSE, "sha256")


def key_hash(team: str, key: str, *, secret: bytes) -> bytes:
    """Return what is kept of a key. Two teams' same key has two hashes."""
    return hmac.digest(secret, f"key\0{team}\0{key}".encode("utf-8", "surrogatepass"), "sha256")


def body_hash(endpoint: str, body: bytes, *, secret: bytes) -> bytes:
    """Return what tells a request from another under the same key: its path and its body, byte for
    byte.
    """
    made = hmac.new(secret, f"body\0{endpoint}\0".encode(), sha256)
    made.update(body)  # not joined with what is before it: that would copy megabytes
    return made.digest()
