"""Renders the residency report's tables as one HTML file for printing, without scripts or external
content; `residency.py` supplies them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

STYLE = """
:root { color-scheme: light; --ink: #1a1d21; --quiet: #5b6470; --line: #d9dde3; --good: #14532d; --bad: #991b1b; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 3rem auto;
  padding: 0 1.5rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
p.quiet, td.quiet { color: var(--quiet); } .verdict { font-size: 1.25rem; font-weight: 600; margin: 1.5rem 0; }
.good { color: var(--good); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; font-size: .85rem; color: var(--quiet); } td.number, th.number { text-align: right; }
code { font: .85em ui-monospace, monospace; overflow-wrap: anywhere; }
@page { size: A4; margin: 18mm; }
@media print { body { margin: 0; padding: 0; max-width: none; font-size: 10pt; } h2 { break-after: avoid; }
  tr { break-inside: avoid; } thead { display: table-header-group; } .good, .bad { color: inherit; } }
"""  # noqa: E501


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One table of the report. `empty` replaces a table without rows; numbers are right-aligned."""

    title: str
    about: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    empty: str


def page(
    title: str, *, about: str, verdict: str, is_good: bool, sections: Iterable[Section]
) -> str:
    """Return the report as one HTML file. Every value is escaped."""
    body = "".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta '
        f'charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n"
        f'<p class="quiet">{escape(about)}</p>\n'
        '<p class="verdict '
        f'{"good" if is_good else "bad"}">{escape(verdict)}</p>\n{body}</body></html>\n'
    )


def _section(section: Section) -> str:
    """Return one table of the report as HTML."""
    head = f'<h2>{escape(section.title)}</h2>\n<p class="quiet">{escape(section.about)}</p>\n'
    if not section.rows:
        return f"{head}<p>{escape(section.empty)}</p>\n"
    numbers = [
        all(isinstance(row[place], int) for row in section.rows)
        for place in range(len(section.columns))
    ]
    titles = "".join(
        _cell("th", name, is_number)
        for name, is_number in zip(section.columns, numbers, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            _cell("td", _text(value), is_number)
            for value, is_number in zip(row, numbers, strict=True)
        )
        + "</tr>\n"
        for row in section.rows
    )
    return f"{head}<table><thead><tr>{titles}</tr></thead>\n<tbody>{rows}</tbody></table>\n"


def _cell(tag: str, text: str, is_number: bool) -> str:
    """Return one table cell as HTML, its text escaped and a number right-aligned."""
    kind = ' class="number"' if is_number else ""
    return f"<{tag}{kind}>{escape(text)}</{tag}>"


def _text(value: object) -> str:
    """Return a table cell's value as text for people."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ", ".join(str(part) for part in value) or "–"
    return str(value)
