"""Puts a measured table into `docs/performance.md`, between its two marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

BEGIN = "<!-- bench:begin, written by `python -m bench.overhead --write` -->"
END = "<!-- bench:end -->"


def write_page(page: Path, table: str, *, facts: Mapping[str, str], notes: Sequence[str]) -> None:
    """Replace what stands between the marks. Raises `ValueError` where the page has none."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN} and {END}")
    measured = [*(f"- {name}: {value}" for name, value in facts.items()), *(f"- {note}" for note in notes)]
    page.write_text("\n".join([before + BEGIN, "", *measured, "", table, "", END]) + after, encoding="utf-8")
