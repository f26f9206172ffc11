"""Declares `tollgate report schedule add`, `list` and `remove`: the statements that a gateway sends
when a month is closed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.reports.schedule import ALL, ReceiverKind, new_schedule
from gateway.errors import BadUsage
from gateway.storage.reports.schedules import ScheduleStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.reports.schedule import Receiver
    from gateway.reports.statements.schedules import ListedSchedule

COLUMNS = (
    "name",
    "cost_centre",
    "every",
    "to",
    "created_at",
    "author",
    "last_month",
    "last_version",
    "state",
    "tries",
    "last_error",
)

app = typer.Typer(
    name="schedule",
    help="Send statements to people when a month is closed.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "add",
    short_help="Send statements when a month is closed.",
    epilog="\b\nExamples:\n  tollgate report schedule add --name books --cost-centre all "
    "--every month --to folder:/srv/statements\n"
    "  tollgate report schedule add --name payments --cost-centre CC-1207 --every month \\\n"
    "    --to mailto:ana@example.com\n"
    "  tollgate report schedule add --name erp --cost-centre all --every month \\\n"
    "    --to https://erp.example/statements",
)
def add(
    ctx: typer.Context,
    name: Annotated[str, typer.Option("--name", metavar="N", help="The schedule's name.")],
    cost_centre: Annotated[
        str,
        typer.Option(
            "--cost-centre", metavar="CC|all", help="One, or each with an amount in the month."
        ),
    ],
    every: Annotated[str, typer.Option("--every", metavar="month", help="Once a month.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="RECEIVER",
            help="folder:PATH on the gateway's machine, https://…, or mailto:ADDRESS[,ADDRESS].",
        ),
    ],
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Send the statements of each month that is closed from now on, as PDF, once for each version:
    a month that is reopened and closed again is sent again.

    A running gateway sends them, and tries again for a day as it does with alerts; `list` shows the
    state. A webhook gets JSON with the files in base64, signed if the policy's alerts have a
    secret; http:// only on this machine or a private network. Needs the administration's login.
    """

    toolbox: Toolbox = ctx.obj
    schedule = new_schedule(name=name, cost_centre=cost_centre, every=every, to=to)
    receiver = schedule.receiver
    if receiver.kind is ReceiverKind.EMAIL and toolbox.mail_problem is None:
        raise BadUsage(
            "TOLLGATE_SMTP_URL is not set here, so no mail can be sent. Set it where the gateway "
            "runs and here (docs/reference/settings.md), then try again. Nothing was added."
        )
    with toolbox.open_admin() as database:
        ScheduleStore(database).add(schedule)
    show_record(
        {
            "name": schedule.name,
            "cost_centre": schedule.cost_centre or ALL,
            "every": every,
            "to": receiver.shown,
        },
        format,
    )
    _advise(receiver)


@app.command(
    "list",
    short_help="List schedules, and the state of their last delivery.",
    epilog="\b\nExample:\n  tollgate report schedule list --format json",
)
def list_all(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List schedules by name, each with the last month that it sent or tries to send.

    The path of a webhook is left out: it may hold a token.
    """
    toolbox: Toolbox = ctx.obj
    with toolbox.open_reports() as reports:
        found = reports.schedules()
    show(Table(COLUMNS, [_row(one) for one in found]), format, empty="No schedules.")


@app.command(
    "remove",
    short_help="End a schedule.",
    epilog="\b\nExample:\n  tollgate report schedule remove payments",
)
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="From `schedule list`.")],
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """End a schedule. Statements that wait to be sent are not sent any more; those that were sent
    stay in finance.statement_deliveries.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        ScheduleStore(database).remove(name)
    show_record({"name": name, "removed": True}, format)


def _advise(receiver: Receiver) -> None:
    """Name the next step for a receiver."""
    if receiver.kind is ReceiverKind.FOLDER and not Path(receiver.place).is_dir():
        note(f"There is no folder {receiver.place} here. The gateway's machine needs it.")
    note("Sent when a month is closed: tollgate month close. See: tollgate report schedule list")


def _row(one: ListedSchedule) -> tuple[object, ...]:
    """Return a schedule as a row of the list."""
    return (
        one.name,
        one.cost_centre,
        one.every,
        one.sent_to,
        one.created_at,
        one.author,
        None if one.last_month is None else f"{one.last_month:%Y-%m}",
        one.last_version,
        one.state,
        one.tries,
        one.last_error,
    )
