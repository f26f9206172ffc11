"""Declares `tollgate reconcile import|show|approve`: a provider's bill from a file, its differences
to the metered usage, and their approval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from gateway.cli.operator import ReasonOption
from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    csv_of,
    note,
    print_json,
    show,
    show_record,
    write,
)
from gateway.cli.terminal.progress import ProgressStep
from gateway.domain.deployments.imported_bills import BillFile
from gateway.domain.money import format_usd, usd_from_nusd
from gateway.domain.providers.table import PROVIDERS
from gateway.domain.reconciliation.bills import BillFileKind
from gateway.domain.reconciliation.statement import (
    APPROVED,
    Cause,
    ReconciledRow,
    Totals,
)
from gateway.errors import BadUsage, NothingFound
from gateway.reports.question import month_of, month_start
from gateway.reports.sources.demo_ledger import DEMO_LEDGER_NOTE
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.reconciliation.bills import ProviderBillStore

if TYPE_CHECKING:
    from gateway.cli.invoices.reconciliation import Reconciliation
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.postgres.database import Database

CHUNK_BYTES = 2**20
MOST_MAPPING_BYTES = 2**20
QUIET_S = 2.0  # a step that is shorter shows no progress
COLUMNS: dict[str, str] = {
    "day": "",
    "account": "",
    "model": "",
    "token_kind": "",
    "metered_quantity": "tokens",
    "billed_quantity": "tokens",
    "metered_usd": "USD",
    "billed_usd": "USD",
    "difference_usd": "USD",
    "cause": "",
    "evidence": "",
}

ProviderOption = Annotated[
    str, typer.Option("--provider", metavar="P", help="The provider of the policy's deployments.")
]
MonthOption = Annotated[
    str, typer.Option("--month", metavar="YYYY-MM", help="The month, in UTC, or last.")
]


def register(app: typer.Typer) -> None:
    """Add the commands on providers' bills to the command line's `reconcile` group."""
    app.command(
        "import",
        short_help="Import a provider's bill from a file.",
        epilog="\b\nExamples:\n"
        "  tollgate reconcile import usage.json --provider openai --kind openai-usage "
        "--account org-acme\n"
        "  tollgate reconcile import costs.json --provider openai --kind openai-costs "
        "--account org-acme\n"
        "  tollgate reconcile import partner.csv --provider openai_compatible --kind csv "
        "--mapping map.yaml --dry-run",
    )(import_export)
    app.command(
        "show",
        short_help="Explain a bill's differences to the meter.",
        epilog="\b\nExamples:\n  tollgate reconcile show --provider openai --month 2026-11\n"
        "  tollgate reconcile show --provider openai --month 2026-11 --format csv > gap.csv",
    )(show_month)
    app.command(
        "approve",
        short_help="Book a bill's differences as adjustments.",
        epilog="\b\nExamples:\n"
        "  tollgate reconcile approve --provider openai --month 2026-11 --reason 'invoice 4711'\n"
        "  tollgate reconcile approve --provider openai --month 2026-11 --cause fee "
        "--team platform \\\n    --reason 'support plan'",
    )(approve)


def import_export(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The export; - reads standard input.")
    ],
    provider: ProviderOption,
    kind: Annotated[BillFileKind, typer.Option("--kind", help="The kind of file.")],
    account: Annotated[
        str | None,
        typer.Option("--account", help="The account, if the file does not name one."),
    ] = None,
    mapping: Annotated[
        Path | None,
        typer.Option(
            "--mapping", metavar="MAP.yaml", help="Our columns by theirs, and `models` by theirs."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the file and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accepted; it never asks.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Import an export of a provider's usage or costs.

    A day in the file replaces that day of the same provider, account and kind whole, so the same
    file twice, or a newer export of the same days, counts once. A line that cannot be read refuses
    the whole file. Quantities come from usage exports, money from cost exports; the other kinds
    have both.

    The mapping is YAML: `amount: Cost` (our column, theirs; of day, account, project, key, model,
    token_kind, quantity, amount, currency) and `models: {theirs: ours}`.
    """
    from gateway.wire.bills.exports.readers import parse_export, parse_mapping

    toolbox: Toolbox = ctx.obj
    _check_provider(provider)
    own_mapping = {}
    if mapping is not None:
        own_mapping = {"mapping": parse_mapping(_mapping_bytes(mapping), name=mapping.name)}
    name = "standard input" if file == "-" else Path(file).name
    with _open(file) as opened, _step(f"Reading {name}") as step:
        read = _FileRead(opened, size=_size_of(file), step=step)
        export = parse_export(read.chunks(), kind=kind, name=name, account=account, **own_mapping)
    with toolbox.open_admin() as database:
        bills = ProviderBillStore(database)
        if dry_run:
            found = bills.preview(provider, export)
        else:
            stored = BillFile(name=name, sha256=read.digest.hexdigest())
            found = bills.add(provider, export, stored)
    show_record(
        {
            "import_id": None if found.import_id is None else str(found.import_id),
            "rows": found.rows,
            "duplicates": found.duplicates,
            "first_day": export.first_day.isoformat(),
            "last_day": export.last_day.isoformat(),
            "amount_usd": usd_from_nusd(export.amount_nusd),
        },
        format,
    )
    if dry_run:
        note("Nothing was changed: a dry run.")
    elif found.import_id is None:
        note("Every day counts already as it is in the file: nothing was changed.")
    if all(line.amount_nusd is None for line in export.lines):
        note("It has quantities alone: the money is in the provider's export of costs.")


def show_month(
    ctx: typer.Context,
    provider: ProviderOption,
    month: MonthOption,
    format: FormatOption = Format.TABLE,
) -> None:
    """Compare a provider's bill with the metered usage: quantities first, money second. Exit 1 if
    anything is unexplained.

    A row has one cause; the rows of one day, account, model and kind of token add up to its
    difference, billed less metered. `none` with a difference is unexplained. There is no tolerance.
    """
    toolbox: Toolbox = ctx.obj
    _check_provider(provider)
    first = _first_day(toolbox, month)
    with toolbox.open_admin() as database:
        found = _reconciled(database, provider, first)
    with toolbox.open_reports() as reports:
        is_demo_ledger = reports.is_demo_ledger()
    _print(found, provider, first, format, is_demo_ledger=is_demo_ledger)
    if not found.has_bill:
        note(
            f"No bill of {provider} was imported for {first:%Y-%m}: tollgate reconcile import "
            f"FILE --provider {provider} --kind KIND"
        )
    unexplained = sum(row.is_unexplained for row in found.rows)
    if unexplained:
        note(f"Unexplained: {unexplained} row(s) with the cause none and a difference.")
        raise typer.Exit(1)


def approve(
    ctx: typer.Context,
    provider: ProviderOption,
    month: MonthOption,
    reason: ReasonOption,
    cause: Annotated[
        Cause | None, typer.Option("--cause", help="One cause; all that can be approved otherwise.")
    ] = None,
    team: Annotated[
        str | None, typer.Option("--team", help="The team of parts that have none.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Book the explained differences as adjustments of kind true_up, in the oldest month that is
    not closed.

    Without --cause: aborted, quantity, price, rounding, unmetered and fee. Timing, missing bills
    and unmapped lines are never booked. A part without a team is booked without one, unless --team
    names it. A repeat changes nothing; after a newer bill it books the change.
    """
    from gateway.cli.invoices.reconciliation import approve_month, owner_of

    toolbox: Toolbox = ctx.obj
    _check_provider(provider)
    first = _first_day(toolbox, month)
    if not reason.strip():
        raise BadUsage("--reason must say why, such as the invoice's number. Nothing was booked.")
    if cause is not None and cause not in APPROVED:
        others = ", ".join(one.value for one in APPROVED)
        raise BadUsage(
            f"{cause.value} cannot be approved. These can: {others}. Nothing was booked."
        )
    causes = APPROVED if cause is None else (cause,)
    with toolbox.open_admin() as database:
        found = _reconciled(database, provider, first)
        if not found.has_bill:
            raise NothingFound(
                f"No bill of {provider} was imported for {first:%Y-%m}. Nothing to book."
            )
        _show_effect(found, causes)
        if not yes:
            confirm("Book these differences as adjustments?", done="booked", act="book")
        policies = PolicyStore(database)
        booked = approve_month(
            ProviderBillStore(database),
            provider,
            first,
            found=found,
            causes=causes,
            owner=None if team is None else owner_of(team, first, policies=policies),
            reason=reason.strip(),
        )
    show_record(
        {
            "adjustments": booked.adjustments,
            "amount_usd": usd_from_nusd(booked.amount_nusd),
            "posted_period": f"{booked.posted_period:%Y-%m}",
        },
        format,
    )
    if not booked.adjustments:
        is_booked = any(row.cause in causes for row in found.rows)
        note(
            f"{'Everything is booked already' if is_booked else 'There is nothing to book'}: "
            "nothing was changed."
        )
    left = sorted(
        {
            "unexplained" if row.cause is Cause.NONE else row.cause.value
            for row in found.rows
            if row.difference_nusd and row.cause not in APPROVED
        }
    )
    if left:
        note(
            f"Still open, because it is never booked: {', '.join(left)}. The rows: tollgate "
            f"reconcile show --provider {provider} --month {first:%Y-%m}"
        )


def _check_provider(provider: str) -> None:
    """Raise `BadUsage` for an unknown provider."""
    if provider not in PROVIDERS:
        raise BadUsage(f"'{provider}' is no provider. There are: {', '.join(PROVIDERS)}.")


def _first_day(toolbox: Toolbox, month: str) -> date:
    """Return the first day of the month that --month names. Raises `BadUsage`."""
    return month_start(month_of(month, now=toolbox.now()) or month)


def _reconciled(database: Database, provider: str, month: date) -> Reconciliation:
    """Return the reconciliation of a month, with progress by its days."""
    from gateway.cli.invoices.reconciliation import reconcile_month

    bills, policies = ProviderBillStore(database), PolicyStore(database)
    with _step(f"Adding up {month:%Y-%m}") as step:

        def on_day(day: date) -> None:
            step.advance(f"{day}", done=max(0.0, min(1.0, (day - month).days / 31)))

        return reconcile_month(bills, provider, month, policies=policies, on_day=on_day)


def _step(title: str) -> ProgressStep:
    """Return a step that shows itself after two seconds, on standard error."""
    return ProgressStep(title, quiet_s=QUIET_S, out=sys.stderr)


@contextmanager
def _open(file: str) -> Iterator[BinaryIO]:
    """Open a file to read, or standard input. Raises `BadUsage`."""
    if file == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(Path(file).open("rb"))
        except OSError as broken:
            raise BadUsage(f"{file} cannot be read: {broken.strerror}.") from None
        yield opened


def _size_of(file: str) -> int | None:
    """Return a file's size in bytes; None for standard input and for other kinds of files."""
    path = Path(file)
    return path.stat().st_size if file != "-" and path.is_file() else None


@dataclass(slots=True)
class _FileRead:
    """A file that is read in pieces, with its digest and progress."""

    opened: BinaryIO
    size: int | None
    step: ProgressStep
    digest: Any = field(default_factory=sha256)

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes. Raises `BadUsage` if they cannot be read."""
        done = 0
        try:
            while chunk := self.opened.read(CHUNK_BYTES):
                done += len(chunk)
                self.digest.update(chunk)
                share = done / self.size if self.size else None
                self.step.advance(f"{done >> 20} MiB", done=share)
                yield chunk
        except OSError as broken:
            raise BadUsage(f"The file cannot be read: {broken.strerror}.") from None


def _mapping_bytes(path: Path) -> bytes:
    """Return the bytes of a mapping. Raises `BadUsage`."""
    try:
        with path.open("rb") as opened:
            return opened.read(MOST_MAPPING_BYTES + 1)
    except OSError as broken:
        raise BadUsage(f"{path} cannot be read: {broken.strerror}.") from None


def _print(
    found: Reconciliation, provider: str, month: date, format: Format, *, is_demo_ledger: bool
) -> None:
    """Print the rows and sums of a reconciliation."""
    table = Table(tuple(COLUMNS), [_cells(row) for row in found.rows])
    total = _total(found.totals)
    if format is Format.JSON:
        print_json(
            {
                "provider": provider,
                "month": f"{month:%Y-%m}",
                "dataset": "demo-ledger" if is_demo_ledger else "real",
                "columns": [{"name": name, "unit": unit} for name, unit in COLUMNS.items()],
                "rows": table.records(),
                "total": total,
            }
        )
        return
    if format is Format.CSV:
        write(csv_of(table))
    elif found.has_bill:  # without one, every row differs in the same way
        # Agreement is one line for all rows: people look for the differences.
        differing = [row for row in found.rows if row.cause is not Cause.NONE or row.is_unexplained]
        show(
            Table(tuple(COLUMNS), [_cells(row, as_text=True) for row in differing]),
            format,
            empty="The bill and the meter agree.",
        )
        note(f"{len(found.rows) - len(differing)} more row(s) agree.")
    if is_demo_ledger:
        note(DEMO_LEDGER_NOTE)
    note(_total_text(found))


def _cells(row: ReconciledRow, *, as_text: bool = False) -> tuple[Any, ...]:
    """Return a row's cells in the order of the columns."""
    key = row.key
    return (
        key.day.isoformat(),
        key.account,
        key.model,
        key.token_kind,
        _quantity(row.metered_quantity, as_text=as_text),
        _quantity(row.billed_quantity, as_text=as_text),
        usd_from_nusd(row.metered_nusd),
        usd_from_nusd(row.billed_nusd),
        usd_from_nusd(row.difference_nusd),
        row.cause.value,
        row.evidence,
    )


def _quantity(value: Decimal | None, *, as_text: bool) -> int | Decimal | str | None:
    """Return a quantity as a whole number, if it is one."""
    if value is None:
        return None
    if value == value.to_integral_value():
        return f"{int(value):,}" if as_text else int(value)
    return f"{value:,f}" if as_text else value


def _total(totals: Totals) -> dict[str, Any]:
    """Return the sums as a record."""
    return {
        "metered_usd": usd_from_nusd(totals.metered_nusd),
        "billed_usd": usd_from_nusd(totals.billed_nusd),
        "difference_usd": usd_from_nusd(totals.difference_nusd),
        "coverage_share": totals.coverage_share,
        "unexplained_usd": usd_from_nusd(totals.unexplained_nusd),
    }


def _total_text(found: Reconciliation) -> str:
    """Return the sums by cause as text for people."""
    totals = found.totals
    by_cause: dict[Cause, int] = {}
    for row in found.rows:
        by_cause[row.cause] = by_cause.get(row.cause, 0) + row.difference_nusd
    lines = [f"{'metered':<14}{format_usd(usd_from_nusd(totals.metered_nusd)):>20}"]
    lines += [
        f"{cause.value if cause is not Cause.NONE else 'unexplained':<14}"
        f"{format_usd(usd_from_nusd(nusd)):>20}"
        for cause, nusd in by_cause.items()
        if nusd or cause is not Cause.NONE
    ]
    lines.append(f"{'billed':<14}{format_usd(usd_from_nusd(totals.billed_nusd)):>20}")
    if totals.coverage_share is not None:
        lines.append(f"{'coverage':<14}{totals.coverage_share:>20.4%}")
    return "\n".join(lines)


def _show_effect(found: Reconciliation, causes: tuple[Cause, ...]) -> None:
    """Print the sums of the causes that are approved, on standard error."""
    for cause in causes:
        rows = [row for row in found.rows if row.cause is cause]
        if rows:
            nusd = sum(row.difference_nusd for row in rows)
            note(f"{cause.value:<14}{len(rows):>6} row(s){format_usd(usd_from_nusd(nusd)):>18}")
