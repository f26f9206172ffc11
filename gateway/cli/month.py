"""Declares `tollgate month status`, which prints a month's open items and their remedies; there is
no command yet that closes a month.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.reports import DEMO_LEDGER_NOTE
from gateway.reports.question import month_start

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

app = typer.Typer(
    name="month", help="Look at a month's books.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def month() -> None:
    """Look at a month's books."""


@app.command(
    "status",
    short_help="List a month's open items.",
    epilog="\b\nExamples:\n  tollgate month status\n  tollgate month status 2026-10 --format json",
)
def status(
    ctx: typer.Context,
    month: Annotated[
        str | None, typer.Argument(metavar="MONTH", help="YYYY-MM; the running month if left out.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List a month's open items and their remedies. Changes nothing. Exit 1 on a finding.

    Unsettled attempts, missing and stand-in prices, records that could not be booked, conflicting
    events, GPU hours without a bill, silent journals. Days and months are UTC; demo data are left
    out.
    """
    toolbox: Toolbox = ctx.obj
    wanted = month_start(month) if month else toolbox.now().date().replace(day=1)
    with toolbox.open_reports() as reports:
        found = reports.month_status(wanted)
        is_demo_ledger = reports.is_demo_ledger()
    rows = [(check.status.value, check.name, check.finding, check.remedy) for check in found.checks]
    show(Table(("status", "check", "finding", "what to do"), rows), format, empty="")
    if is_demo_ledger:
        note(DEMO_LEDGER_NOTE)
    note(f"Month {wanted:%Y-%m} is {found.state}.")
    if found.has_findings:
        raise typer.Exit(1)
    attempts = "" if found.attempts else f"No attempts in {wanted:%Y-%m}. "
    note(f"{attempts}Nothing stands against closing it.")
