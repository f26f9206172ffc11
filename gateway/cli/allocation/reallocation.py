"""Declares `tollgate reallocation add`, `approve` and `list`: one login moves cost from one cost
centre to another, and another login approves it.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.ids import reallocation_id_of
from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.allocation.reallocation import (
    ReallocationState,
    new_reallocation,
    require_begun,
)
from gateway.domain.money import format_usd
from gateway.errors import BadUsage, NothingFound
from gateway.reports.question import month_start
from gateway.storage.allocation.reallocations import ReallocationStore

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.cli.toolbox import Toolbox
    from gateway.reports.allocation.reallocations import Reallocation

COLUMNS = (
    "reallocation_id",
    "month",
    "from",
    "to",
    "amount_usd",
    "state",
    "reason",
    "author",
    "author_login",
    "approver",
    "approver_login",
    "posted_period",
)

app = typer.Typer(
    name="reallocation",
    help="Move cost between cost centres. One login enters it, another approves it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "add",
    short_help="Propose to move cost between two cost centres.",
    epilog="\b\nExample:\n  tollgate reallocation add --month 2026-11 --from CC-1207 --to CC-3100 "
    "\\\n    --amount-usd 120.50 --reason 'shared evaluation runs'",
)
def add(
    ctx: typer.Context,
    month: Annotated[str, typer.Option("--month", metavar="YYYY-MM", help="The month (UTC).")],
    source: Annotated[
        str, typer.Option("--from", metavar="CC", help="The cost centre that pays less.")
    ],
    target: Annotated[
        str, typer.Option("--to", metavar="CC", help="The cost centre that pays more.")
    ],
    amount_usd: Annotated[str, typer.Option("--amount-usd", metavar="X", help="More than 0.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the approver.")],
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Propose to move cost from one cost centre to another. Nothing is booked until another
    database login approves it.
    """

    toolbox: Toolbox = ctx.obj
    require_begun(month_start(month), today=toolbox.now().date())
    entry = new_reallocation(
        month=month_start(month),
        from_cost_centre=source,
        to_cost_centre=target,
        amount_usd=_amount(amount_usd),
        reason=reason,
    )
    with toolbox.open_entering() as database:
        reallocation_id = ReallocationStore(database).add(entry)
    show_record(
        {"reallocation_id": str(reallocation_id), "state": str(ReallocationState.PROPOSED)}, format
    )
    note(f"Another login approves it: tollgate reallocation approve {reallocation_id} --reason R")


@app.command(
    "approve",
    short_help="Approve a re-allocation that another login entered.",
    epilog="\b\nExamples:\n  tollgate reallocation approve "
    "7d9c1f3a-2b4c-4d5e-8f60-718293a4b5c6 --reason 'agreed with both'\n"
    '  TOLLGATE_FINANCE_DATABASE_URL="$(tollgate db url --as finance)" \\\n'
    "    tollgate reallocation approve 7d9c1f3a-2b4c-4d5e-8f60-718293a4b5c6 --reason agreed --yes",
)
def approve(
    ctx: typer.Context,
    reallocation: Annotated[
        str, typer.Argument(metavar="ID", help="From `tollgate reallocation list`.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Approve a re-allocation: shows it, asks, and books its two adjustments, which sum to 0.

    The login is TOLLGATE_FINANCE_DATABASE_URL, else the administration's. It must not be the
    author's. A closed month never changes: then the adjustments go to the oldest month that is not
    closed. A second approval changes nothing.
    """

    toolbox: Toolbox = ctx.obj
    wanted = reallocation_id_of(reallocation)
    if not reason.strip():
        raise BadUsage("--reason must say why. Nothing was booked.")
    entry = _entry(toolbox, wanted)
    if entry.state == ReallocationState.PROPOSED:
        note(_sentence(entry))
        if not yes:
            confirm("Approve it?", done="booked", act="approve")
    with toolbox.open_approving() as database:
        approved = ReallocationStore(database).approve(wanted, reason=reason.strip())
    show_record(
        {
            "reallocation_id": str(wanted),
            "state": str(ReallocationState.APPROVED),
            "amount_usd": approved.amount_usd,
            "posted_period": f"{approved.posted_period:%Y-%m}",
        },
        format,
    )
    if entry.state == ReallocationState.APPROVED:
        note("It was approved before: nothing was changed.")
    elif approved.posted_period != entry.month:
        note(
            f"Month {entry.month:%Y-%m} is closed, so it is posted to "
            f"{approved.posted_period:%Y-%m}."
        )


@app.command(
    "list",
    short_help="List re-allocations and their state.",
    epilog="\b\nExample:\n  tollgate reallocation list --month 2026-11 --format csv",
)
def list_all(
    ctx: typer.Context,
    month: Annotated[
        str | None, typer.Option("--month", metavar="YYYY-MM", help="Those of one month.")
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List re-allocations, oldest first: both cost centres, the amount, and who entered and
    approved it.
    """
    toolbox: Toolbox = ctx.obj
    wanted = None if month in (None, "all") else month_start(str(month), or_all=True)
    with toolbox.open_reports() as reports:
        found = reports.reallocations(wanted)
    show(Table(COLUMNS, [_row(one) for one in found]), format, empty="No re-allocations.")


def _entry(toolbox: Toolbox, wanted: UUID) -> Reallocation:
    """Return a stored re-allocation. Raises `NothingFound`."""
    with toolbox.open_reports() as reports:
        found = {one.reallocation_id: one for one in reports.reallocations()}
    if wanted not in found:
        raise NothingFound(f"There is no re-allocation {wanted}. See: tollgate reallocation list")
    return found[wanted]


def _row(one: Reallocation) -> tuple[object, ...]:
    """Return a re-allocation as a row of the list."""
    posted = None if one.posted_period is None else f"{one.posted_period:%Y-%m}"
    return (
        str(one.reallocation_id),
        f"{one.month:%Y-%m}",
        one.from_cost_centre,
        one.to_cost_centre,
        one.amount_usd,
        one.state,
        one.reason,
        one.author,
        one.author_login,
        one.approver,
        one.approver_login,
        posted,
    )


def _sentence(entry: Reallocation) -> str:
    """Return a proposed re-allocation as a sentence for its approver."""
    return (
        f"{format_usd(entry.amount_usd)} of {entry.month:%Y-%m} moves from "
        f"{entry.from_cost_centre} to {entry.to_cost_centre}, by "
        f"{entry.author or entry.author_login}: {entry.reason}"
    )


def _amount(text: str) -> Decimal:
    """Return an amount of dollars from the command line. Raises `BadUsage`."""
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite():
        raise BadUsage(f"'{text}' is not an amount. Write --amount-usd 120.50")
    return amount
