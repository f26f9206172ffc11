"""Declares the `tollgate reconcile` commands: providers' bills (`cli.invoices`), the cost of an
attempt of unknown usage, and dead letters.
"""

from __future__ import annotations

from contextlib import closing
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from gateway.cli.ids import letter_id_of, request_id_of
from gateway.cli.invoices.commands import register
from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.ledger.resolution import StatedCost
from gateway.domain.money import format_usd
from gateway.errors import BadUsage, NothingFound
from gateway.services.ledger.dead_letters import retry as book
from gateway.storage.ledger.adjustments import ResolutionStore
from gateway.storage.ledger.dead_letters import DeadLetters
from gateway.storage.ledger.ledger import Ledger

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

LETTER_COLUMNS = ("letter", "recorded_at", "journal", "error")
MOST_USD = 9_000_000_000  # the most that 64 bits of nano-dollars hold

app = typer.Typer(
    name="reconcile",
    help="Bring the ledger and the invoices together.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def reconcile() -> None:
    """Compare the ledger with the providers' bills, and settle attempts of unknown cost and dead
    letters.
    """


register(app)


@app.command(
    "resolve",
    short_help="Enter the cost of an unknown attempt.",
    epilog="\b\nExamples:\n  tollgate report unsettled\n"
    "  tollgate reconcile resolve 01973b2e-6c1f-7c3a-9d3f-0242ac120002 --as zero --reason 'not "
    "on the invoice'\n"
    "  tollgate reconcile resolve 01973b2e-6c1f-7c3a-9d3f-0242ac120002 --attempt 2 --as 0.0125 "
    "--reason 'invoice 4711'",
)
def resolve(
    ctx: typer.Context,
    request_id: Annotated[
        str, typer.Argument(metavar="REQUEST_ID", help="From `tollgate report unsettled`.")
    ],
    cost: Annotated[
        str,
        typer.Option("--as", metavar="zero|hold|AMOUNT", help="Its cost; AMOUNT is in USD."),
    ],
    reason: Annotated[str, typer.Option("--reason", help="How you know, for the record.")],
    attempt: Annotated[
        int | None, typer.Option("--attempt", help="Which one, if several are unknown.")
    ] = None,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Enter the true cost of an attempt with unknown cost, permanently.

    It is booked as an adjustment with your reason and your database login; the event does not
    change. If its month is closed, it is posted to the next open one.
    """

    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must give your source. Nothing was booked.")
    stated_cost = _cost(cost)
    with toolbox.open_admin() as database:
        booked = ResolutionStore(database).resolve(
            request_id_of(request_id),
            attempt=attempt,
            cost=stated_cost,
            reason=reason.strip(),
        )
    record = {
        "request_id": str(booked.request_id),
        "attempt": booked.attempt,
        "cost_usd": booked.cost_usd,
        "held_usd": booked.held_usd,
        "adjustment_usd": booked.amount_usd,
        "posted_period": f"{booked.posted_period:%Y-%m}",
        "author": booked.author,
        "adjustment_id": str(booked.adjustment_id),
    }
    show_record(record, format)
    if booked.held_usd is not None and booked.cost_usd > booked.held_usd:
        note(
            f"More than its hold of {format_usd(booked.held_usd)}: check the maximum cost of "
            "that route's requests."
        )


@app.command(
    "dead-letters",
    short_help="List the records that could not be booked.",
    epilog="\b\nExample:\n  tollgate reconcile dead-letters",
)
def dead_letters(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the unresolved dead letters: records that Postgres refused, whose attempts are in no
    total.

    The cause is a gateway newer than the schema (`tollgate db upgrade`, then `tollgate reconcile
    retry`), or a bug.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        letters = DeadLetters(database).waiting()
    rows = [
        (str(one.letter_id), one.recorded_at, _journal_text(one.journal_id), one.error)
        for one in letters
    ]
    show(Table(LETTER_COLUMNS, rows), format, empty="Every record is booked or dealt with.")


@app.command(
    "retry",
    short_help="Try to book dead letters again.",
    epilog="\b\nExamples:\n  tollgate db upgrade && tollgate reconcile retry\n"
    "  tollgate reconcile retry 7d9c1f3a-2b4c-4d5e-8f60-718293a4b5c6",
)
def retry(
    ctx: typer.Context,
    letter: Annotated[
        str | None,
        typer.Argument(
            metavar="[LETTER]", help="One alone, from `tollgate reconcile dead-letters`."
        ),
    ] = None,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Try to book the dead letters again, each exactly once.

    Exit 1 if one is refused again.

    Their cost is charged to the budgets of their arrival; one of a closed month is posted to the
    next open month. The gateway's login writes the events; yours records the resolution.
    """

    toolbox: Toolbox = ctx.obj
    only = None if letter is None else letter_id_of(letter)
    with (
        toolbox.open_admin() as database,
        toolbox.open_booking() as booking,
        closing(Ledger(booking)) as ledger,
    ):
        tried = list(book(DeadLetters(database), ledger, only=only))
    if only is not None and not tried:
        raise _unknown_letter(only)
    rows = [
        (str(one.letter.letter_id), one.resolution, None if one.resolution else one.letter.error)
        for one in tried
    ]
    show(Table(("letter", "booked", "refused"), rows), format, empty="No record waits.")
    refused = sum(one.resolution is None for one in tried)
    if refused:
        note(f"Refused again: {refused} of {len(tried)}. Next: docs/runbooks/rejected-events.md.")
        raise typer.Exit(1)


@app.command(
    "dismiss",
    short_help="Close a dead letter without booking it.",
    epilog="\b\nExample:\n  tollgate reconcile dismiss 7d9c1f3a-2b4c-4d5e-8f60-718293a4b5c6 "
    "--reason 'a test machine'",
)
def dismiss(
    ctx: typer.Context,
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="From `tollgate reconcile dead-letters`.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why no team should be charged for it.")],
    yes: TakesYesOption = False,
) -> None:
    """Close a dead letter that will never be booked.

    It is kept, with your reason and your login.
    """

    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must explain why no team is charged. Nothing was changed.")
    letter_id = letter_id_of(letter)
    with toolbox.open_admin() as database:
        if not DeadLetters(database).close(letter_id, resolution=reason.strip()):
            raise _unknown_letter(letter_id)
    note(f"Record {letter_id} is closed: no team is charged for it.")


def _journal_text(journal_id: UUID | None) -> str | None:
    """Return a journal's id as text, None without a journal."""
    return None if journal_id is None else str(journal_id)


def _unknown_letter(letter_id: UUID) -> NothingFound:
    """Return the error for a dead letter that does not wait: an unknown one, or one that is closed
    already.
    """
    return NothingFound(
        f"No record {letter_id} waits. tollgate reconcile dead-letters shows those that do."
    )


def _cost(text: str) -> StatedCost | int:
    """Parse the cost that a person enters for an attempt, in nano-dollars if it is an amount.
    Raises `BadUsage`.
    """
    if text in tuple(StatedCost):
        return StatedCost(text)
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise BadUsage(
            f"'{text}' is neither zero, hold nor an amount in USD such as 0.0125."
        ) from None
    nusd = usd.scaleb(9) if usd.is_finite() else Decimal(-1)
    if not 0 <= nusd <= MOST_USD * 10**9 or nusd != nusd.to_integral_value():
        raise BadUsage(
            f"An amount is from 0 to {MOST_USD:,} USD with at most nine decimals; got {text}."
        )
    return int(nusd)
