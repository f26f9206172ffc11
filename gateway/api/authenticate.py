"""Authenticates a request's api key against the snapshot in memory, and asks Postgres once more
before refusing a key that may be new.

Only this module reads callers' credentials.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from datetime import datetime
from hashlib import blake2b

from gateway.domain.policy.api_keys import PATTERN, KeyRecord, Pepper, key_id_of
from gateway.domain.request.request import Caller
from gateway.errors import InvalidApiKey, InvalidRequest, KeyNotSeen, Unavailable
from gateway.services.snapshot.snapshot import Snapshot, SnapshotHolder

_DUMMY = Pepper(b"no such key")
_HOW = "Send 'Authorization: Bearer tg_…'. A team's admin makes keys with: tollgate key create TEAM"
_WRONG = f"The API key is not valid: unknown, revoked or mistyped. {_HOW}"
_UNCHECKED = "The key cannot be checked: the database is away. Try again shortly."
_HEADERS = frozenset({b"authorization", b"x-api-key", b"api-key"})


async def caller_of(
    headers: Iterable[tuple[bytes, bytes]],
    holder: SnapshotHolder,
    *,
    now: Callable[[], datetime],
    allows_demo: bool,
) -> Caller:
    """Return the authenticated caller like `authenticate`, but ask Postgres once before refusing a
    key that may be newer than the snapshot.
    """
    try:
        return authenticate(headers, holder, now=now, allows_demo=allows_demo)
    except KeyNotSeen:
        if not await holder.confirm():
            raise Unavailable(_UNCHECKED, retry_after_s=5) from None
    return authenticate(headers, holder, now=now, allows_demo=allows_demo)


def authenticate(
    headers: Iterable[tuple[bytes, bytes]],
    holder: SnapshotHolder,
    *,
    now: Callable[[], datetime],
    allows_demo: bool,
) -> Caller:
    """Return the caller whom an api key in the headers identifies, by the snapshot alone.

    Raises `InvalidApiKey`, or `Unavailable` if the validity cannot be known.

    Raises `KeyNotSeen` for a key that may be newer than the snapshot. Every wrong key gets the same
    answer, so that it reveals nothing to a person without the key.
    """
    key = _presented(headers)
    if key is None:
        raise InvalidApiKey(f"No API key was sent. {_HOW}")
    snapshot = holder.require()
    fingerprint = blake2b(key.encode(), digest_size=32).digest()  # the key itself is never stored
    record = snapshot.checked.get(fingerprint)
    if record is None:
        record = snapshot.checked[fingerprint] = _checked(key, snapshot, holder)
    if record.expires_at is not None and record.expires_at <= holder.now(now):
        raise _refused(record, f"The API key {record.key_id} has expired. {_HOW}")
    if record.is_paused:
        raise _refused(
            record,
            f"The API key {record.key_id} is paused. A team's admin can resume it, or make "
            "another.",
        )
    if record.is_demo and not allows_demo:
        raise _refused(
            record,
            f"The API key {record.key_id} is a demo key, and this gateway takes none. {_HOW}",
        )
    if record.team not in snapshot.policy.policy.teams:
        raise _refused(
            record,
            f"The key's team {record.team} is not in policy version {snapshot.policy.version}. Ask "
            "an admin to add it.",
        )
    return Caller(key_id=record.key_id, team=record.team, project=record.project)


def _checked(key: str, snapshot: Snapshot, holder: SnapshotHolder) -> KeyRecord:
    """Return the stored record of a presented key if it is valid. Raises the errors of
    `authenticate`.
    """
    named = PATTERN.fullmatch(key)
    record = snapshot.keys.get(named[1]) if named else None
    pepper = snapshot.peppers.get(record.pepper_id) if record else None
    digest = (pepper or _DUMMY).digest(key)  # the same work for known and unknown keys
    is_right = hmac.compare_digest(digest, record.digest if record else bytes(32))
    if record is not None and pepper is not None and is_right:
        return record
    # The checksum only separates a typo from a possibly new key. A key with the right digest is
    # valid in any case.
    if key_id_of(key) is not None and record is None:
        if holder.is_stale:
            raise Unavailable(_UNCHECKED, retry_after_s=5)
        raise KeyNotSeen(_WRONG)
    raise InvalidApiKey(_WRONG)


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the api key that a request's headers carry, None without one. Raises `InvalidRequest`
    for a header that is sent twice.
    """
    found, seen = None, []  # a proxy in front may have checked the other header
    for name, value in headers:
        if name in _HEADERS:
            if name in seen:
                raise InvalidRequest(
                    f"The header {name.decode()} is sent more than once. Send one API key, once."
                )
            seen.append(name)
            if found is None:
                found = value.decode("latin-1").strip()
    if found is None:
        return None
    scheme, _, token = found.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else found


def _refused(record: KeyRecord, message: str) -> InvalidApiKey:
    """Return the error for a key that is right and may not be used."""
    error = InvalidApiKey(message)
    error.of_team, error.of_key = record.team, record.key_id
    return error
