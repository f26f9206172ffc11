"""Puts measurements into a page of the docs, between two marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

COMMANDS = {
    "bench": "python -m bench.overhead --write",
    "soak": "python -m bench.soak --write",
    "budgets": "python -m bench.budgets --write",
}


def write_page(
    page: Path, table: str, *, facts: Mapping[str, str], notes: Sequence[str], name: str = "bench"
) -> None:
    """Replace the lines between the marks of a table.

    Raises `ValueError` if the page has none.
    """
    opening, closing = (
        f"<!-- {name}:begin, written by `{COMMANDS[name]}` -->",
        f"<!-- {name}:end -->",
    )
    measured = [
        *(f"- {fact}: {value}" for fact, value in facts.items()),
        *(f"- {note}" for note in notes),
    ]
    replace_between(page, opening, closing, lines=[*measured, "", table])


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
