"""Declares `tollgate audit verify`, `head` and `list`, which check and print the log of
administrative changes, and registers `residency`; it changes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.audit.residency import residency
from gateway.cli.key import duration
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    note,
    print_json,
    show,
    show_record,
    write,
)
from gateway.domain.ledger.audit_chain import (
    AuditRow,
    ChainFinding,
    ChainHead,
    ChainWalk,
    read_head,
)
from gateway.errors import BadUsage, NothingFound
from gateway.storage.policy.audit import AuditLog

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.ledger.audit_chain import AuditAct
    from gateway.storage.policy.audit import AuditLog

MOST_SHOWN = 1000  # in a rewritten chain every row is wrong
SAY_EVERY_S = 2.0
COLUMNS = ("seq", "at", "action", "subject", "db_user", "operator", "reason", "details")
PROOF_COLUMNS = ("line", "previous", "hash")

app = typer.Typer(
    name="audit",
    help="The audit log: read it, and check it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "verify",
    short_help="Check that the audit log is unchanged.",
    epilog="\b\nExamples:\n  tollgate audit verify\n  tollgate audit verify --head-file "
    "/safe/tollgate.heads\n"
    '  tollgate audit verify --head "$(cat head-of-monday)" --format json',
)
def verify(
    ctx: typer.Context,
    head: Annotated[
        list[str] | None,
        typer.Option("--head", metavar="'SEQ HASH'", help="A head that was kept; repeatable."),
    ] = None,
    head_file: Annotated[
        Path | None,
        typer.Option("--head-file", metavar="FILE", help="Heads that were kept, one a line."),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Check every row of the audit log: its hash, its predecessor's hash, its number and its
    columns.

    Exit 1 if a row was edited, removed, moved or inserted. A cut end, or a chain rewritten from
    some row on, can only be detected against a head that was kept elsewhere: see `audit head`.
    """

    toolbox: Toolbox = ctx.obj
    walk = ChainWalk(_read_heads(head or (), head_file))
    with _open_log(toolbox) as log:
        found = walk.findings(_with_progress(log.rows(), log.count()))
        shown = list(islice(found, MOST_SHOWN))
        left_out = sum(1 for _ in found)
    _show_findings(walk, shown, left_out=left_out, format=format)
    if shown:
        note(
            f"The audit log is not as it was written: {len(shown) + left_out:,} finding(s) in "
            f"{walk.rows:,} row(s)."
        )
        raise typer.Exit(1)
    note(f"{walk.rows:,} row(s), each as it was written. Head: {walk.head or 'none'}")
    if head is None and head_file is None:
        note("Without a kept head a cut end cannot be detected. Next: tollgate audit head > FILE")


@app.command(
    "head",
    short_help="Print the last row's number and hash, to be kept elsewhere.",
    epilog="\b\nExample:\n  tollgate audit head >> /safe/tollgate.heads",
)
def head(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """Print number and hash of the last row: `SEQ HASH`.

    Keep it on a system that administrators of this database cannot write to. With it `audit verify
    --head` detects a log that was cut off.
    """

    toolbox: Toolbox = ctx.obj
    with _open_log(toolbox) as log:
        found = log.head()
    if found is None:
        raise NothingFound("The audit log is empty: nothing was administered yet.")
    if format is Format.TABLE:
        write(f"{found}\n")
    else:
        show_record({"seq": found.seq, "hash": found.hash}, format)


@app.command(
    "list",
    short_help="List who changed what, when and why.",
    epilog="\b\nExamples:\n  tollgate audit list --since 7d\n  tollgate audit list --action "
    "key. --subject 7Gh2kQ9xTz\n"
    "  tollgate audit list --all --format csv > audit.csv",
)
def list_acts(
    ctx: typer.Context,
    since: Annotated[
        str, typer.Option("--since", metavar="30d", help="As long ago: 12h, 30d, 8w.")
    ] = "30d",
    has_all: Annotated[bool, typer.Option("--all", help="From the first row on.")] = False,
    action: Annotated[
        str | None, typer.Option("--action", metavar="key.", help="Actions that begin so.")
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option("--subject", help="One key's id, policy version, budget, journal …"),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """List administrative acts, oldest first: who, when, why, what, and the figures.

    JSON and CSV also have the hashed line, its hash and the hash before, so that anyone can check
    them.
    """

    toolbox: Toolbox = ctx.obj
    begin = None if has_all else toolbox.now() - duration(since)
    with _open_log(toolbox) as log:
        acts = log.acts(since=begin, action=action, subject=subject)
    if format is Format.JSON:
        print_json(
            [{name: getattr(act, name) for name in (*COLUMNS, *PROOF_COLUMNS)} for act in acts]
        )
        return
    columns = COLUMNS if format is Format.TABLE else (*COLUMNS, *PROOF_COLUMNS)
    rows = [tuple(_cell(act, name) for name in columns) for act in acts]
    show(
        Table(columns, rows),
        format,
        empty="No such act. --all lists every one, --since 90d those of 90 days.",
    )


app.command(
    "residency",
    short_help="Write the auditor's report on the destinations of a team's data in a month.",
    epilog="\b\nExamples:\n  tollgate audit residency --team payments --month 2026-11 --out "
    "payments-2026-11.html\n"
    "  tollgate audit residency --team payments --month 2026-11 --format csv > payments.csv",
)(residency)


def _cell(act: AuditAct, name: str) -> Any:
    """Return one field of an act for a table; details are JSON text."""
    value = getattr(act, name)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value


def _read_heads(arguments: Iterable[str], file: Path | None) -> list[ChainHead]:
    """Return the chain heads from the arguments and the file. Raises `BadUsage`."""
    try:
        lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as broken:
        raise BadUsage(f"--head-file {file} cannot be read: {broken}.") from None
    kept = [line for line in lines if line.strip()]
    if file is not None and not kept:
        raise BadUsage(
            f"--head-file {file} has no head in it, so nothing was checked. Keep one with "
            "tollgate audit head >> FILE"
        )
    try:
        heads = [read_head(text) for text in (*arguments, *kept)]
    except ValueError as wrong:
        raise BadUsage(f"{wrong}.") from None
    return heads


def _with_progress(rows: Iterable[AuditRow], total: int) -> Iterator[AuditRow]:
    """Yield the audit rows unchanged, and print the share that is checked if it takes longer than a
    moment.
    """
    printed_s = time.monotonic()
    for place, row in enumerate(rows):
        if place % 1000 == 0 and time.monotonic() - printed_s > SAY_EVERY_S:
            printed_s = time.monotonic()
            note(f"{place:,} of {total:,} rows checked ({place / max(total, 1):.0%})")
        yield row


def _show_findings(
    walk: ChainWalk, shown: list[ChainFinding], *, left_out: int, format: Format
) -> None:
    """Print the rows of the audit log that are not as they were written; JSON also has the head and
    the count.
    """
    rows = [(finding.seq, finding.what) for finding in shown]
    if format is Format.JSON:
        last = walk.head
        print_json(
            {
                "is_whole": not shown,
                "rows": walk.rows,
                "head": None if last is None else {"seq": last.seq, "hash": last.hash},
                "findings": Table(("seq", "what"), rows).records(),
                "left_out": left_out,
            }
        )
    elif shown or format is Format.CSV:
        show(Table(("seq", "what"), rows), format, empty="")
    if left_out:
        note(f"… and {left_out:,} more")


@contextmanager
def _open_log(toolbox: Toolbox) -> Iterator[AuditLog]:
    """Open the audit log, to be read."""

    with toolbox.open_admin() as database:
        yield AuditLog(database)
