"""Declares the `tollgate month` commands: list a month's open items, close it, reopen it, and
verify the hash of a closed one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    note,
    show,
    show_record,
    table_text,
)
from gateway.domain.allocation.reallocation import ReallocationState
from gateway.domain.ledger.month_close import month_moments
from gateway.domain.money import format_usd
from gateway.errors import BadUsage, OperatorError
from gateway.reports.question import month_start
from gateway.reports.sources.demo_ledger import DEMO_LEDGER_NOTE
from gateway.services.ledger.billed_hours import billed_spans
from gateway.storage.ledger.months import MonthStore
from gateway.storage.policy.policies import PolicyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.ledger.month_close import BilledSpan, MonthClose
    from gateway.reports.month.status import MonthStatus
    from gateway.reports.reports import Reports
    from gateway.storage.postgres.database import Database

PROGRESS_EVERY_S = 2.0

app = typer.Typer(
    name="month",
    help="Look at a month's books, close and reopen them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
MonthArgument = Annotated[str, typer.Argument(metavar="MONTH", help="YYYY-MM (UTC).")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.callback()
def month() -> None:
    """Look at a month's books, close and reopen them."""


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
    """List a month's open items and the command that settles each. Changes nothing. Exit 1 on a
    finding.

    Each check counts only items that can touch this month. `month close` refuses a month with a
    finding unless it is accepted with a reason. Days and months are UTC; demo data are left out.
    """
    toolbox: Toolbox = ctx.obj
    wanted = month_start(month) if month else toolbox.now().date().replace(day=1)
    with toolbox.open_admin() as database, toolbox.open_reports() as reports:
        found = reports.month_status(wanted, billed=_billed(toolbox, database, wanted))
        is_demo_ledger = reports.is_demo_ledger()
        _note_proposed(reports, wanted)
    rows = [(check.name, check.status.value, check.finding, check.remedy) for check in found.checks]
    show(Table(("check", "status", "finding", "mend"), rows), format, empty="")
    if is_demo_ledger:
        note(DEMO_LEDGER_NOTE)
    note(f"Month {wanted:%Y-%m} is {found.state}.")
    if found.has_findings:
        if found.state == "provisional":
            note(
                "Settle each open check, or accept it with a reason: tollgate month close "
                f"{wanted:%Y-%m} --accept CHECK=WHY"
            )
        raise typer.Exit(1)
    attempts = "" if found.attempts else f"No attempts in {wanted:%Y-%m}. "
    note(f"{attempts}Nothing stands against closing it.")


@app.command(
    "close",
    short_help="Close a month.",
    epilog="\b\nExamples:\n  tollgate month close 2026-10\n"
    "  tollgate month close 2026-10 --accept 'suspect-usage=asked the provider, ticket 4711' --yes",
)
def close(
    ctx: typer.Context,
    month: MonthArgument,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="CHECK=WHY", help="Close it though this check is open."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="A note for the audit log.")] = "",
    yes: YesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Close a month for good: its figures do not change any more, and a hash over its events,
    adjustments, allocation and rates is kept.

    Months close oldest first, once they are over. Later events and adjustments are posted to the
    oldest month that is not closed. Each open check must be settled or accepted with a reason,
    which is kept. Shows the checks and asks first.
    """

    toolbox: Toolbox = ctx.obj
    wanted, accepted = month_start(month), _accepted(accept or ())
    with toolbox.open_approving() as database:
        billed = _billed(toolbox, database, wanted)
        with toolbox.open_reports() as reports:
            found = reports.month_status(wanted, billed=billed)
            _note_proposed(reports, wanted)
        _show_open(found, accepted)
        if not found.attempts:
            note(
                f"The ledger has no attempts in {wanted:%Y-%m}. Attempts that come late for a "
                "closed month are posted to the oldest open one."
            )
        if not yes:
            confirm(f"Close {wanted:%Y-%m}?", done="changed", act="go on")
        closed = MonthStore(database).close(
            wanted, billed=billed, accepted=accepted, reason=reason.strip(), on_part=_progress()
        )
    show_record(_record(closed, state="closed"), format)
    note(
        f"{wanted:%Y-%m} is closed as version {closed.version}: "
        f"{format_usd(closed.total_usd)}. tollgate report spend --month {wanted:%Y-%m} --as-closed "
        "shows it at any time."
    )


def _note_proposed(reports: Reports, month: date) -> None:
    """Say that proposed re-allocations of a month wait, which a close does not take along."""
    waiting = sum(one.state == ReallocationState.PROPOSED for one in reports.reallocations(month))
    if waiting:
        note(
            f"{waiting} proposed re-allocation(s) of {month:%Y-%m} wait for an approval. See: "
            f"tollgate reallocation list --month {month:%Y-%m}"
        )


@app.command(
    "reopen",
    short_help="Reopen the newest closed month.",
    epilog="\b\nExample:\n  tollgate month reopen 2026-10 --reason 'credit note 4711 came late'",
)
def reopen(
    ctx: typer.Context,
    month: MonthArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    yes: YesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Reopen the newest closed month, for a reason that is kept. Asks first.

    It takes its own late events and adjustments again, and closes as the next version. The figures
    of the version before stay: report --as-closed --close-version N.
    """

    toolbox: Toolbox = ctx.obj
    wanted = month_start(month)
    if not reason.strip():
        raise BadUsage("--reason must say why. Nothing was changed.")
    if not yes:
        confirm(f"Reopen {wanted:%Y-%m}?", done="changed", act="go on")
    with toolbox.open_approving() as database:
        reopened = MonthStore(database).reopen(wanted, reason=reason.strip())
    show_record(_record(reopened, state="provisional"), format)
    note(f"{wanted:%Y-%m} can change again. Version {reopened.version} is kept.")


@app.command(
    "verify",
    short_help="Check a closed month against its hash.",
    epilog="\b\nExample:\n  tollgate month verify 2026-10",
)
def verify(
    ctx: typer.Context,
    month: MonthArgument,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Compute the hash of each closed version of a month again, and print the stored and the
    recomputed one. Exit 1 if they differ.

    `differs` names the parts of the hash that changed, and `figures` for the counts and total.
    """

    toolbox: Toolbox = ctx.obj
    wanted = month_start(month)
    with toolbox.open_approving() as database:
        found = MonthStore(database).verify(wanted, on_part=_progress())
    *earlier, newest = found
    state = "provisional" if newest.close.is_reopened else "closed"
    again = {"recomputed_sha256": newest.sha256, "differs": list(newest.differing)}
    show_record(_record(newest.close, state=state) | again, format)
    for one in earlier:
        note(
            f"Version {one.close.version}, reopened since: {one.close.sha256} stored, "
            f"{one.sha256} recomputed."
        )
    wrong = [one for one in found if one.differing or one.sha256 != one.close.sha256]
    if wrong:
        parts = ", ".join(sorted({name for one in wrong for name in one.differing}))
        raise OperatorError(
            f"{wanted:%Y-%m} is not as it was closed: its {parts} changed. Someone changed the "
            "database past Tollgate; compare with a backup from before."
        )
    note(f"{wanted:%Y-%m} is as it was closed.")


def _billed(toolbox: Toolbox, database: Database, month: date) -> list[BilledSpan]:
    """Return the GPU hours of a month that the policies declare."""

    begin, end = month_moments(month)
    return billed_spans(PolicyStore(database).history(), begin=begin, end=end, now=toolbox.now())


def _accepted(words: list[str] | tuple[str, ...]) -> dict[str, str]:
    """Return the reason for each accepted check. Raises `BadUsage`."""
    found = {}
    for word in words:
        name, separator, why = word.partition("=")
        if not separator or not why.strip():
            raise BadUsage(f"--accept takes CHECK=WHY; got '{word}'. Nothing was changed.")
        found[name.strip()] = why.strip()
    return found


def _show_open(found: MonthStatus, accepted: Mapping[str, str]) -> None:
    """Print the open checks of a month, and whether each is accepted, on standard error."""
    rows = [
        (
            check.name,
            "accepted" if check.name in accepted else check.status.value,
            check.finding,
            accepted.get(check.name, check.remedy),
        )
        for check in found.open_checks
    ]
    if rows:
        note(table_text(("check", "status", "finding", "mend"), rows, lambda _: False).rstrip())


def _record(found: MonthClose, *, state: str) -> dict[str, object]:
    """Return a closed version as a record for programs and people."""
    return {
        "month": f"{found.month:%Y-%m}",
        "state": state,
        "version": found.version,
        "sha256": found.sha256,
        "events": found.events,
        "adjustments": found.adjustments,
        "total_usd": found.total_usd,
        "closed_at": found.closed_at,
        "author": found.author
        if found.operator in (None, found.author)
        else f"{found.author} ({found.operator})",
        "accepted": found.accepted,
    }


def _progress() -> Callable[[str, int], None]:
    """Return a function that prints, every two seconds, how far a hash has come."""
    printed_s = monotonic()

    def on_part(name: str, rows: int) -> None:
        nonlocal printed_s
        if monotonic() - printed_s >= PROGRESS_EVERY_S:
            printed_s = monotonic()
            note(f"{rows:,} {name} hashed.")

    return on_part
