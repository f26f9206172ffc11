"""Runs `tollgate policy apply` and `rollback`: shows the plan, asks, makes a document (or an older
one) the current policy, and waits until gateways serve it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.operator import operator_name
from gateway.cli.policy.document import FilesArgument, read_policy, require_version
from gateway.cli.policy.plan import DemoOption, ReplayOption, make_plan, show_plan
from gateway.cli.policy.wait_until_live import wait_until_live
from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.errors import BadUsage, NothingFound
from gateway.services.policy.apply import Applied, apply_policy, document_sha256
from gateway.storage.ledger.journals_table import JournalTable
from gateway.storage.policy.audit import AuditLog
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.wire.parsed_policy import ParsedPolicy, parse

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.stored_policy import StoredPolicy
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.postgres.database import Database

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
MessageOption = Annotated[
    str, typer.Option("--message", "-m", "--reason", help="Why, for the history.")
]
NoWaitOption = Annotated[
    bool, typer.Option("--no-wait", help="Do not wait until it is live everywhere.")
]


def apply(
    ctx: typer.Context,
    files: FilesArgument,
    yes: YesOption = False,
    message: MessageOption = "",
    past: ReplayOption = None,
    demo: DemoOption = False,
    no_wait: NoWaitOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a document the current policy: shows the plan, asks, stores an immutable version, waits
    until it is live.

    Gateways load it within seconds without a restart. A document with an error changes nothing.
    With JSON or CSV output, for scripts, it does not ask. Several files are one document: lists are
    joined in the order of the files, and a name that is given twice is an error. JSON then has the
    SHA-256 of each file too.
    """

    toolbox: Toolbox = ctx.obj
    parsed = read_policy(files)
    with toolbox.open_admin() as database:
        current = PolicyStore(database).current()
        for finding in parsed.notes:
            note(str(finding))
        plan = make_plan(toolbox, database, parsed, current=current, past=past, demo=demo)
        show_plan(plan, note)
        if not yes and format is Format.TABLE:
            confirm("Apply?", done="applied", act="apply", is_input_free="-" not in files)
        _put_in_force(
            toolbox,
            database,
            parsed,
            current=current,
            message=message,
            waits=not no_wait,
            format=format,
        )


def rollback(
    ctx: typer.Context,
    version: Annotated[
        int | None,
        typer.Argument(metavar="VERSION", help="The one before the current, unless given."),
    ] = None,
    yes: YesOption = False,
    message: MessageOption = "",
    past: ReplayOption = None,
    demo: DemoOption = False,
    no_wait: NoWaitOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Apply an older version's document again, as a new version: shows the plan, asks, waits until
    it is live.

    Keys and grants stay, and no version is changed or lost. A second rollback returns to the
    version before the first.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        policies = PolicyStore(database)
        current = require_version(policies, None)
        wanted = _wanted(policies, current, version)
        parsed = parse(wanted.document)
        plan = make_plan(toolbox, database, parsed, current=current, past=past, demo=demo)
        note(
            f"Back to version {wanted.version}, applied by {wanted.author} at "
            f"{wanted.applied_at:%Y-%m-%d %H:%M} UTC."
        )
        show_plan(plan, note)
        if not yes and format is Format.TABLE:
            confirm(f"Apply version {wanted.version} again?", done="applied", act="apply")
        why = message or f"rollback to version {wanted.version}"
        _put_in_force(
            toolbox,
            database,
            parsed,
            current=current,
            message=why,
            waits=not no_wait,
            format=format,
            is_demo=wanted.is_demo,
        )


def _wanted(policies: PolicyStore, current: StoredPolicy, version: int | None) -> StoredPolicy:
    """Return the policy version to roll back to. Raises `NothingFound` or `BadUsage`."""
    if version == current.version:
        raise BadUsage(
            f"Version {version} is the current one. tollgate policy history lists the others."
        )
    if version is not None:
        return require_version(policies, version)
    before = next((one for one in policies.history() if one.version < current.version), None)
    if before is None:
        raise NothingFound(f"There is no version before {current.version}. Nothing changed.")
    return before


def _put_in_force(
    toolbox: Toolbox,
    database: Database,
    parsed: ParsedPolicy,
    *,
    current: StoredPolicy | None,
    message: str,
    waits: bool,
    format: Format,
    is_demo: bool = False,
) -> None:
    """Apply a document, print its version, and wait until all gateways serve it if `waits`."""

    policies = PolicyStore(database)
    applied = apply_policy(
        parsed,
        policies=policies,
        prices=PriceStore(database),
        builtin=builtin_price,
        author=policies.author(operator_name()),
        message=message,
        now=toolbox.now(),
        is_demo=is_demo,
        expected_version=0 if current is None else current.version,
    )
    record: dict[str, Any] = {"version": applied.version, "sha256": applied.sha256}
    if len(parsed.files) > 1 and format is Format.JSON:
        record["files"] = [
            {"path": file.path, "sha256": document_sha256(file.text)} for file in parsed.files
        ]
    show_record(record, format)
    if not applied.is_new:
        note("Nothing changed: this document is the current policy already.")
    elif waits:
        wait_until_live(JournalTable(database), applied.version)
    if head := AuditLog(database).head():
        note(f"Head of the audit log, to be kept elsewhere: {head}")
    _print_next_step(applied, current)


def _print_next_step(applied: Applied, current: StoredPolicy | None) -> None:
    """Print the command that may follow an apply: to make a first key, or to roll back."""
    if current is None:
        note("Next: tollgate key create TEAM, or tollgate policy explain --help")
    elif applied.is_new:
        note(f"Undo it with: tollgate policy rollback {current.version}")
