"""How records lie in a segment and are found again: pure functions on bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.storage.journal.frames import (
    FRAME_BYTES,
    FRAME_MAGIC,
    SEGMENT_HEADER_BYTES,
    Frame,
    FrameKind,
    Gap,
    UnknownFormat,
    encode,
    header_gap,
    scan,
    segment_header,
    segment_seed,
)
from tests.journal.factories import key

JOURNAL = UUID(int=7)
SEED = segment_seed(JOURNAL, 1)

records = st.lists(
    st.tuples(
        st.sampled_from(FrameKind),
        st.tuples(st.uuids(), st.integers(0, 2**16 - 1)),
        # Bytes inside a payload that look like the beginning of a frame must not fool the search.
        st.one_of(st.binary(max_size=80), st.just(FRAME_MAGIC * 20)),
    ),
    max_size=8,
)


def frames_of(data: bytes, seed: int = SEED) -> list[Frame | Gap]:
    return list(scan(data, start=0, seed=seed))


@given(records=records, spare=st.integers(0, 40))
def test_written_records_are_read_back_in_order(
    records: list[tuple[FrameKind, tuple[UUID, int], bytes]], spare: int
) -> None:
    """For any payloads: records come back whole, in order, and the space behind them is nothing."""
    data = b"".join(encode(*record, seed=SEED) for record in records) + bytes(spare)
    assert [
        (frame.kind, frame.key, frame.payload)
        for frame in frames_of(data)
        if isinstance(frame, Frame)
    ] == records
    assert not [item for item in frames_of(data) if isinstance(item, Gap)]


@given(records=records.filter(bool), junk=st.binary(min_size=1, max_size=60), data=st.data())
def test_junk_between_records_is_one_gap(
    records: list[tuple[FrameKind, tuple[UUID, int], bytes]], junk: bytes, data: st.DataObject
) -> None:
    """A stretch that is no record costs the records around it nothing, and every byte of it is
    accounted for.
    """
    at = data.draw(st.integers(0, len(records) - 1))
    before = b"".join(encode(*record, seed=SEED) for record in records[:at])
    after = b"".join(encode(*record, seed=SEED) for record in records[at:])
    found = frames_of(before + junk + after)
    assert [item.payload for item in found if isinstance(item, Frame)] == [
        payload for _, _, payload in records
    ]
    assert [item for item in found if isinstance(item, Gap)] == [
        Gap(len(before), len(before) + len(junk), is_tail=False)
    ]


def test_a_hole_of_zeros_hides_nothing_behind_it() -> None:
    """After a power cut a later page may be on the disk and an earlier one not: zeros are an end
    only up to the end.
    """
    first, second = (
        encode(FrameKind.SETTLEMENT, key(number), b"paid", seed=SEED) for number in (1, 2)
    )
    found = frames_of(first + bytes(len(first)) + second + bytes(99))
    assert [type(item) for item in found] == [Frame, Gap, Frame]


def test_a_false_frame_start_is_skipped() -> None:
    """Damage may leave the first bytes of a frame whole: the search goes on behind them."""
    frame = encode(FrameKind.SETTLEMENT, key(1), b"paid", seed=SEED)
    for junk in (frame[:7], FRAME_MAGIC * 3, frame[:-1] + b"!", b"x" + frame[:20] + FRAME_MAGIC):
        assert frames_of(junk + frame) == [
            Gap(0, len(junk), is_tail=False),
            Frame(
                FrameKind.SETTLEMENT, key(1)[0].bytes, key(1)[1], b"paid", len(junk) + len(frame)
            ),
        ]


def test_a_frame_of_another_segment_is_ignored() -> None:
    """A copied or recycled file must not book old events again."""
    frame = encode(FrameKind.SETTLEMENT, key(1), b"paid", seed=segment_seed(JOURNAL, 2))
    assert frames_of(frame) == [Gap(0, len(frame), is_tail=True)]
    assert frames_of(frame, segment_seed(UUID(int=8), 2)) == [Gap(0, len(frame), is_tail=True)]


def test_a_record_of_no_known_kind_is_kept_aside() -> None:
    """An unknown record is not thrown away in silence."""
    frame = encode(3, key(1), b"?", seed=SEED)  # type: ignore[arg-type]  # a kind that is not there yet
    assert frames_of(frame) == [Gap(0, len(frame), is_tail=True)]


def test_a_damaged_header_is_a_gap_and_no_end() -> None:
    """Reading does not depend on the header: all in it is known from the file's name."""
    header = segment_header(JOURNAL, 1)
    assert header_gap(header, JOURNAL, 1) is None
    assert header_gap(bytes(SEGMENT_HEADER_BYTES), JOURNAL, 1) is None
    assert header_gap(b"", JOURNAL, 1) is None
    assert header_gap(b"x" + header[1:] + b"more", JOURNAL, 1) == Gap(
        0, SEGMENT_HEADER_BYTES, is_tail=False
    )
    assert header_gap(header[:5], JOURNAL, 1) == Gap(0, 5, is_tail=True)
    assert header_gap(header, JOURNAL, 2) == Gap(0, SEGMENT_HEADER_BYTES, is_tail=True)


def test_a_later_format_is_left_alone() -> None:
    """After a roll-back of the product the newer journal must wait for the newer product, not be
    torn apart.
    """
    from struct import pack
    from zlib import crc32

    later = b"tollgate" + pack("<I16sQ", 2, JOURNAL.bytes, 1)
    with pytest.raises(UnknownFormat):
        header_gap(later + pack("<I", crc32(later)), JOURNAL, 1)


def test_the_documented_sizes_are_the_real_ones() -> None:
    """docs/reference/journal.md names them."""
    assert (FRAME_BYTES, SEGMENT_HEADER_BYTES) == (29, 40)
