"""One home serves one `tollgate up` at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.up.commands import hold_home
from gateway.errors import BadUsage


def test_a_second_up_of_a_home_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    """On other ports it led the first one's demo route to its own engine, and away when it ended:
    every request of the first gateway then failed.
    """
    engine_home = tmp_path / "engine"
    with (
        hold_home(tmp_path, engine_home),
        pytest.raises(BadUsage, match=r"runs already.*TOLLGATE_HOME=\S+-2 TOLLGATE_ENGINE_HOME="),
    ):
        hold_home(tmp_path, engine_home)
    hold_home(tmp_path, engine_home).close()
