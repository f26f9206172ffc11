"""Writes a statement in the format that a file's name asks for."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from gateway.domain.reports.statement import CostCentreStatement, page_of
from gateway.errors import BadUsage


class StatementFormat(StrEnum):
    """A format of statements, by the suffix of its file."""

    PDF = ".pdf"
    HTML = ".html"

    @classmethod
    def of(cls, out: Path) -> StatementFormat:
        """Return the format of a file by its name. Raises `BadUsage`."""
        try:
            return cls(out.suffix.lower())
        except ValueError:
            raise BadUsage(
                f"A statement is .pdf or .html, by the name of its file; got '{out.name}'."
            ) from None


def statement_file(statement: CostCentreStatement, format: StatementFormat) -> bytes:
    """Return a statement as the content of a file. The same statement has the same bytes."""
    page = page_of(statement)
    # Imported here: no other report needs them, and they are slow to import.
    match format:
        case StatementFormat.PDF:
            from gateway.reports.statements.pdf import to_pdf

            return to_pdf(page)
        case StatementFormat.HTML:
            from gateway.reports.statements.html import to_html

            return to_html(page)
