"""Declares `tollgate db upgrade`, `check` and `url`, which migrate the tables, make partitions,
logins and the pepper, and print the database's address.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, note, show_record, write
from gateway.domain.calendar_months import last_partitioned_month
from gateway.domain.checks import Status
from gateway.domain.database_server import ROLE_RIGHTS, server_checks
from gateway.domain.logins import LoginPurpose
from gateway.errors import BadUsage
from gateway.storage.administration import ensure_logins, require_suitable
from gateway.storage.ledger import rollups
from gateway.storage.policy import pepper
from gateway.storage.policy.keys import KeyStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import user_of
from gateway.storage.postgres.embedded import owner_of
from gateway.storage.postgres.logins import login_problem
from gateway.storage.postgres.partitions import attach_months, ensure_months
from gateway.storage.postgres.server_facts import read_facts

if TYPE_CHECKING:
    from gateway.cli.toolbox import Options, Toolbox
    from gateway.domain.logins import CreatedLogins
    from gateway.storage.postgres.database import Database

DAY = timedelta(days=1)

app = typer.Typer(
    name="db",
    help="Create, update and check the database.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "upgrade",
    short_help="Bring the tables to this version.",
    epilog="\b\nExamples:\n  tollgate db upgrade\n  TOLLGATE_DATABASE_URL=… tollgate db upgrade",
)
def upgrade(
    ctx: typer.Context,
    new_passwords: Annotated[
        bool,
        typer.Option(
            "--new-passwords",
            help="Give the logins new passwords; other homes then need this file.",
        ),
    ] = False,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Bring the tables to this version, one migration after the other; a running older gateway
    continues.

    Creates the pepper, the secret behind the stored digests of API keys, if it is missing: back it
    up. Makes one login each for serving, reports, administration and finance, and keeps their
    passwords in HOME/logins. Later commands use those logins; only this one uses the owner's. If it
    may not make them, it prints the SQL for an administrator, once. Gives Tollgate's roles back
    every right that they lost, and closes the database to the logins of another one. Attaches
    each month's partition that was detached. Has this month's hours summed again whose sums differ
    from their events. Running it again changes nothing.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_owner() as database:
        require_suitable(database)
        applied = migrations.upgrade(database, on_step=note)
        today = toolbox.now().date()
        months = [
            *attach_months(database),
            *ensure_months(database, first=today, last=last_partitioned_month(today)),
        ]
        wrong = rollups.sum_wrong_hours_again(database, since=_month_of(toolbox.now() - DAY))
        is_new = _ensure_pepper(toolbox, database)
        made = _ensure_logins(toolbox, database, renews=new_passwords)
        has_policy = PolicyStore(database).current() is not None
    record = {
        "applied": applied,
        "partitions": months,
        "pepper": str(toolbox.options.pepper_path),
        "pepper_new": is_new,
        "logins": list(made.ready),
    }
    show_record(record, format)
    for text in made.notes:
        note(text)
    if wrong:
        note(
            f"{wrong} hour(s) had other sums than their events: reports read the events, and a "
            "gateway sums them again."
        )
    if made.sql:
        note(
            "The owner may not make the logins. An administrator runs this, then run this "
            "command again:"
        )
        for statement in made.sql:
            note(f"  {statement}")
    if new_passwords:
        note(
            "Gateways of this home use the new passwords at their next connection. Restart the "
            "ones of other homes."
        )
    if is_new:
        note(
            f"Back up {toolbox.options.pepper_path}: without it no API key of this database works."
        )
    if not has_policy:
        note("Next: tollgate policy apply FILE")


@app.command(
    "check",
    short_help="Exit 0 if no migration is pending and no right is lost.",
    epilog="\b\nExample:\n  tollgate db check || tollgate db upgrade",
)
def check(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Exit 0 if the tables are those of this version, 1 if migrations are pending, Tollgate's roles
    have lost rights, or the tables are older than 0.1.0 or upgraded by a newer Tollgate, 2 if the
    address is that of a pooler without sessions or of a read-only server, 3 if Postgres cannot be
    asked.

    Prints the risks of the server (losses in a crash, rights of every login), each with the SQL
    that mends it.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        require_suitable(database)
        try:
            pending = migrations.pending(database)
        except BadUsage as other:  # a finding of this check, not a wrong use of it
            show_record({"database": database.name, "is_current": False, "pending": []}, format)
            note(other.message)
            raise typer.Exit(1) from None
        checks = [] if pending else list(server_checks(read_facts(database)))
    show_record({"database": database.name, "is_current": not pending, "pending": pending}, format)
    for found in checks:
        if found.status is not Status.OK:
            note(f"{found.status.value}: {found.name}: {found.finding}")
            note(f"  {found.remedy}")
    if any(found.name == ROLE_RIGHTS and found.status is Status.FAIL for found in checks):
        raise typer.Exit(1)
    if pending:
        note("Run: tollgate db upgrade")
        raise typer.Exit(1)


@app.command(
    "url",
    short_help="Print the database's address with its password.",
    epilog='\b\nExample:\n  psql "$(tollgate db url --as reports)"',
)
def url(
    ctx: typer.Context,
    purpose: Annotated[
        LoginPurpose | None,
        typer.Option(
            "--as", help="By the login for one purpose, not the owner's.", show_choices=True
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print the address of the database, password included: the owner's, or that of a narrower
    login.

    A narrower login that Postgres refuses, as after it changed its own password, is an error: no
    other login takes its place.
    """

    toolbox: Toolbox = ctx.obj
    with _held_address(toolbox, purpose) as address:
        if purpose is not None and (problem := login_problem(address)):
            raise BadUsage(problem)
        if format is Format.TABLE:
            write(f"{address}\n")
        else:
            show_record({"url": address}, format)
    if purpose is None:
        note(
            "This is the owner's login, which may change everything. To read: tollgate db url "
            "--as reports"
        )
    elif _is_owners(address, purpose, toolbox):
        note(
            f"There is no login for {purpose} yet, so this is the owner's. Make them: tollgate "
            "db upgrade"
        )
    if toolbox.options.database_url is None:
        note(
            "The embedded Postgres answers other programs only while a Tollgate process runs, for "
            "example `tollgate serve`."
        )


@contextmanager
def _held_address(toolbox: Toolbox, purpose: LoginPurpose | None) -> Iterator[str]:
    """Yield the database address for a login's purpose, or the owner's; it is valid inside the
    block.
    """
    if purpose is not None:
        with toolbox.open_address(purpose) as address:
            yield address
    else:
        with toolbox.open_owner() as database:
            yield database.url


def _is_owners(address: str, purpose: LoginPurpose, toolbox: Toolbox) -> bool:
    """Return True if an address has the owner's login because no narrower one was made; False if
    the settings name it.
    """

    if _named(toolbox.options)[purpose] is not None:
        return False
    return user_of(address) == owner_of(toolbox.options.database_url)


def _named(options: Options) -> dict[LoginPurpose, str | None]:
    """Return the database address that the settings name for each purpose; None for a purpose
    without one.
    """
    return {
        LoginPurpose.GATEWAY: options.gateway_database_url,
        LoginPurpose.REPORTS: options.reports_database_url,
        LoginPurpose.ADMIN: options.admin_database_url,
        LoginPurpose.FINANCE: options.finance_database_url,
    }


def _ensure_logins(toolbox: Toolbox, database: Database, *, renews: bool = False) -> CreatedLogins:
    """Create the database logins that are missing, one for each purpose; `renews` gives all of them
    new passwords.

    Those that the settings name are made with the passwords in there.
    """

    options = toolbox.options
    given = {
        purpose: address for purpose, address in _named(options).items() if address is not None
    }
    return ensure_logins(database, options.home, given=given, renews=renews)


def _ensure_pepper(toolbox: Toolbox, database: Database) -> bool:
    """Create the pepper if it is missing, and register it in the database; return True if it is
    new.

    If keys exist that were made with another pepper, none is made, because a new one would reject
    them all.
    """

    path = toolbox.options.pepper_path
    is_new = not path.exists()
    if is_new and KeyStore(database).list_all():
        raise BadUsage(
            f"This database has API keys, but their pepper is not at {path}. Restore it there, or "
            "set TOLLGATE_PEPPER_FILE to its path."
        )
    pepper.create(path)
    pepper.register(database, pepper.load(path))
    return is_new


def _month_of(moment: datetime) -> datetime:
    """Return the first moment of the month (UTC)."""
    return moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
