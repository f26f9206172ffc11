"""`tollgate db`: the tables, and the secret behind API keys."""

from __future__ import annotations

from datetime import date, timedelta
from typing import TYPE_CHECKING

import typer

from gateway.cli.output import Format, FormatOption, note, show_record, write
from gateway.errors import BadUsage

if TYPE_CHECKING:
    from gateway.cli.toolbox import Stores, Toolbox

AHEAD = timedelta(days=92)  # partitions made in advance: three months of nobody looking

app = typer.Typer(name="db", help="Create, update and check the database.", no_args_is_help=True, rich_markup_mode=None)


@app.command(
    "upgrade",
    short_help="Bring the tables to this version.",
    epilog="\b\nExamples:\n  tollgate db upgrade\n  TOLLGATE_DATABASE_URL=… tollgate db upgrade",
)
def upgrade(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Bring the tables to this version, one migration after the other; a running older gateway goes on.

    Creates the pepper, the secret behind the stored digests of API keys, where there is none: back it up.
    Running it again changes nothing.
    """
    from gateway.storage import migrations, partitions

    toolbox: Toolbox = ctx.obj
    with toolbox.open_as_owner() as stores:
        applied = migrations.upgrade(stores.database, on_step=note)
        today = toolbox.now().date()
        months = partitions.ensure_months(stores.database, first=today.replace(day=1), last=first_ahead(today))
        is_new = ensure_pepper(toolbox, stores)
    record = {
        "applied": applied,
        "partitions": months,
        "pepper": str(toolbox.options.pepper_path),
        "pepper_new": is_new,
    }
    show_record(record, format)
    if is_new:
        note(f"Back up {toolbox.options.pepper_path}: without it no API key of this database works.")
    note("Next: tollgate policy apply FILE")


@app.command(
    "check",
    short_help="Exit 0 if no migration is pending.",
    epilog="\b\nExample:\n  tollgate db check || tollgate db upgrade",
)
def check(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Exit 0 if the tables are those of this version, 1 if migrations are pending, 3 if Postgres cannot be asked."""
    from gateway.storage import migrations

    toolbox: Toolbox = ctx.obj
    with toolbox.open_as_owner() as stores:
        pending = migrations.pending(stores.database)
    show_record({"database": stores.database.name, "is_current": not pending, "pending": pending}, format)
    if pending:
        note("Run: tollgate db upgrade")
        raise typer.Exit(1)


@app.command("url", epilog='\b\nExample:\n  psql "$(tollgate db url)"')
def url(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Print the address of the database, password included."""
    toolbox: Toolbox = ctx.obj
    with toolbox.open_as_owner() as stores:
        if format is Format.TABLE:
            write(f"{stores.url}\n")
        else:
            show_record({"url": stores.url}, format)
    if toolbox.options.database_url is None:
        note("The embedded Postgres answers only while a Tollgate process runs, for example `tollgate serve`.")


def first_ahead(today: date) -> date:
    """The first day of the last month that has its partition in advance."""
    return (today + AHEAD).replace(day=1)


def ensure_pepper(toolbox: Toolbox, stores: Stores) -> bool:
    """Create the pepper where there is none, and register it; True if it is new.

    A new one beside keys that were made with another would turn all of them away, so then none is made.
    """
    from gateway.storage import pepper

    path = toolbox.options.pepper_path
    is_new = not path.exists()
    if is_new and stores.keys.list_all():
        raise BadUsage(
            f"This database has API keys, but the pepper they were made with is not at {path}. "
            f"Restore it there, or set TOLLGATE_PEPPER_FILE to where it is."
        )
    pepper.create(path)
    pepper.register(stores.database, pepper.load(path))
    return is_new
