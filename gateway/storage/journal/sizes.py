"""Computes a journal's capacities from the size of a segment and the number of segments; touches no
disk.
"""

from __future__ import annotations

from gateway.storage.journal.frames import FRAME_BYTES, SEGMENT_HEADER_BYTES
from gateway.storage.journal.segments import SEGMENT_BYTES

LARGEST_SHARE = 64  # the largest payload is 1/64 of a segment: 128 KiB of 8 MiB


class Sizes:
    """The sizes of one journal, computed once because each request needs them."""

    def __init__(self, segment_bytes: int, max_segments: int) -> None:
        """Compute a journal's capacities from a segment's size and the number of segments."""
        self.segment_bytes = segment_bytes
        self.max_segments = max_segments
        self.max_bytes = segment_bytes * max_segments
        self.max_payload_bytes = segment_bytes // LARGEST_SHARE
        self.max_frame_bytes = FRAME_BYTES + self.max_payload_bytes
        # The bytes that fit into an empty segment for sure, whatever the sizes of the frames.
        self.room_bytes = self.room_behind(SEGMENT_HEADER_BYTES)
        # Kept free of reservations, for settlements that are longer than their reservation.
        self.ballast_bytes = 2 * self.max_frame_bytes

    def room_behind(self, tail: int) -> int:
        """Return the bytes that fit after `tail` for sure: the last bytes may be too few for the
        next frame.
        """
        return max(0, self.segment_bytes - tail - self.max_frame_bytes + 1)


def capacity_requests(
    max_bytes: int, bytes_per_request: int, *, segment_bytes: int = SEGMENT_BYTES
) -> int:
    """Return the number of settled requests that a journal of `max_bytes` holds.

    `bytes_per_request` is the payload of an intent and its settlement together.
    """
    sizes = Sizes(segment_bytes, max_bytes // segment_bytes)
    room_bytes = sizes.max_segments * sizes.room_bytes - sizes.ballast_bytes
    return max(0, room_bytes // (bytes_per_request + 2 * FRAME_BYTES))
