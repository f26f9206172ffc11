"""A file is replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.cli.terminal.replaced_file import replaced_file
from gateway.errors import BadUsage


@pytest.mark.parametrize("name", ["old.csv", "new.csv"])
def test_an_error_half_way_changes_nothing(tmp_path: Path, name: str) -> None:
    """An interrupted export must not look like a small month, nor leave litter."""
    (tmp_path / "old.csv").write_text("older")
    with pytest.raises(ZeroDivisionError):
        _write(tmp_path / name, lambda: 1 / 0)
    assert [one.name for one in tmp_path.iterdir()] == ["old.csv"]
    assert (tmp_path / "old.csv").read_text() == "older"


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """`/dev/full` refuses each write, as a full disk does."""
    with pytest.raises(BadUsage, match=r"a.csv cannot be written: No space left on device"):
        _write(tmp_path / "a.csv", lambda: Path("/dev/full").write_bytes(b"x"))
    assert list(tmp_path.iterdir()) == []


def _write(path: Path, then: Callable[[], object]) -> None:
    """Write half a file, and then fail."""
    with replaced_file(path) as out:
        out.write(b"half")
        then()
