"""Declares `tollgate report NAME`, `list` and `receipt`, which print finance's reports and one
request's receipt as tables, JSON or CSV.
"""

from __future__ import annotations

from copy import copy
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gateway.cli.exports import schedule, statement
from gateway.cli.ids import request_id_of
from gateway.cli.policy.explain import find_receipt
from gateway.cli.selfhost_reports import filters_of, register
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    moment,
    note,
    rate_text,
    show,
    table_text,
    visible,
    write,
)
from gateway.cli.terminal.report_file import OutOption, print_export, require_writable, write_file
from gateway.domain.money import format_unit_cost, format_usd, in_place_of_dollars, usd_from_nusd
from gateway.errors import NothingFound
from gateway.reports.dimensions import TIME, Dimension
from gateway.reports.json_and_csv import receipt_to_json
from gateway.reports.question import ask, month_of
from gateway.reports.receipts.receipt import arithmetic
from gateway.reports.registry import REPORTS
from gateway.reports.report import ColumnKind

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.reports.question import Question
    from gateway.reports.receipts.attempt import AttemptReceipt
    from gateway.reports.receipts.receipt import Receipt
    from gateway.reports.report import Cell, Column, Report
    from gateway.reports.report_kind import ReportKind
    from gateway.reports.reports import Reports

MOST_NAMES = 20  # listed if another one was requested
PAGE_ROWS = 100  # of a table for people
NAMED = "NAME"  # the command behind every report's name


class ReportGroup(TyperGroup):
    """`tollgate report spend` runs the report called spend: names come from the registry, not
    from here.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Treat a word that is no command as the name of a report."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            _, command, rest = super().resolve_command(ctx, [NAMED, *args])
            return args[0], command, rest
        return super().resolve_command(ctx, args)


class NamedReport(TyperCommand):
    """A report's name replaces the command's: its usage shows no argument of that name, and its
    help no option that the report refuses.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage of a report for its help, as it follows `tollgate report spend`."""
        return ["[OPTIONS]"]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Begin the help with the report's own question and split."""
        kind = REPORTS.get(ctx.info_name)
        if kind is not None:
            by = f" Split by {', '.join(kind.by)}, unless --by says otherwise." if kind.by else ""
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(kind.question + by)
        super().format_help_text(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the options, less those that the report refuses."""
        kind = REPORTS.get(ctx.info_name)
        refused = frozenset() if kind is None else _refused(kind)
        shown = copy(self)
        shown.params = [one for one in self.params if one.name not in refused]
        super(NamedReport, shown).format_options(ctx, formatter)


def _refused(kind: ReportKind) -> frozenset[str]:
    """Return the names of the options that a report refuses whatever their value is."""
    takes = {
        "by": kind.by is not None,
        "first": not kind.whole_months,
        "last": not kind.whole_months,
        "compare": kind.compares,
        "why": kind.explains,
        "as_closed": kind.reproduces,
        "close_version": kind.reproduces,
        "currency": not kind.usd_alone,
    }
    return frozenset(name for name, is_taken in takes.items() if not is_taken)


app = typer.Typer(
    name="report",
    cls=ReportGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Answer one finance question: tollgate report NAME.\n\n"
    "\b\nExamples:\n  tollgate report list\n  tollgate report spend --by team,model --month "
    "2026-11\n"
    "  tollgate report events --where team=payments --format csv > events.csv\n"
    "  tollgate report spend --help                 every option",
    epilog=f"Reports: {', '.join(REPORTS)}. Each answers the question that `report list` names.",
)


@app.command(
    NAMED,
    cls=NamedReport,
    hidden=True,
    epilog="\b\nExamples:\n  tollgate report spend --by cost_centre --month 2026-11 --format csv\n"
    "  tollgate report tokens --by day --where team=payments\n"
    "  tollgate report spend --by team --month last --compare previous\n"
    "  tollgate report spend --month 2026-11 --why\n"
    "  tollgate report spend --by week,model --from 2026-10-01 --to 2026-11-30\n"
    "  tollgate report spend --by team,model --month 2026-11 --out spend.xlsx\n"
    "  tollgate report spend --month 2026-10 --as-closed --format csv\n"
    "  tollgate report savings --by team --month 2026-11\n  tollgate report overview --demo",
)
def run_report(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", hidden=True)  # a report's own help has no such argument
    ],
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="A[,B]", help="Split by these, comma separated."),
    ] = None,
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", help="One month (UTC), last, or all."),
    ] = None,
    first: Annotated[
        str | None,
        typer.Option("--from", metavar="DAY", help="In place of a month: the first day (UTC)."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", metavar="DAY", help="The last day, which is included.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            "--compare",
            metavar="previous|month|year|whole",
            help="Add what it was before, and the change.",
        ),
    ] = None,
    why: Annotated[
        bool,
        typer.Option("--why", help="Explain the change by volume and price."),
    ] = False,
    as_closed: Annotated[
        bool, typer.Option("--as-closed", help="The month as it was when it was closed.")
    ] = False,
    close_version: Annotated[
        int | None,
        typer.Option("--close-version", metavar="N", help="In this version; default: the newest."),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="NAME=VALUE",
            help="Only these. Of `events`, the attempt's own cost centre: a team's shares count "
            "elsewhere.",
        ),
    ] = None,
    currency: Annotated[
        str | None,
        typer.Option("--currency", metavar="CODE", help="Show money in it: tollgate currency add."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", help="Rows a page. Default: all; 100 in a table of events or attempts."
        ),
    ] = None,
    offset: Annotated[int, typer.Option("--offset", help="Rows to skip.")] = 0,
    demo: Annotated[
        bool, typer.Option("--demo", help="Generated demo data in place of real events.")
    ] = False,
    out: OutOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Answer one question of `tollgate report list`. Days and months are UTC; money is in USD, or
    in the currency of --currency.
    """
    toolbox: Toolbox = ctx.obj
    if name not in REPORTS:
        near = get_close_matches(name, REPORTS, n=1)
        meant = f"Did you mean '{near[0]}'? " if near else ""
        raise NothingFound(f"There is no report '{name}'. {meant}There are: {', '.join(REPORTS)}.")
    dimensions = (
        None
        if by is None
        else [word.strip() for words in by for word in words.split(",") if word.strip()]
    )
    if out is not None:
        require_writable(out)
    elif limit is None and format is Format.TABLE and REPORTS[name].each_row is not None:
        limit = PAGE_ROWS
    question = ask(
        month=month_of(month, now=toolbox.now()),
        first=first,
        last=last,
        compare=compare,
        why=why,
        as_closed=as_closed,
        close_version=close_version,
        by=dimensions,
        where=filters_of(where),
        demo=demo,
        limit=limit,
        offset=offset,
        currency=currency,
    )
    with toolbox.open_reports() as reports, reports.export(name, question) as export:
        if export.report.total.get("attempts") == 0:
            _require_known(reports, question)
        if out is not None:
            write_file(export, out, format)
        elif format is Format.TABLE:
            write(_report_text(export.report))
        else:
            print_export(export, format)
    if out is not None or format is not Format.JSON:  # in JSON the notes are part of the document
        for line in export.report.notes:
            note(line)


@app.command("list", short_help="List the reports.", epilog="\b\nExample:\n  tollgate report list")
def list_reports(format: FormatOption = Format.TABLE) -> None:
    """List the reports, the question each answers, and its default split."""
    rows = [
        (kind.name, kind.question, None if kind.by is None else list(kind.by))
        for kind in REPORTS.values()
    ]
    show(Table(("name", "question", "by"), rows), format, empty="")


@app.command(
    "receipt",
    short_help="Print one request's receipt.",
    epilog="\b\nExample:\n  tollgate report receipt 01973b2e-6c1f-7c3a-9d3f-0242ac120002",
)
def show_receipt(
    ctx: typer.Context,
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="From the reply's x-request-id header.")
    ],
    format: FormatOption = Format.TABLE,
) -> None:
    """Print one request's receipt: every attempt, every line with its arithmetic, and the
    reasons for its deployment.
    """
    toolbox: Toolbox = ctx.obj
    with toolbox.open_reports() as reports:
        receipt = find_receipt(reports, request_id_of(request_id))
    if format is Format.JSON:
        write(receipt_to_json(receipt) + "\n")
    elif format is Format.CSV:
        show(_lines(receipt), format, empty="")
    else:
        write(_receipt_text(receipt))
        for line in receipt.notes:
            note(line)


def _require_known(reports: Reports, question: Question) -> None:
    """Raise `NothingFound`, with the known names, for a filter's name that no attempt ever had.

    Raises `NothingFound` with the known names.
    """
    for dimension, wanted in question.where:
        if wanted is None or dimension in (*TIME, Dimension.TAG):
            continue
        known = reports.run("spend", ask(by=[dimension], demo=question.dataset == "demo"))
        names = sorted(str(row[0]) for row in known.rows if row[0] is not None)
        if wanted not in names:
            shown = ", ".join(names[:MOST_NAMES]) + (", …" if len(names) > MOST_NAMES else "")
            raise NothingFound(
                f"No attempt of any month has the {dimension.value.replace('_', ' ')} '{wanted}'. "
                f"There is: {shown or 'none yet'}."
            )


def _report_text(report: Report) -> str:
    """Return a report as a table for people, with its total in the last row."""
    numeric = {
        ColumnKind.COUNT,
        ColumnKind.MONEY,
        ColumnKind.SHARE,
        ColumnKind.SECONDS,
        ColumnKind.HOURS,
    }
    columns = report.columns
    rows = [
        [_cell_text(cell, c) for cell, c in zip(row, columns, strict=True)] for row in report.rows
    ]
    if rows and any(column.name in report.total for column in columns):
        total = [
            _cell_text(report.total[c.name], c) if c.name in report.total else "" for c in columns
        ]
        rows.append(
            ["total" if position == 0 and not cell else cell for position, cell in enumerate(total)]
        )
    if not rows:
        if report.total.get("attempts"):
            return _total_text(report)
        return "No events.\n" if "attempts" in report.total else "No rows.\n"
    return table_text(
        [column.name for column in columns],
        rows,
        lambda position: columns[position].kind in numeric,
    )


def _age_text(seconds: float) -> str:
    """Return an age for people: its two largest units."""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 60:
        return f"{minutes} min {int(seconds) % 60} s"
    if hours < 48:
        return f"{hours} h {minutes % 60} min"
    return f"{hours // 24} d {hours % 24} h"


def _total_text(report: Report) -> str:
    """Return a report's total as lines of name and figure, for a report without rows."""
    cells = {
        c.name: _cell_text(report.total[c.name], c)
        for c in report.columns
        if c.name in report.total
    }
    if not cells:
        return "No rows.\n"
    width = max(map(len, cells))
    return "".join(f"{name:<{width}}  {cell}\n" for name, cell in cells.items())


def _cell_text(cell: Cell, column: Column) -> str:
    """Return a report's cell as text for people, by its column's kind."""
    kind = column.kind.value
    if cell is None:
        # A known cost has no hold, a cost per unit (usd_per_…, eur_per_…) no unit, and a price no
        # rate of its own for a kind; any other missing amount is unknown.
        is_absent = (
            column.name.startswith("held_")
            or column.name[3:].startswith("_per_")
            or column.name.endswith("_usd_per_mtok")
        )
        return "unknown" if kind == "money" and not is_absent else "—"
    match kind:
        case "money":
            amount = Decimal(str(cell))
            text = (
                rate_text(amount)
                if "per_mtok" in column.name
                else format_unit_cost(amount)
                if " per " in column.unit
                else format_usd(amount)
            )
            return in_place_of_dollars(text, column.unit.partition(" ")[0].rstrip(",") or "USD")
        case "share":
            return _share_text(Decimal(str(cell)))
        case "seconds":
            seconds = float(str(cell))
            return _age_text(seconds) if column.name == "age_s" else f"{seconds:.3f}"
        case "hours":
            return f"{Decimal(str(cell)):,.2f}"
        case "count":
            return f"{int(str(cell)):,}"
        case "flag":
            return "yes" if cell else "no"
        case "time":
            return moment(cell) if isinstance(cell, datetime) else str(cell)
        case "day":
            if not isinstance(cell, date):
                return str(cell)
            return f"{cell:%Y-%m}" if column.name == "month" else cell.isoformat()
        case _:
            return str(cell)


def _share_text(share: Decimal) -> str:
    """Return a share as a percentage: never 0.00 % for a positive one, never 100.00 % for an
    incomplete one.
    """
    text = f"{share * 100:.2f}"
    if share > 0 and text == "0.00":
        return "< 0.01 %"
    return "> 99.99 %" if share < 1 and text == "100.00" else f"{text} %"


def _lines(receipt: Receipt) -> Table:
    """Return a receipt's lines (tokens, rate and cost by kind) as a table."""
    rows = [
        (
            a.event.attempt,
            a.event.deployment,
            line.kind.value,
            line.tokens,
            line.usd_per_mtok,
            usd_from_nusd(line.cost_nusd),
        )
        for a in receipt.attempts
        for line in a.event.lines
    ]
    return Table(("attempt", "deployment", "kind", "tokens", "usd_per_mtok", "cost_usd"), rows)


def _receipt_text(receipt: Receipt) -> str:
    """Return a receipt for people: every attempt with usage, price, lines, cost and reasons."""
    text = [
        f"Request {receipt.request_id} at {moment(receipt.occurred_at)}",
        f"Team {receipt.team}, cost centre {receipt.cost_centre}, project "
        f"{receipt.project or '—'}, key {receipt.key_id}",
        f"Class {receipt.data_class}, policy version {receipt.policy_version}, booked in "
        f"{receipt.posted_period}",
    ]
    for attempt in receipt.attempts:
        event = attempt.event
        text += [
            "",
            f"Attempt {event.attempt}: {event.deployment} ({event.provider}, "
            f"{event.model}, {event.region}): {event.outcome}",
            f"  usage         {event.usage_source}: {attempt.usage_obtained}",
            *(f"  stated        {name} {value}" for name, value in attempt.usage_detail.items()),
            *([f"  price         {attempt.price_obtained}"] if attempt.price_obtained else []),
            *(f"  {line.kind.value:<13} {arithmetic(line)}" for line in event.lines),
            f"  cost          {format_usd(attempt.cost_usd)}",
            *_cache_lines(attempt),
            *(
                [f"  held          {format_usd(attempt.held_usd)}"]
                if attempt.total_usd is None
                else []
            ),
            *(
                f"  adjusted      {format_usd(a.amount_usd)} ({a.kind}: {a.reason})"
                for a in attempt.adjustments
            ),
            *(
                f"  why           {v.deployment} in {v.region}: {v.reason}"
                for v in attempt.verdicts
            ),
        ]
    # Upstreams and people chose some of these words; none may begin a line or move the cursor.
    lines = [visible(line) for line in text]
    return "\n".join([*lines, "", f"Total {format_usd(receipt.total_usd)}", ""])


def _cache_lines(attempt: AttemptReceipt) -> list[str]:
    """Return the receipt's line on cached tokens and their saving; none if nothing was cached."""
    saving = attempt.cache_saving_usd
    if not saving or attempt.cached_share is None:
        return []
    return [
        f"  cache         {attempt.cached_share:.0%} of the prompt was cached: "
        f"{format_usd(abs(saving))} {'less' if saving > 0 else 'more'} than as plain input"
    ]


register(app, as_text=_report_text)
statement.register(app)
app.add_typer(schedule.app)
