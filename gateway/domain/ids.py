"""Makes UUIDv7 request ids from a given time and given random bytes, and reads the time back out of
an id.

A request's id is fixed before anything is sent. Its millisecond is the event's `occurred_at`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from uuid import UUID, SafeUUID

from msgspec import to_builtins

_set, _UNKNOWN = object.__setattr__, SafeUUID.unknown  # as `UUID.__init__`: an id refuses changes
RANDOM_BYTES = 10  # of one id
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime(3000, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


def uuid7(unix_ms: int, random: bytes) -> UUID:
    """Return the UUIDv7 (RFC 9562 §5.7) of a moment in Unix milliseconds and `RANDOM_BYTES` random
    bytes.
    """
    tail = int.from_bytes(random, "big")
    value = (
        (unix_ms & (1 << 48) - 1) << 80
        | 0x7 << 76
        | (tail >> 68) << 64
        | 0b10 << 62
        | tail & (1 << 62) - 1
    )
    return _made(value)


def id_of(id_bytes: bytes) -> UUID:
    """Return the id of its 16 bytes."""
    return _made(int.from_bytes(id_bytes, "big"))


def _made(value: int) -> UUID:
    """Return the id of a number below 2**128."""
    made = UUID.__new__(UUID)
    _set(made, "int", value)  # UUID(int=…) checks all its arguments, at ten times the instructions
    _set(made, "is_safe", _UNKNOWN)
    return made


def text_of(request_id: UUID) -> str:
    """Return a request id in its header form, in a quarter of the time that `str` takes."""
    text: str = to_builtins(request_id)
    return text


def has_moment(request_id: UUID) -> bool:
    """Return True if the moment inside an id is before the year 3000, as the ledger requires. A
    UUIDv7 can hold the year 10889, which no date can.
    """
    return request_id.int >> 80 < _LAST_MS


def occurred_at(request_id: UUID) -> datetime:
    """Return the moment inside a UUIDv7, in UTC, to the millisecond.

    Raises `OverflowError` for one that does not satisfy `has_moment`.
    """
    return _EPOCH + timedelta(milliseconds=request_id.int >> 80)


def day_of(request_id: UUID) -> date:
    """Return the UTC day of the moment inside a UUIDv7."""
    return occurred_at(request_id).date()
