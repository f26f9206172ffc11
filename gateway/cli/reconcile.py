"""`tollgate reconcile`: say what attempts of unknown cost did cost."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.output import Format, FormatOption, note, show_record
from gateway.cli.policy import request_uuid
from gateway.domain.money import format_usd
from gateway.errors import BadUsage

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.adjustments import Verdict

MOST_USD = 9_000_000_000  # what 64 bits of nano-dollars hold

app = typer.Typer(
    name="reconcile", help="Bring the ledger and the invoices together.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def reconcile() -> None:
    """Bring the ledger and the invoices together."""


@app.command(
    "resolve",
    short_help="Say what an unknown attempt cost.",
    epilog="\b\nExamples:\n  tollgate report unsettled\n"
    "  tollgate reconcile resolve 01973b2e-6c1f-7c3a-9d3f-0242ac120002 --as zero --reason 'not on the invoice'\n"
    "  tollgate reconcile resolve 01973b2e-6c1f-7c3a-9d3f-0242ac120002 --attempt 2 --as 0.0125 --reason 'invoice 4711'",
)
def resolve(
    ctx: typer.Context,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="From `tollgate report unsettled`.")],
    cost: Annotated[str, typer.Option("--as", metavar="zero|hold|AMOUNT", help="What it cost; AMOUNT is in USD.")],
    reason: Annotated[str, typer.Option("--reason", help="How you know, for the record.")],
    attempt: Annotated[int | None, typer.Option("--attempt", help="Which one, if several are unknown.")] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Say what an attempt of unknown cost did cost, once and for good.

    It is booked as an adjustment with your reason and your database login; the event stays as it is. If its
    month is closed, it is posted to the next one that is open.
    """
    from gateway.storage.adjustments import resolve as book

    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must say how you know. Nothing was booked.")
    said = _cost(cost)
    with toolbox.open_stores() as stores:
        booked = book(stores.database, request_uuid(request_id), attempt=attempt, cost=said, reason=reason.strip())
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
        note(f"More than its hold of {format_usd(booked.held_usd)}: mind what that route's requests may cost at most.")


def _cost(text: str) -> Verdict | int:
    """What was said, in nano-dollars where it is an amount. Raises `BadUsage`."""
    from gateway.storage.adjustments import Verdict

    if text in tuple(Verdict):
        return Verdict(text)
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise BadUsage(f"'{text}' is neither zero, hold nor an amount in USD such as 0.0125.") from None
    nusd = usd.scaleb(9) if usd.is_finite() else Decimal(-1)
    if not 0 <= nusd <= MOST_USD * 10**9 or nusd != nusd.to_integral_value():
        raise BadUsage(f"An amount is from 0 to {MOST_USD:,} USD with at most nine decimals; got {text}.")
    return int(nusd)
