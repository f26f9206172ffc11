"""One recorded usage of each shape in five dialects is read as an outside project's extractor reads
it, or differs as tests/oracles/recorded_differences.json says. `make oracles` reads all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracles.recorded import FILE, LISTED, Recorded, recorded, table

PAGE = Path(__file__).parents[2] / "docs" / "provider-facts.md"
SHAPES = {one.shape: one for one in recorded()}
DIFFERING = {(entry["dialect"], entry["count"]) for entry in LISTED}


@pytest.mark.parametrize("one", SHAPES.values(), ids=range(len(SHAPES)))
def test_a_shape_is_read_and_never_booked_below_its_total(one: Recorded) -> None:
    assert {(one.dialect, name) for name in one.differences} <= DIFFERING
    assert one.booked is None or one.total is None or one.booked >= one.total


def test_the_file_has_many_shapes_and_is_small() -> None:
    """It travels with the sources."""
    assert len(SHAPES) > 90
    assert FILE.stat().st_size < 300_000


def test_the_page_shows_the_result() -> None:
    assert table() in PAGE.read_text()
