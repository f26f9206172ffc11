"""docs/security.md names the test of each finding and each attack that is a test."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "security.md").read_text()
NAMED = re.findall(r"tests/[\w./]+", PAGE)


def test_every_path_on_the_page_exists() -> None:
    """A reader follows the path to the proof."""
    assert [name for name in NAMED if not (REPOSITORY / name.rstrip(".")).exists()] == []


def test_every_attack_is_on_the_page() -> None:
    """Without a row on the page, a reader cannot find the test of an attack."""
    usability = list((REPOSITORY / "tests").rglob("test_usability_*.py"))
    attacks = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    named = {Path(name).name for name in NAMED}
    assert sorted(path.name for path in attacks + usability if path.name not in named) == []
