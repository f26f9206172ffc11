"""Declares `tollgate report statement`, which writes one page for the owner of a cost centre."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.domain.money import format_amount
from gateway.errors import BadUsage
from gateway.reports.statements.files import StatementFormat, statement_file
from gateway.reports.statements.statement import ask_statement

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox


def register(app: typer.Typer) -> None:
    """Add the command to `tollgate report`."""

    @app.command(
        "statement",
        short_help="Write a cost centre's statement as PDF or HTML.",
        epilog="\b\nExamples:\n  tollgate report statement --cost-centre CC-1207 --month 2026-10 "
        "--out CC-1207.pdf\n"
        "  tollgate report statement --cost-centre CC-1207 --month 2026-10 --as-closed \\\n"
        "    --out CC-1207.html\n"
        "  tollgate report statement --cost-centre CC-1207 --month 2026-10 --currency EUR "
        "--out eur.pdf",
    )
    def statement(
        ctx: typer.Context,
        cost_centre: Annotated[
            str, typer.Option("--cost-centre", metavar="CC", help="As in the policy's teams.")
        ],
        month: Annotated[str, typer.Option("--month", metavar="YYYY-MM", help="One month (UTC).")],
        out: Annotated[
            Path, typer.Option("--out", metavar="FILE", help="A file: .pdf or .html, by its name.")
        ],
        as_closed: Annotated[
            bool, typer.Option("--as-closed", help="Fail unless the month is closed.")
        ] = False,
        close_version: Annotated[
            int | None,
            typer.Option(
                "--close-version", metavar="N", help="In this version; default: the newest."
            ),
        ] = None,
        currency: Annotated[
            str | None,
            typer.Option(
                "--currency", metavar="CODE", help="Show money in it: tollgate currency add."
            ),
        ] = None,
        format: FormatOption = Format.TABLE,
    ) -> None:
        """Write one page for the owner of a cost centre: total, share, teams, models, adjustments
        with their reasons, idle GPU time, and the difference to the month before.

        A closed month is shown as it was closed, with its version and hash, and the same statement
        always has the same bytes. Any other month is marked as provisional. Title and owner are
        those of the policy at the end of the month.
        """
        toolbox: Toolbox = ctx.obj
        asked = ask_statement(
            month=month, currency=currency, as_closed=as_closed, close_version=close_version
        )
        kind = StatementFormat.of(out)
        if not out.resolve().parent.is_dir():
            raise BadUsage(f"There is no folder {out.parent}. Make it, or name another file.")
        with toolbox.open_reports() as reports, reports.statements(asked) as statements:
            found = statements.of(cost_centre)
        content = statement_file(found, kind)
        with replaced_file(out) as file:
            file.write(content)
        show_record(
            {
                "path": str(out),
                "sha256": hashlib.sha256(content).hexdigest(),
                "state": found.month.state,
                "version": found.month.version,
                "total": format_amount(found.total, found.currency)
                if format is Format.TABLE
                else found.total,
                "currency": found.currency,
            },
            format,
        )
        if found.month.state != "closed":
            note(
                f"{found.month.label} is not closed: the statement is provisional. See: tollgate "
                f"month status {asked.month:%Y-%m}"
            )
