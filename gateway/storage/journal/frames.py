"""Frames: how one record lies in a segment, and how records are found again among damaged bytes.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from uuid import UUID
from zlib import crc32

import msgspec

from gateway.domain.ledger.usage_event import Key

VERSION = 1
# 0xFF is in no UTF-8 text, so that no JSON payload can hold what looks like the start of a frame.
FRAME_MAGIC = b"\xff\xfa"
SEGMENT_MAGIC = b"tollgate"

_PREFIX = Struct("<2sII")  # magic, payload bytes, CRC-32 of all that follows
_HEAD = Struct("<BH16s")  # kind, attempt, request id
_SEGMENT = Struct("<8sI16sQ")  # magic, version, journal id, segment number
_CRC = Struct("<I")

FRAME_BYTES = _PREFIX.size + _HEAD.size
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size


class FrameKind(IntEnum):
    """What a record says of its attempt."""

    INTENT = 1
    SETTLEMENT = 2


_KINDS = frozenset(FrameKind)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One whole record; `end` is the offset behind it."""

    kind: int
    id_bytes: bytes
    attempt: int
    payload: bytes
    end: int

    @property
    def key(self) -> Key:
        """Whose record it is. Made when it is asked for: the writer skips every other record."""
        return (UUID(bytes=self.id_bytes), self.attempt)


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Bytes that are no record, from `start` up to `end`.

    `is_tail`: no record follows in this segment.
    """

    start: int
    end: int
    is_tail: bool


class UnknownFormat(Exception):
    """A segment of another version of Tollgate: to be left alone, not repaired."""


def encode(kind: FrameKind, key: Key, payload: bytes, *, seed: int) -> bytes:
    """Return the frame of one record. `seed` is its segment's."""
    request_id, attempt = key
    head = _HEAD.pack(kind, attempt, request_id.bytes)
    prefix = _PREFIX.pack(FRAME_MAGIC, len(payload), crc32(payload, crc32(head, seed)))
    return b"".join((prefix, head, payload))


def segment_seed(journal_id: UUID, number: int) -> int:
    """Where the checksums of a segment start: a frame of another segment or journal is no frame
    here.
    """
    return crc32(_SEGMENT.pack(SEGMENT_MAGIC, VERSION, journal_id.bytes, number))


def segment_header(journal_id: UUID, number: int) -> bytes:
    """Return the first bytes of a segment, for people and for later versions; reading does not
    depend on them.
    """
    header = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, journal_id.bytes, number)
    return header + _CRC.pack(crc32(header))


def scan(data: bytes, *, start: int, seed: int, offset: int = 0) -> Iterator[Frame | Gap]:
    """Yield the records in `data` from its byte `start` on, and what lies between them.

    `offset` is where `data` begins in its segment: what is yielded tells places in the segment.
    Zeros up to the end are space not written yet. Any other bytes that are no record are a gap.
    """
    at = start
    while True:
        frame = _frame_at(data, at, seed, offset)
        if frame is None:
            frame = _next_frame(data, at, seed, offset)
            last = (
                len(data.rstrip(b"\0"))
                if frame is None
                else frame.end - offset - FRAME_BYTES - len(frame.payload)
            )
            if last > at:
                yield Gap(at + offset, last + offset, is_tail=frame is None)
            if frame is None:
                return
        yield frame
        at = frame.end - offset


def header_gap(data: bytes, journal_id: UUID, number: int) -> Gap | None:
    """Return the segment's header as a gap where it is damaged. Raises `UnknownFormat`.

    A header of zeros is that of a segment which a crash kept from being begun.
    """
    header = data[:SEGMENT_HEADER_BYTES]
    if header == segment_header(journal_id, number) or not header.strip(b"\0"):
        return None
    if header.startswith(SEGMENT_MAGIC) and header.endswith(
        _CRC.pack(crc32(header[: _SEGMENT.size]))
    ):
        version = int.from_bytes(header[len(SEGMENT_MAGIC) :][:4], "little")
        if version != VERSION:
            raise UnknownFormat(f"format {version}")
    return Gap(0, len(header), is_tail=not data[SEGMENT_HEADER_BYTES:].strip(b"\0"))


def _frame_at(data: bytes, at: int, seed: int, offset: int) -> Frame | None:
    """Return the record that begins at a byte of `data`, or None where the bytes there are no
    record.
    """
    body = at + FRAME_BYTES
    if body > len(data):
        return None
    magic, size, checksum = _PREFIX.unpack_from(data, at)
    end = body + size
    if magic != FRAME_MAGIC or end > len(data):
        return None
    head, payload = data[at + _PREFIX.size : body], data[body:end]
    if crc32(payload, crc32(head, seed)) != checksum:
        return None
    kind, attempt, request_id = _HEAD.unpack(head)
    if kind not in _KINDS:
        return None
    return Frame(kind, request_id, attempt, payload, end + offset)


def _next_frame(data: bytes, at: int, seed: int, offset: int) -> Frame | None:
    """Return the first record that begins behind a byte of `data`."""
    candidate = data.find(FRAME_MAGIC, at + 1)
    while candidate >= 0:
        frame = _frame_at(data, candidate, seed, offset)
        if frame is not None:
            return frame
        candidate = data.find(FRAME_MAGIC, candidate + 1)
    return None
