"""Declares `tollgate journal list` and `lost`, which print Postgres's register of journals and
declare one lost; no journal's events are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.ids import journal_id_of
from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.errors import BadUsage
from gateway.storage.journal import journals_on
from gateway.storage.ledger.journals_table import JournalTable

if TYPE_CHECKING:
    from uuid import UUID

    from gateway.cli.toolbox import Toolbox

COLUMNS = ("id", "replica", "state", "started_at", "heartbeat", "written", "note")

app = typer.Typer(
    name="journal", help="The gateways' journals.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(
    "list",
    short_help="List the journals with their last activity.",
    epilog="\b\nExample:\n  tollgate journal list --format csv",
)
def list_journals(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the gateways' journals, most recently active first, with their replica and number of
    events.

    live: a gateway holds it, or will when it starts again on its volume. drained: the ledger has
    all of it. lost: its volume will not come back.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        journals = JournalTable(database).all()
    rows = [
        (str(j.id), j.replica, j.state, j.started_at, j.heartbeat, j.written, j.note)
        for j in journals
    ]
    show(Table(COLUMNS, rows), format, empty="No gateway has written to this ledger yet.")


@app.command(
    "lost",
    short_help="Declare a journal permanently lost.",
    epilog="\b\nExample:\n  tollgate journal lost 7d9c1f3a-… --reason 'disk of gateway-2 died'",
)
def lose_journal(
    ctx: typer.Context,
    journal_id: Annotated[str, typer.Argument(metavar="ID", help="From `tollgate journal list`.")],
    reason: Annotated[str, typer.Option("--reason", help="The cause, for the record.")],
    yes: TakesYesOption = False,
) -> None:
    """Declare a live journal's volume permanently lost, and book its leased budget money as spent.

    Stop its gateway first: what a running gateway goes on to spend is booked as well. A journal
    that a gateway on this machine holds is refused.

    Its unwritten events are not in the ledger. One adjustment `lost_journal` per team covers the
    most that it had leased, and `tollgate month status` continues to list it. If the volume is
    found after all, start a gateway on it: its events are booked, and the adjustment is reversed.
    """

    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must explain the loss. Nothing was changed.")
    with toolbox.open_admin() as database:
        lost = journal_id_of(journal_id)
        _require_not_held(toolbox, lost)
        JournalTable(database).declare_lost(lost, reason=reason.strip())
    note(f"Journal {journal_id} is recorded as lost; its leased budget money is booked as spent.")


def _require_not_held(toolbox: Toolbox, journal_id: UUID) -> None:
    """Raise `BadUsage` if a gateway that runs on this machine holds the journal."""

    here = journals_on(toolbox.options.journal_path, on_odd=lambda *_: None)
    if any(journal.journal_id == journal_id and journal.is_held for journal in here):
        raise BadUsage(
            f"Journal {journal_id} is held by a gateway that runs on this machine, so it is not "
            "lost. Stop that gateway: its events are written then. Nothing was changed."
        )
