"""Registers all `tollgate policy` commands, and defines those that only read: validate, schema,
show, export, history and explain.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from gateway.cli.ids import request_id_of
from gateway.cli.policy.apply import apply, rollback
from gateway.cli.policy.cases import run_cases
from gateway.cli.policy.document import (
    FilesArgument,
    files_text,
    price_notes,
    read_policy,
    require_version,
)
from gateway.cli.policy.explain import recorded_explanation, show_explanation
from gateway.cli.policy.init import init
from gateway.cli.policy.plan import plan
from gateway.cli.policy.readmit import readmit
from gateway.cli.policy.set_value import set_policy_value
from gateway.cli.terminal.output import Format, FormatOption, Table, note, print_json, show, write
from gateway.domain.operation import Operation
from gateway.domain.policy.unlisted_use import teams_with_hard_budgets
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import unsent
from gateway.domain.routing.replay import Place
from gateway.errors import BadUsage, Finding, PolicyRejected
from gateway.services.policy.apply import prices_of, require_current, version_of
from gateway.services.policy.explain import basis, explain
from gateway.services.policy.unsent_requests import PROMPT_TOKENS, decision_for, imagined
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.wire.policy import effective, json_schema, to_yaml
from gateway.wire.yaml_blocks.findings import in_order

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.stored_policy import StoredPolicy
    from gateway.storage.policy.policies import PolicyStore

app = typer.Typer(
    name="policy",
    help="The policy: teams, routes, deployments, rules and prices.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(
    "validate",
    short_help="Check a document and change nothing.",
    epilog="\b\nExamples:\n  tollgate policy validate policy.yaml\n  cat p.yaml | tollgate "
    "policy validate -\n  tollgate policy validate base.yaml teams/*.yaml",
)
def validate(ctx: typer.Context, files: FilesArgument, format: FormatOption = Format.TABLE) -> None:
    """Check a document and change nothing: every error with line, field and correction.

    Exit 1 if rejected.

    Needs no database. Notes name things that are not wrong but worth knowing. Several files are one
    document: each finding names its file.
    """
    toolbox: Toolbox = ctx.obj
    try:
        parsed = read_policy(files)
    except PolicyRejected as rejected:
        _show_findings(rejected.findings, format, is_valid=False)
        note(rejected.message)
        raise typer.Exit(1) from None
    policy = parsed.policy
    _show_findings(in_order((*parsed.notes, *price_notes(parsed, toolbox))), format, is_valid=True)
    note(
        f"Valid: {len(policy.deployments)} deployment(s), {len(policy.routes)} route(s), "
        f"{len(policy.teams)} team(s). Next: tollgate policy apply {files_text(files)}"
    )


app.command(
    "init",
    short_help="Write a starter policy.",
    epilog="\b\nExamples:\n  tollgate policy init\n  tollgate policy init - | less",
)(init)
app.command(
    "set",
    short_help="Set one value in a policy file.",
    epilog="\b\nExamples:\n"
    "  tollgate policy set policy.yaml teams.payments.limits.concurrent 80\n"
    "  tollgate policy set policy.yaml teams.payments.budgets.month.limit_usd 7000\n"
    "  tollgate policy set policy.yaml teams.payments.routes '[assistant, embed]'\n"
    "  tollgate policy set teams/search.yaml teams.search.priority low --with base.yaml",
)(set_policy_value)
app.command(
    "plan",
    short_help="Show the changes of an apply, and their past cost.",
    epilog="\b\nExamples:\n  tollgate policy plan policy.yaml\n  tollgate policy plan "
    "policy.yaml --replay 30d\n"
    "  tollgate policy plan policy.yaml --exit-code --format json",
)(plan)
app.command(
    "apply",
    short_help="Make a document the current policy.",
    epilog="\b\nExamples:\n  tollgate policy apply policy.yaml\n"
    "  tollgate policy apply policy.yaml --yes --message 'Team search moves to qwen'\n"
    "  tollgate policy apply base.yaml teams/*.yaml",
)(apply)
app.command(
    "rollback",
    short_help="Apply an older version's document again.",
    epilog="\b\nExamples:\n  tollgate policy rollback\n  tollgate policy rollback 3 --yes",
)(rollback)
app.command(
    "readmit",
    short_help="Use an ejected deployment again.",
    epilog="\b\nExample:\n  tollgate policy readmit gpt-eu --reason 'The provider had a wrong "
    "header; ticket 4711'",
)(readmit)
app.command(
    "test",
    short_help="Compare a policy's decisions with expected ones.",
    epilog="\b\nExamples:\n  tollgate policy test cases.yaml\n  tollgate policy test "
    "cases.yaml --policy policy.yaml",
)(run_cases)


@app.command(
    "schema",
    short_help="Print the document's JSON Schema, for editors.",
    epilog="\b\nExamples:\n  tollgate policy schema > policy.schema.json\n"
    "  # yaml-language-server: $schema=policy.schema.json     first line of policy.yaml",
)
def show_schema() -> None:
    """Print the JSON Schema (2020-12) of a policy document. Needs no database.

    Editors complete and check a document by it (VS Code with the YAML extension, Neovim,
    JetBrains): name the file in the document's first line, as below. It accepts each document that
    `validate` accepts; only `validate` knows the rules between fields.
    """
    print_json(json_schema())


@app.command(
    "show",
    short_help="Print a version, the current one by default.",
    epilog="\b\nExamples:\n  tollgate policy show\n  tollgate policy show 3 --effective",
)
def show_policy(
    ctx: typer.Context,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="The current one, unless given.")
    ] = None,
    is_effective: Annotated[
        bool, typer.Option("--effective", help="With every default written out.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Print a version as it was written, or with every default. The output is a policy again.

    JSON and CSV are always the effective policy.
    """
    toolbox: Toolbox = ctx.obj
    with _open_policies(toolbox) as policies:
        stored = require_version(policies, version)
    if format is Format.TABLE:
        write(
            to_yaml(version_of(stored).policy)
            if is_effective
            else stored.document.rstrip("\n") + "\n"
        )
        note(_version_text(stored))
        return
    document = effective(version_of(stored).policy)
    if format is Format.JSON:
        about = {"version": stored.version, "sha256": stored.sha256, "author": stored.author}
        print_json(
            {
                **about,
                "message": stored.message,
                "applied_at": stored.applied_at,
                "policy": document,
            }
        )
    else:
        show(Table(("field", "value"), list(_flattened("", document))), format, empty="")


@app.command(
    "export",
    short_help="Print a version byte for byte as it was applied.",
    epilog="\b\nExamples:\n  tollgate policy export > policy.yaml\n  tollgate policy export 3",
)
def export(
    ctx: typer.Context,
    version: Annotated[
        int | None, typer.Argument(metavar="VERSION", help="The current one, unless given.")
    ] = None,
) -> None:
    """Print a version's document byte for byte as it was applied; its SHA-256 is the version's."""
    toolbox: Toolbox = ctx.obj
    with _open_policies(toolbox) as policies:
        stored = require_version(policies, version)
    sys.stdout.buffer.write(stored.document.encode())
    sys.stdout.buffer.flush()


@app.command("history", epilog="\b\nExample:\n  tollgate policy history --format csv")
def history(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List every version ever applied, newest first."""
    toolbox: Toolbox = ctx.obj
    with _open_policies(toolbox) as policies:
        versions = policies.history()
    rows = [(v.version, v.applied_at, v.author, v.message, v.sha256, v.is_demo) for v in versions]
    columns = ("version", "applied_at", "author", "message", "sha256", "is_demo")
    show(
        Table(columns, rows),
        format,
        empty="No policy was applied yet. Run: tollgate policy apply FILE",
    )


@app.command(
    "explain",
    short_help="Explain where a request goes, or went.",
    epilog="\b\nExamples:\n  tollgate policy explain --team payments --route assistant\n"
    "  tollgate policy explain --team payments --route gpt-4o --class restricted --tokens 2000\n"
    "  tollgate policy explain 01973b2e-…            (a request that was made)",
)
def explain_decision(
    ctx: typer.Context,
    request_id: Annotated[
        str | None, typer.Argument(metavar="REQUEST_ID", help="A request that was made.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", help="The team of the request.")] = None,
    route: Annotated[
        str | None, typer.Option("--route", help="A route, or any model name the team sends.")
    ] = None,
    data_class: Annotated[
        str | None, typer.Option("--class", help="Raise the team's data class to this.")
    ] = None,
    data_tags: Annotated[
        list[str] | None,
        typer.Option("--data-tag", help="A data tag besides the team's; repeatable."),
    ] = None,
    operation: Annotated[
        Operation, typer.Option("--operation", help="The endpoint.")
    ] = Operation.CHAT,
    needs: Annotated[
        list[str] | None, typer.Option("--needs", help="A capability, such as tools; repeatable.")
    ] = None,
    members: Annotated[
        list[str] | None,
        typer.Option("--member", help="A member of its body, if hard budgets apply; repeatable."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=0, help="Price a prompt of this many tokens …")
    ] = None,
    answer_tokens: Annotated[
        int, typer.Option("--answer-tokens", min=0, help="… and an answer of this many.")
    ] = 0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Explain where a request would go, or went, and why each other deployment lost. Sends nothing.

    Exit 0 even if the request would be refused: that is an answer.
    """

    toolbox: Toolbox = ctx.obj
    if request_id is not None:
        if team or route:
            raise BadUsage("Give either a REQUEST_ID or --team and --route.")
        with toolbox.open_reports() as reports:
            show_explanation(recorded_explanation(reports, request_id_of(request_id)), format)
        return
    if team is None or route is None:
        raise BadUsage(
            "Give --team and --route for a possible request, or a REQUEST_ID for a past one."
        )

    with toolbox.open_admin() as database:
        version = require_current(PolicyStore(database))
        book = PriceStore(database).book(version.policy.deployments.values())
        ejected = EjectionStore(database).stated_places()
    decide_for = partial(
        decision_for,
        version,
        prices=prices_of(version.policy, at=toolbox.now(), builtin=builtin_price, book=book),
        team=team,
        place=Place(gateway_region=toolbox.options.region, day=toolbox.now().date()),
        data_class=data_class,
        data_tags=frozenset(data_tags or ()),
        ejected=ejected,
        unlisted=frozenset(members or ())
        if team in teams_with_hard_budgets(version.policy)
        else frozenset(),
    )
    asked = unsent(operation, route, capabilities=frozenset(needs or ()))
    decision = decide_for(asked)
    prompt_tokens = PROMPT_TOKENS if tokens is None else tokens
    ranking = imagined(
        decision,
        asked,
        session=team,
        tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        degrade=None
        if (other := decision.route.degrade_to) is None
        else lambda: decide_for(replace(asked, model=other), is_degraded_to=True),
    )
    usage = None if tokens is None else TokenUsage(input_tokens=tokens, output_tokens=answer_tokens)
    stated_basis = basis(is_live=False, tokens=prompt_tokens, answer_tokens=answer_tokens)
    show_explanation(explain(decision, usage=usage, ranking=ranking, basis=stated_basis), format)


@contextmanager
def _open_policies(toolbox: Toolbox) -> Iterator[PolicyStore]:
    """Open the versions of the policy, to be read."""

    with toolbox.open_admin() as database:
        yield PolicyStore(database)


def _show_findings(findings: tuple[Finding, ...], format: Format, *, is_valid: bool) -> None:
    """Print a policy document's errors and notes in the chosen format."""
    if format is Format.JSON:
        print_json({"valid": is_valid, "findings": [_as_record(finding) for finding in findings]})
    elif format is Format.CSV:
        records = [_as_record(finding) for finding in findings]
        columns = tuple(records[0]) if records else ("line", "field", "message", "is_error")
        show(Table(columns, [tuple(record.values()) for record in records]), format, empty="")
    else:
        write("".join(f"{finding}\n" for finding in findings))


def _as_record(finding: Finding) -> dict[str, Any]:
    """Return one finding about a document as a record: its file if there are several, line, field,
    message and kind.
    """
    return ({"file": finding.file} if finding.file else {}) | {
        "line": finding.line,
        "field": finding.field,
        "message": finding.message,
        "is_error": finding.is_error,
    }


def _version_text(stored: StoredPolicy) -> str:
    """Return a stored version's number, author, time and message for people."""
    why = f": {stored.message}" if stored.message else ""
    return (
        f"Version {stored.version}, applied by {stored.author} at "
        f"{stored.applied_at:%Y-%m-%d %H:%M} UTC{why}"
    )


def _flattened(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested JSON, each with its path such as `teams[0].name`."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _flattened(f"{path}.{name}" if path else name, part)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for index, part in enumerate(value):
            yield from _flattened(f"{path}[{index}]", part)
    else:
        yield path, value
