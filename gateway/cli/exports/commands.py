"""Declares `tollgate export events`, `adjustments` and `focus`, which write the ledger as files for
other programs, whole or from the watermark of the last export on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.selfhost_reports import filters_of
from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.cli.terminal.report_file import pour, require_writable, save
from gateway.errors import BadUsage
from gateway.reports.exports.focus.columns import FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.exports.rows import ADJUSTMENTS, EVENTS
from gateway.reports.question import ask

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.reports.exports.export import ExportKind
    from gateway.reports.question import Question

STANDARD_OUTPUT = Path("-")

app = typer.Typer(
    name="export",
    help="Write the ledger as files for other programs.\n\n"
    "\b\nExamples:\n  tollgate export events --month 2026-11 --out events.parquet\n"
    "  tollgate export events --since 0 --out first.csv.gz\n"
    "  tollgate export events --since WATERMARK --out next.csv.gz   only the new rows",
    no_args_is_help=True,
    rich_markup_mode=None,
)

MonthOption = Annotated[
    str | None, typer.Option("--month", metavar="YYYY-MM", help="One month (UTC), or all.")
]
FirstOption = Annotated[
    str | None,
    typer.Option("--from", metavar="DAY", help="In place of a month: the first day (UTC)."),
]
LastOption = Annotated[
    str | None, typer.Option("--to", metavar="DAY", help="The last day, which is included.")
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="WATERMARK",
        help="Only rows that the export which printed this could not see; 0 for all.",
    ),
]
WhereOption = Annotated[
    list[str] | None, typer.Option("--where", metavar="NAME=VALUE", help="Only these.")
]
OutOption = Annotated[
    Path,
    typer.Option(
        "--out",
        metavar="FILE",
        help="A file, by its name .csv, .csv.gz, .parquet or .xlsx; - is CSV on standard output.",
    ),
]


@app.command(
    "events",
    short_help="Every attempt, one row each.",
    epilog="\b\nExamples:\n  tollgate export events --month 2026-11 --out events.parquet\n"
    "  tollgate export events --from 2026-11-01 --to 2026-11-07 --where team=payments\n"
    "  tollgate export events --since 0 --out first.csv.gz --format json",
)
def export_events(
    ctx: typer.Context,
    month: MonthOption = None,
    first: FirstOption = None,
    last: LastOption = None,
    since: SinceOption = None,
    where: WhereOption = None,
    out: OutOption = STANDARD_OUTPUT,
    format: FormatOption = Format.TABLE,
) -> None:
    """Write every attempt with all columns of finance.usage_events, in the order of time.

    Prints the file's SHA-256 and a watermark. An export with --since WATERMARK has exactly the rows
    that were written since, also those of transactions that were open meanwhile.
    """
    question = _asked(month, first, last, since, where)
    _run(ctx, EVENTS, question, since=since, out=out, format=format)


@app.command(
    "adjustments",
    short_help="Every adjustment, one row each.",
    epilog="\b\nExamples:\n  tollgate export adjustments --month 2026-11 --out adjustments.csv\n"
    "  tollgate export adjustments --since 0 --out first.parquet",
)
def export_adjustments(
    ctx: typer.Context,
    month: MonthOption = None,
    first: FirstOption = None,
    last: LastOption = None,
    since: SinceOption = None,
    where: WhereOption = None,
    out: OutOption = STANDARD_OUTPUT,
    format: FormatOption = Format.TABLE,
) -> None:
    """Write every adjustment with all columns of finance.adjustments, in the order of booking.

    With --from and --to it is the moment of the adjusted attempt that counts, as in reports.
    """
    question = _asked(month, first, last, since, where)
    _run(ctx, ADJUSTMENTS, question, since=since, out=out, format=format)


@app.command(
    "focus",
    short_help="Charges in FOCUS, the standard of the FinOps Foundation.",
    epilog="\b\nExamples:\n  tollgate export focus --month 2026-11 --out focus.parquet\n"
    "  tollgate export focus --month 2026-11 --focus-version 1.3 --out focus.csv.gz\n"
    "  tollgate export focus --month 2026-11 --billed-elsewhere --out focus.csv",
)
def export_focus(
    ctx: typer.Context,
    month: MonthOption = None,
    first: FirstOption = None,
    last: LastOption = None,
    since: SinceOption = None,
    where: WhereOption = None,
    out: OutOption = STANDARD_OUTPUT,
    version: Annotated[
        FocusVersion,
        typer.Option(
            "--focus-version", help="1.3 names the allocation columns that 1.2 has as x_."
        ),
    ] = FocusVersion.V1_2,
    is_billed_elsewhere: Annotated[
        bool,
        typer.Option(
            "--billed-elsewhere",
            help="Make BilledCost 0: the provider's own FOCUS file is loaded beside this one.",
        ),
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Write charges by day, team, model, price and kind of token; adjustments; idle GPU time.

    EffectiveCost over the rows whose x_LineKind is usage or adjustment is total_usd of the reports.
    docs/reference/focus.md explains each column.
    """
    kind = focus_export(version, is_billed_elsewhere=is_billed_elsewhere)
    question = _asked(month, first, last, since, where)
    _run(ctx, kind, question, since=since, out=out, format=format)


def _asked(
    month: str | None,
    first: str | None,
    last: str | None,
    since: str | None,
    where: list[str] | None,
) -> Question:
    """Return the question of an export. Raises `BadUsage` without a time, or with two."""
    if since is None and month is None and first is None and last is None:
        raise BadUsage("Name the time: --month YYYY-MM, --from and --to, or --since 0.")
    if since is not None and (month or first or last):
        raise BadUsage("--since takes the new rows of any month: leave the time out.")
    return ask(month=month, first=first, last=last, where=filters_of(where), limit=None)


def _run(
    ctx: typer.Context,
    kind: ExportKind,
    question: Question,
    *,
    since: str | None,
    out: Path,
    format: Format,
) -> None:
    """Write one export, and print its path, rows, SHA-256 and watermark.

    On standard output are the rows; the rest is then on standard error.
    """
    if out != STANDARD_OUTPUT:
        if out.suffix.lower() == ".json":
            raise BadUsage("An export is .csv, .csv.gz, .parquet or .xlsx. Reports write .json.")
        require_writable(out)
    toolbox: Toolbox = ctx.obj
    with (
        toolbox.open_reports() as reports,
        reports.export_ledger(kind, question, since=since) as opened,
    ):
        if out == STANDARD_OUTPUT:
            written = pour(opened.export, expected=opened.expected)
        else:
            written = save(opened.export, out, expected=opened.expected)
    record = written | {"watermark": opened.watermark}
    if out != STANDARD_OUTPUT:
        show_record(record, format)
    else:
        for name, value in record.items():
            note(f"{name}  {value}")
    for line in opened.export.report.notes:
        note(line)
