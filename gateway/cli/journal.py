"""`tollgate journal`: the gateways' journals, as Postgres knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.ids import journal_id_of
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.errors import BadUsage

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

COLUMNS = ("id", "replica", "state", "started_at", "heartbeat", "written", "note")

app = typer.Typer(
    name="journal", help="The gateways' journals.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(
    "list",
    short_help="List the journals and when they were last heard of.",
    epilog="\b\nExample:\n  tollgate journal list --format csv",
)
def list_journals(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the gateways' journals, those heard of last first: whose they are and how many events
    came from each.

    live: a gateway holds it, or will when it starts again on its volume. drained: all of it is in
    the ledger. lost: its volume will not come back.
    """
    from gateway.storage.ledger.journals_table import JournalTable

    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        journals = JournalTable(stores.database).all()
    rows = [
        (str(j.id), j.replica, j.state, j.started_at, j.heartbeat, j.written, j.note)
        for j in journals
    ]
    show(Table(COLUMNS, rows), format, empty="No gateway has written to this ledger yet.")


@app.command(
    "lost",
    short_help="Say that a journal will not come back.",
    epilog="\b\nExample:\n  tollgate journal lost 7d9c1f3a-… --reason 'disk of gateway-2 died'",
)
def lose_journal(
    ctx: typer.Context,
    journal_id: Annotated[str, typer.Argument(metavar="ID", help="From `tollgate journal list`.")],
    reason: Annotated[str, typer.Option("--reason", help="What happened, for the record.")],
) -> None:
    """Say that a live journal's volume is gone for good, and book what it had leased of budgets as
    spent.

    What it still held is not in the ledger: per team, one adjustment `lost_journal` of what it had
    leased at most stands for it, and `tollgate month status` keeps naming it. If the volume turns
    up after all, start a gateway on it: its events are booked, and what was booked in their place
    is taken back.
    """
    from gateway.storage.ledger.journals_table import JournalTable

    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must say what happened. Nothing was changed.")
    with toolbox.open_stores() as stores:
        JournalTable(stores.database).lose(journal_id_of(journal_id), reason=reason.strip())
    note(
        f"Journal {journal_id} is noted as lost; what it had leased of budgets is booked as spent."
    )
