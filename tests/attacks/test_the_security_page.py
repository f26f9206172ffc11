"""docs/lab/attacks.tsv names the test of each finding and each attack that is a test; the security
page links it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
LISTS = [DOCS / "lab" / "attacks.tsv", DOCS / "lab" / "attacks_that_held.tsv"]
NAMED = [
    name
    for page in [DOCS / "security.md", *LISTS]
    for name in re.findall(r"tests/[\w./]+", page.read_text())
]


def test_every_path_on_the_page_exists() -> None:
    """A reader follows the path to the proof."""
    assert [name for name in NAMED if not (REPOSITORY / name.rstrip(".")).exists()] == []


def test_every_attack_is_listed() -> None:
    """Without a row, a reader cannot find the test of an attack."""
    usability = list((REPOSITORY / "tests").rglob("test_usability_*.py"))
    attacks = [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    named = {Path(name).name for name in NAMED}
    assert sorted(path.name for path in attacks + usability if path.name not in named) == []


def test_every_row_has_all_cells() -> None:
    """A tab that is missing or too many moves what a reader sees into the wrong column."""
    for page in LISTS:
        with page.open(newline="") as file:
            first, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        assert {len(row) for row in rows} == {len(first)}
