"""Declares `tollgate currency add` and `list`: the dated rates at which reports show money in
another currency.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.allocation.currency import new_rate
from gateway.errors import BadUsage
from gateway.reports.question import day_of
from gateway.storage.allocation.currencies import CurrencyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

COLUMNS = ("currency", "from", "usd_per_unit", "source", "author", "created_at")

app = typer.Typer(
    name="currency",
    help="Rates at which reports show money in another currency. The ledger stays in USD.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "add",
    short_help="Add the rate of a currency from a day on.",
    epilog="\b\nExample:\n  tollgate currency add EUR --usd-per-unit 1.0850 --from 2026-11-01 "
    "\\\n    --source 'ECB reference rate of 2026-10-30'",
)
def add(
    ctx: typer.Context,
    currency: Annotated[str, typer.Argument(metavar="CODE", help="ISO 4217, for example EUR.")],
    usd_per_unit: Annotated[
        str, typer.Option("--usd-per-unit", metavar="X", help="What one unit is worth in USD.")
    ],
    first: Annotated[
        str, typer.Option("--from", metavar="DAY", help="The first day (UTC) that it counts.")
    ],
    source: Annotated[str, typer.Option("--source", help="The origin of the rate.")],
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add the rate of a currency from a day on, until a later one counts.

    No entry is ever edited: a second rate from the same day replaces the first one in reports. A
    month that is closed keeps its rates.
    """

    toolbox: Toolbox = ctx.obj
    rate = new_rate(
        currency=currency,
        first_day=day_of(first),
        usd_per_unit=_rate(usd_per_unit),
        source=source,
    )
    with toolbox.open_admin() as database:
        CurrencyStore(database).add(rate)
    show_record(
        {
            "currency": rate.currency,
            "from": rate.first_day.isoformat(),
            "usd_per_unit": rate.usd_per_unit
            if format is Format.JSON
            else f"{rate.usd_per_unit:f}",
            "source": rate.source,
        },
        format,
    )
    note(f"Next: tollgate report spend --currency {rate.currency}")


@app.command(
    "list",
    short_help="List the rates of all currencies.",
    epilog="\b\nExample:\n  tollgate currency list --format csv",
)
def list_all(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the rates that count, by currency and day, with their sources."""
    toolbox: Toolbox = ctx.obj
    with toolbox.open_reports() as reports:
        found = reports.currency_rates()
    rows = [
        (
            one.currency,
            one.first_day.isoformat(),
            f"{one.usd_per_unit:f}" if format is Format.TABLE else one.usd_per_unit,
            one.source,
            one.author,
            one.created_at,
        )
        for one in found
    ]
    show(Table(COLUMNS, rows), format, empty="No rates: reports are in USD.")


def _rate(text: str) -> Decimal:
    """Return a rate from the command line. Raises `BadUsage`."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise BadUsage(f"'{text}' is not a rate. Write --usd-per-unit 1.0850") from None
