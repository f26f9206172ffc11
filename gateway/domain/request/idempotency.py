"""Computes the keyed hashes of idempotency keys and bodies, and declares their claims;
`storage.budgets.idempotency` makes the claims.

Two keyed hashes (HMAC-SHA-256) are stored. The key's text, in which a caller may have put a secret,
and the body are not. Without the pepper the hashes cannot be computed, so they cannot be guessed
either. A new pepper makes new hashes, so claims under the old one are no longer recognised.
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
    # each use of the pepper has another label, so no derived key serves two
    b"tollgate idempotency v1"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One request's right to be sent under its key, which belongs to its team alone."""

    team: str
    key_hash: bytes
    request_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """The earlier claim: its request, whether the body is the same, and whether that request has
    ended.
    """

    request_id: UUID
    is_same_body: bool
    is_finished: bool


def claim_secret(pepper: Pepper) -> bytes:
    """Return the secret of the idempotency hashes, 32 bytes, derived from the pepper for this use
    alone.
    """
    return pepper.derived(_PURPOSE)


def key_hash(team: str, key: str, *, secret: bytes) -> bytes:
    """Return an idempotency key's stored form. The same key of two teams has two hashes."""
    return hmac.digest(secret, f"key\0{team}\0{key}".encode("utf-8", "surrogatepass"), "sha256")


def body_hash(endpoint: str, body: bytes, *, secret: bytes) -> bytes:
    """Return the hash that distinguishes requests under the same key: of the path and the exact
    body.
    """
    made = hmac.new(secret, f"body\0{endpoint}\0".encode(), sha256)
    made.update(body)  # not joined with the path: that would copy megabytes
    return made.digest()
