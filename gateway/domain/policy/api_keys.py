"""Makes and checks the text of API keys (`tg_<kid>_<secret><checksum>`), computes their digests,
and declares their records; stores none.

`kid` is public and finds the record; `secret` is 190 bits; the checksum (CRC-32, base 62) rejects a
typo without a look-up. Only the HMAC-SHA-256 of the whole key under a pepper is stored. Secret
scanners may use `PATTERN`.
"""

from __future__ import annotations

import hmac
import re
from binascii import crc32
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
KID_LENGTH, SECRET_LENGTH, CHECKSUM_LENGTH = 10, 32, 6
RANDOM_BYTES = 64  # the input of `mint`: more than enough entropy for kid and secret together
PATTERN = re.compile(
    rf"tg_([0-9A-Za-z]{{{KID_LENGTH}}})_([0-9A-Za-z]{{{SECRET_LENGTH + CHECKSUM_LENGTH}}})"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """The stored record of a key.

    `digest` is the HMAC under the pepper whose fingerprint is `pepper_id`.
    """

    key_id: str
    team: str
    project: str | None
    digest: bytes
    pepper_id: str
    expires_at: datetime | None = None
    is_demo: bool = False
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Pepper:
    """A secret that never enters the database. Two may be live while one replaces the other."""

    secret: bytes

    @property
    def pepper_id(self) -> str:
        """Return a fingerprint that identifies a digest's pepper and reveals nothing of it."""
        return hmac.new(self.secret, b"tollgate pepper id", sha256).hexdigest()[:16]

    def derived(self, purpose: bytes) -> bytes:
        """Return a key for one other use, 32 bytes: it reveals neither the pepper nor another
        use's key.
        """
        return hmac.digest(self.secret, purpose, "sha256")

    def digest(self, key: str) -> bytes:
        """Return the HMAC-SHA-256 of an API key under this pepper, 32 bytes."""
        return hmac.digest(self.secret, key.encode(), "sha256")


def mint(random: bytes) -> str:
    """Return a new API key made of `RANDOM_BYTES` random bytes."""
    assert len(random) == RANDOM_BYTES, "a key from less entropy could be guessed"
    letters = _base62(int.from_bytes(random, "big"), KID_LENGTH + SECRET_LENGTH)
    head = f"tg_{letters[:KID_LENGTH]}_{letters[KID_LENGTH:]}"
    return head + _checksum(head)


def key_id_of(key: str) -> str | None:
    """Return the public id inside a well-formed key, or None for a typo or another kind of
    token.
    """
    match = PATTERN.fullmatch(key)
    if match is None or _checksum(key[:-CHECKSUM_LENGTH]) != key[-CHECKSUM_LENGTH:]:
        return None
    return match[1]


def _checksum(head: str) -> str:
    """Return the checksum at the end of an API key, by which a mistyped key is found without a
    database.
    """
    return _base62(crc32(head.encode()), CHECKSUM_LENGTH)


def _base62(number: int, length: int) -> str:
    """Return a number as base-62 text of a fixed length."""
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(digits)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A key and its history. `replaces` is the key that a rotation replaced with this one."""

    record: KeyRecord
    created_at: datetime
    created_by: str
    revoked_at: datetime | None
    revoked_by: str | None
    paused_at: datetime | None = None
    paused_by: str | None = None
    replaces: str | None = None

    def state(self, now: datetime) -> str:
        """Return the key's state at a moment: live, paused, expired or revoked."""
        if self.revoked_at is not None:
            return "revoked"
        if self.record.expires_at is not None and self.record.expires_at <= now:
            return "expired"
        return "paused" if self.record.is_paused else "live"
