"""The map in docs/architecture.md is true: its rooms are folders, and its stations are functions of
the code.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATEWAY = ROOT / "gateway"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = re.findall(r"[`\"](\w[\w/]*\.py): ([\w.]+)[`\"]", PAGE)
MOST_STATIONS = 10
LAYERS = ("domain", "services", "storage", "wire", "cli", "reports")


def defined_in(path: Path) -> set[str]:
    """Functions and classes of a module, and `Class.method`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_each_station_is_a_function_of_the_code(path: str, name: str) -> None:
    """A map with removed names misleads a newcomer."""
    assert name in defined_in(GATEWAY / path)


def test_a_request_has_at_most_ten_stations() -> None:
    """From socket to socket."""
    stations = PAGE.partition("<!-- stations:begin -->")[2].partition("<!-- stations:end -->")[0]
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", stations, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert 5 <= len(numbers) <= MOST_STATIONS


def test_every_room_stands_on_the_map() -> None:
    """By its name."""
    rooms = {
        folder.name
        for layer in LAYERS
        for folder in (GATEWAY / layer).iterdir()
        if folder.is_dir() and any(folder.glob("*.py"))
    }
    missing = {
        room
        for room in rooms
        if f"`{room}/`" not in PAGE and f"/{room}/`" not in PAGE and f"`{room}`" not in PAGE
    }
    assert missing == set()


def test_every_path_on_the_page_is_there() -> None:
    """Written from the repository's root or from `gateway/`."""
    paths = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PAGE))
    assert [
        path
        for path in sorted(paths)
        if not (GATEWAY / path).exists() and not (ROOT / path).exists()
    ] == [path for path in sorted(paths) if (GATEWAY / "domain" / path).exists()]
