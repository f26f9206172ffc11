"""Declares `tollgate engine bill import`, which shows the effect of a GPU bill, asks, and writes it
to Postgres.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    note,
    show_record,
    table_text,
)
from gateway.domain.deployments.gpu_bills import HOUR_MS
from gateway.domain.deployments.imported_bills import BillFile, DeploymentBill
from gateway.domain.money import format_usd
from gateway.errors import BadUsage, PolicyRejected
from gateway.services.policy.apply import version_of
from gateway.storage.deployments.gpu_bills import GpuBillStore
from gateway.storage.policy.policies import PolicyStore
from gateway.wire.bills.gpu_bill import MOST_BYTES, parse_gpu_bill

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.deployments.gpu_bills import GpuBillStore
    from gateway.storage.policy.policies import PolicyStore

app = typer.Typer(
    name="bill",
    help="Bills of your own GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
def bill() -> None:
    """Import the bills of your own GPUs."""


@app.command(
    "import",
    short_help="Import a GPU bill from a CSV file.",
    epilog="\b\nExamples:\n  tollgate engine bill import november.csv\n"
    "  tollgate engine bill import november.csv --yes --format json",
)
def import_bill(
    ctx: typer.Context,
    file: Annotated[str, typer.Argument(metavar="FILE", help="CSV; - reads standard input.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Import a bill of your own GPUs: shows its effect by deployment, asks, and lets it count in
    place of uptime × rate.

    The columns are deployment, from, to, gpu_hours, amount, currency, invoice_id. Moments are UTC,
    and 'to' is exclusive. Each line is spread over its hours by seconds, to the nano-dollar. A
    later import replaces the lines of the same invoice and deployment, and in other lines the
    seconds that it covers. A line that cannot be read refuses the whole file.
    """

    toolbox: Toolbox = ctx.obj
    data = _read(file)
    with toolbox.open_admin() as database:
        bills = GpuBillStore(database)
        name = "standard input" if file == "-" else Path(file).name
        lines = parse_gpu_bill(data, name=name, known=_known(bills, PolicyStore(database)))
        _show_effect(bills.preview(lines))
        late = sum(line.end > toolbox.now() for line in lines)
        if late:
            note(f"{late} line(s) end in the future: their hours to come count as empty.")
        if not yes:
            confirm("Import this bill?", done="imported", act="import")
        found = bills.add(BillFile(name=name, sha256=sha256(data).hexdigest()), lines)
    show_record(
        {
            "import_id": str(found.import_id),
            "rows": found.rows,
            "duplicates": found.duplicates,
            "hours": found.hours,
            "amount_usd": found.amount_usd,
        },
        format,
    )
    if found.is_late:
        note(
            f"Some of its hours lie in closed months, which stay as they are: {found.late_usd:f} "
            "USD is booked as a late bill in the oldest month that is not closed."
        )
    if not found.is_changed:
        note("Every line counts already: nothing was changed.")


def _read(file: str) -> bytes:
    """Return the bytes of a bill, one more than the most at most. Raises `BadUsage`."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        with Path(file).open("rb") as opened:
            return opened.read(MOST_BYTES + 1)
    except OSError as broken:
        raise BadUsage(f"{file} cannot be read: {broken.strerror}.") from None


def _known(bills: GpuBillStore, policies: PolicyStore) -> frozenset[str]:
    """Return the names of the deployments that may have a bill: those of the ledger, and the
    self-hosted ones of the policy.
    """
    stored = policies.current()
    try:
        policy = None if stored is None else version_of(stored).policy
    except PolicyRejected:
        policy = None
    deployments = () if policy is None else policy.deployments.values()
    own = {deployment.name for deployment in deployments if deployment.is_self_hosted}
    return bills.deployments() | own


def _show_effect(found: Sequence[DeploymentBill]) -> None:
    """Print the effect of an import by deployment, on standard error: the result goes to standard
    output.
    """
    columns = ("deployment", "rows", "from", "to", "gpu_hours", "bill", "uptime × rate", "replaces")
    rows = [
        (
            one.deployment,
            f"{one.rows:,}",
            f"{one.begin:%Y-%m-%d %H:%M}",
            f"{one.end:%Y-%m-%d %H:%M}",
            f"{one.gpu_ms / HOUR_MS:,.2f}",
            format_usd(one.amount_usd),
            format_usd(one.estimated_usd),
            format_usd(one.replaced_usd),
        )
        for one in found
    ]
    note(table_text(columns, rows, lambda place: place in (1, 4, 5, 6, 7)).rstrip())
