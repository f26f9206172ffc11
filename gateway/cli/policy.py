"""`tollgate policy`: validate, apply, show and explain the document that says who may use what."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from gateway.cli.explain import recorded_explanation, show_explanation
from gateway.cli.operator import operator_name
from gateway.cli.output import Format, FormatOption, Table, note, print_json, show, show_record, write
from gateway.domain.policy import Operation, Policy
from gateway.domain.tokens import TokenUsage
from gateway.errors import BadUsage, Finding, NothingFound, PolicyRejected
from gateway.services.policies import (
    Change,
    apply_policy,
    changes,
    decision_for,
    explain,
    prices_of,
    require_current,
    unpriced,
    version_of,
)
from gateway.wire.policy import effective, parse, to_yaml

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.policies import PolicyStore, StoredPolicy

app = typer.Typer(
    name="policy",
    help="The policy: who may use which model, where, and at what price.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A policy document; - reads standard input.")]


@app.command(
    "validate",
    short_help="Check a document and change nothing.",
    epilog="\b\nExamples:\n  tollgate policy validate policy.yaml\n  cat p.yaml | tollgate policy validate -",
)
def validate(ctx: typer.Context, file: FileArgument, format: FormatOption = Format.TABLE) -> None:
    """Check a document and change nothing: every error with line, field and what to write. Exit 1 if rejected.

    Needs no database. Notes name what is not wrong but worth knowing.
    """
    toolbox: Toolbox = ctx.obj
    text = read_document(file)
    try:
        parsed = parse(text)
    except PolicyRejected as rejected:
        _show_findings(rejected.findings, format, is_valid=False)
        note(rejected.message)
        raise typer.Exit(1) from None
    policy = parsed.policy
    _show_findings((*parsed.notes, *_price_notes(policy, text, toolbox)), format, is_valid=True)
    note(
        f"Valid: {len(policy.deployments)} deployment(s), {len(policy.routes)} route(s), {len(policy.teams)} team(s). "
        f"Next: tollgate policy apply {file}"
    )


@app.command(
    "apply",
    short_help="Make a document the current policy.",
    epilog="\b\nExamples:\n  tollgate policy apply policy.yaml\n"
    "  tollgate policy apply policy.yaml --yes --message 'Team search moves to qwen'",
)
def apply(
    ctx: typer.Context,
    file: FileArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    message: Annotated[str, typer.Option("--message", "-m", help="Why, for the history.")] = "",
    format: FormatOption = Format.TABLE,
) -> None:
    """Make a document the current policy: shows what changes, asks, stores an immutable version.

    Gateways pick it up within seconds without a restart. A document with an error changes nothing.
    Printing JSON or CSV is for scripts and does not ask.
    """
    from gateway.storage.prices import builtin_price

    toolbox: Toolbox = ctx.obj
    document = read_document(file)
    parsed = parse(document)
    with toolbox.open_stores() as stores:
        current = stores.policies.current()
        differences = changes(_readable(current), parsed.policy)
        for finding in (*parsed.notes, *_price_notes(parsed.policy, document, toolbox)):
            note(str(finding))
        _show_changes(differences, None if current is None else current.version)
        if not yes and format is Format.TABLE:
            _confirm(file)
        applied = apply_policy(
            document,
            policies=stores.policies,
            prices=stores.prices,
            builtin=builtin_price,
            author=operator_name(),
            message=message,
            now=toolbox.now(),
            expected_version=0 if current is None else current.version,
        )
    show_record({"version": applied.version, "sha256": applied.sha256}, format)
    if not applied.is_new:
        note("Nothing changed: this document is the current policy already.")
    note("Gateways pick it up within seconds. Next: tollgate key create TEAM, or tollgate policy explain --help")


@app.command(
    "show",
    short_help="Print a version, the current one by default.",
    epilog="\b\nExamples:\n  tollgate policy show\n  tollgate policy show 3 --effective",
)
def show_policy(
    ctx: typer.Context,
    version: Annotated[int | None, typer.Argument(metavar="VERSION", help="The current one, unless given.")] = None,
    is_effective: Annotated[bool, typer.Option("--effective", help="With every default written out.")] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print a version as it was written, or with every default. What it prints is a policy again.

    JSON and CSV are always the effective policy.
    """
    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        stored = require_version(stores.policies, version)
    if format is Format.TABLE:
        write(to_yaml(version_of(stored).policy) if is_effective else stored.document.rstrip("\n") + "\n")
        note(_about(stored))
        return
    document = effective(version_of(stored).policy)
    if format is Format.JSON:
        about = {"version": stored.version, "sha256": stored.sha256, "author": stored.author}
        print_json({**about, "message": stored.message, "applied_at": stored.applied_at, "policy": document})
    else:
        show(Table(("field", "value"), list(_flat("", document))), format, empty="")


@app.command("history", epilog="\b\nExample:\n  tollgate policy history --format csv")
def history(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List every version ever applied, the newest first."""
    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        versions = stores.policies.history()
    rows = [(v.version, v.applied_at, v.author, v.message, v.sha256, v.is_demo) for v in versions]
    columns = ("version", "applied_at", "author", "message", "sha256", "is_demo")
    show(Table(columns, rows), format, empty="No policy was applied yet. Run: tollgate policy apply FILE")


@app.command(
    "explain",
    short_help="Say where a request goes, or went, and why.",
    epilog="\b\nExamples:\n  tollgate policy explain --team payments --route assistant\n"
    "  tollgate policy explain --team payments --route gpt-4o --class restricted --tokens 2000\n"
    "  tollgate policy explain 01973b2e-…            (a request that was made)",
)
def explain_decision(
    ctx: typer.Context,
    request_id: Annotated[str | None, typer.Argument(metavar="REQUEST_ID", help="A request that was made.")] = None,
    team: Annotated[str | None, typer.Option("--team", help="Who would ask.")] = None,
    route: Annotated[str | None, typer.Option("--route", help="A route, or any model name the team sends.")] = None,
    data_class: Annotated[str | None, typer.Option("--class", help="Raise the team's data class to this.")] = None,
    operation: Annotated[Operation, typer.Option("--operation", help="The endpoint.")] = Operation.CHAT,
    needs: Annotated[list[str] | None, typer.Option("--needs", help="A capability, such as tools; repeatable.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=0, help="Price a prompt of this many tokens …")] = None,
    answer_tokens: Annotated[int, typer.Option("--answer-tokens", min=0, help="… and an answer of this many.")] = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Say where a request would go, or went, and why each other deployment lost. Sends nothing.

    Exit 0 also where the answer is that the request would be refused: that is an answer.
    """
    toolbox: Toolbox = ctx.obj
    if request_id is not None:
        if team or route:
            raise BadUsage("Give either a REQUEST_ID or --team and --route.")
        with toolbox.open_reports() as reports:
            show_explanation(recorded_explanation(reports, request_uuid(request_id)), format)
        return
    if team is None or route is None:
        raise BadUsage("Say --team and --route (a request that would be made), or a REQUEST_ID (one that was).")
    from gateway.storage.prices import builtin_price

    with toolbox.open_stores() as stores:
        version = require_current(stores.policies)
        book = stores.prices.book(version.policy.deployments.values())
    decision = decision_for(
        version,
        team=team,
        route=route,
        prices=prices_of(version.policy, at=toolbox.now(), builtin=builtin_price, book=book),
        data_class=data_class,
        operation=operation,
        capabilities=frozenset(needs or ()),
    )
    usage = None if tokens is None else TokenUsage(input_tokens=tokens, output_tokens=answer_tokens)
    show_explanation(explain(decision, usage=usage), format)


def read_document(file: str) -> str:
    """Return a file's text. Raises `BadUsage` where it cannot be read or is not UTF-8."""
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as broken:
        raise BadUsage(f"{file} cannot be read: {broken.strerror}.") from None
    except UnicodeDecodeError:
        raise BadUsage(f"{file} is not UTF-8 text. Save it as UTF-8.") from None


def require_version(policies: PolicyStore, version: int | None) -> StoredPolicy:
    """One stored version, the current one without a number. Raises `NothingFound`."""
    stored = policies.current() if version is None else policies.get(version)
    if stored is None and version is None:
        raise NothingFound("No policy was applied yet. Write one and run: tollgate policy apply FILE")
    if stored is None:
        raise NothingFound(f"There is no policy version {version}. tollgate policy history lists them.")
    return stored


def request_uuid(text: str) -> UUID:
    """Read a request id. Raises `BadUsage`."""
    try:
        return UUID(text)
    except ValueError:
        raise BadUsage(f"'{text[:60]}' is not a request id. It is in the reply's x-request-id header.") from None


def _readable(stored: StoredPolicy | None) -> Policy | None:
    """The policy in force, for the comparison; an unreadable one must not hinder its replacement."""
    try:
        return None if stored is None else version_of(stored).policy
    except PolicyRejected:
        note(f"Version {stored.version if stored else 0} is not valid for this Tollgate; everything is shown as added.")
        return None


def _price_notes(policy: Policy, document: str, toolbox: Toolbox) -> Iterator[Finding]:
    """Notes on deployments without any price. The codec knows the document alone, not the price list."""
    from gateway.storage.prices import builtin_price

    prices = prices_of(policy, at=toolbox.now(), builtin=builtin_price)
    for name in unpriced(policy, prices):
        if policy.deployments[name].is_self_hosted:
            continue  # the codec's own note says so
        line = next((n for n, text in enumerate(document.splitlines(), 1) if name in text), 1)
        message = f"deployment '{name}' has no price here or in the built-in list: its requests are refused"
        yield Finding(line, "deployments", f"{message} (unpriced_model); add 'price'", is_error=False)


def _show_findings(findings: tuple[Finding, ...], format: Format, *, is_valid: bool) -> None:
    if format is Format.JSON:
        print_json({"valid": is_valid, "findings": [_as_record(finding) for finding in findings]})
    elif format is Format.CSV:
        rows = [tuple(_as_record(finding).values()) for finding in findings]
        show(Table(("line", "field", "message", "is_error"), rows), format, empty="")
    else:
        write("".join(f"{finding}\n" for finding in findings))


def _as_record(finding: Finding) -> dict[str, Any]:
    return {"line": finding.line, "field": finding.field, "message": finding.message, "is_error": finding.is_error}


def _show_changes(differences: tuple[Change, ...], version: int | None) -> None:
    """The difference to the version in force, on standard error: it is for the person who decides."""
    note(f"Compared with version {version}:" if version else "The first policy:")
    marks = {"added": "+", "removed": "-", "changed": "~"}
    for change in differences:
        note(f"  {marks[change.verb]} {change.kind} {change.name}")
        for detail in change.details:
            note(f"      {detail}")
    if not differences:
        note("  no difference in meaning")


def _confirm(file: str) -> None:
    if file == "-" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadUsage("Nobody can be asked here, so nothing was applied. Say --yes to apply without asking.")
    if not typer.confirm("Apply?", err=True):
        raise typer.Exit(1)


def _about(stored: StoredPolicy) -> str:
    why = f": {stored.message}" if stored.message else ""
    return f"Version {stored.version}, applied by {stored.author} at {stored.applied_at:%Y-%m-%d %H:%M} UTC{why}"


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flat(f"{path}.{name}" if path else name, part)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, part in enumerate(value):
            yield from _flat(f"{path}[{index}]", part)
    else:
        yield path, value
