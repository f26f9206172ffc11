"""Puts measurements into the docs: a file of figures in `docs/lab/bench`, or lines between two
marks of a page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

LAB = Path(__file__).parents[2] / "docs" / "lab" / "bench"


def write_result(name: str, lines: Sequence[str]) -> None:
    """Write the figures of a run, and print the name of their file."""
    path = LAB / f"{name}.txt"
    path.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    print(f"written to docs/lab/bench/{path.name}")


def write_table(name: str, table: str, *, facts: Mapping[str, str], notes: Sequence[str]) -> None:
    """Write a table with the facts of its run and notes, as `write_result`."""
    measured = [
        *(f"- {fact}: {value}" for fact, value in facts.items()),
        *(f"- {note}" for note in notes),
    ]
    write_result(name, [*measured, "", table])


def replace_between(page: Path, opening: str, closing: str, *, lines: Sequence[str]) -> None:
    """Put lines between two marks of a page. Raises `ValueError` if it has none."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(opening)
    _, end, after = rest.partition(closing)
    if not (begin and end):
        raise ValueError(
            f"{page} has no place for the table: it needs the lines {opening} and {closing}"
        )
    page.write_text(
        "\n".join([before + opening, "", *lines, "", closing]) + after, encoding="utf-8"
    )
