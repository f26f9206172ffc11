"""Encodes journal records as frames with checksums, and finds the records in a segment's bytes,
damaged ones included; does no I/O.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from struct import Struct
from uuid import UUID
from zlib import crc32

import msgspec

from gateway.domain.ids import id_of
from gateway.domain.ledger.usage_event import Key

VERSION = 1
# No UTF-8 text contains 0xFF, so a JSON payload cannot look like the start of a frame.
FRAME_MAGIC = b"\xff\xfa"
SEGMENT_MAGIC = b"tollgate"

_PREFIX = Struct("<2sII")  # magic, payload bytes, CRC-32 of all bytes after it
_HEAD = Struct("<BH16s")  # kind, attempt, request id
_SEGMENT = Struct("<8sI16sQ")  # magic, version, journal id, segment number
_CRC = Struct("<I")

FRAME_BYTES = _PREFIX.size + _HEAD.size
SEGMENT_HEADER_BYTES = _SEGMENT.size + _CRC.size


class FrameKind(IntEnum):
    """The type of a record: an attempt's intent or its settlement."""

    INTENT = 1
    SETTLEMENT = 2


_KINDS = frozenset(FrameKind)


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One complete record; `end` is the offset after it."""

    kind: int
    id_bytes: bytes
    attempt: int
    payload: bytes
    end: int

    @property
    def key(self) -> Key:
        """Return the key of the record's attempt. Computed on demand: the writer skips every
        other record.
        """
        return (id_of(self.id_bytes), self.attempt)


class Gap(msgspec.Struct, frozen=True, gc=False):
    """Bytes from `start` up to `end` that are not a record.

    `is_tail`: no record follows in this segment.
    """

    start: int
    end: int
    is_tail: bool


class UnknownFormat(Exception):
    """A segment of another version of Tollgate: leave it alone, do not repair it."""


def encode(kind: FrameKind, key: Key, payload: bytes, *, seed: int) -> bytes:
    """Return the frame of one record. `seed` is its segment's seed."""
    request_id, attempt = key
    head = _HEAD.pack(kind, attempt, request_id.bytes)
    prefix = _PREFIX.pack(FRAME_MAGIC, len(payload), crc32(payload, crc32(head, seed)))
    return b"".join((prefix, head, payload))


def segment_seed(journal_id: UUID, number: int) -> int:
    """Return the initial value of a segment's checksums: frames of other segments or journals do
    not match it.
    """
    return crc32(_SEGMENT.pack(SEGMENT_MAGIC, VERSION, journal_id.bytes, number))


def segment_header(journal_id: UUID, number: int) -> bytes:
    """Return the first bytes of a segment, for people and for later versions; reading does not
    depend on them.
    """
    header = _SEGMENT.pack(SEGMENT_MAGIC, VERSION, journal_id.bytes, number)
    return header + _CRC.pack(crc32(header))


def scan(data: bytes, *, start: int, seed: int, offset: int = 0) -> Iterator[Frame | Gap]:
    """Yield the records in a segment's `data` from its byte `start` on, and the gaps between them.

    `offset` is the position of `data` in its segment; the yielded positions are relative to the
    segment. Zeros up to the end are space that is not written yet. Any other bytes that are not a
    record are a gap.
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
    """Return the segment's header as a gap if it is damaged. Raises `UnknownFormat`.

    A header of zeros belongs to a segment that a crash interrupted before its start.
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
    """Return the record that begins at a byte of `data`, or None if the bytes there are not a
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
    """Return the first intact record after a byte of `data`, to go on behind damaged bytes; None if
    there is none.
    """
    candidate = data.find(FRAME_MAGIC, at + 1)
    while candidate >= 0:
        frame = _frame_at(data, candidate, seed, offset)
        if frame is not None:
            return frame
        candidate = data.find(FRAME_MAGIC, candidate + 1)
    return None
