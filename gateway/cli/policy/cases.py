"""Runs `tollgate policy test`: reads a file of cases, has them decided under a policy, prints
expected and actual results, and exits 1 on a miss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.policy.document import read_document, read_policy
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.routing.replay import Place
from gateway.services.policy.apply import document_sha256, prices_of, require_current
from gateway.services.policy.cases import Result
from gateway.services.policy.cases import run_cases as results_of
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.wire.policy.case_files import parse_cases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.cli.toolbox import Toolbox
    from gateway.domain.pricing.pricing import Price

COLUMNS = ("line", "team", "route", "class", "expected", "got", "is_met", "why")


def run_cases(
    ctx: typer.Context,
    cases: Annotated[
        str, typer.Argument(metavar="CASES", help="A file of cases; - reads standard input.")
    ],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Test this document, not the policy in force; repeatable if it has several files.",
        ),
    ] = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Decide each case of a file and compare. Exit 1 on a miss. Sends nothing.

    A case names a team, a route and perhaps a class, data_tags, an operation and its needs. It
    expects the deployments in their order (`expect: [a, b]`) or the reason of a refusal (`denied:
    residency`). With --policy no database is needed, and prices are the document's and the built-in
    list's.
    """
    toolbox: Toolbox = ctx.obj
    read = parse_cases(read_document(cases))
    version, prices = _version_in_files(toolbox, policy) if policy else _current_version(toolbox)
    place = Place(gateway_region=toolbox.options.region, day=toolbox.now().date())
    results = results_of(read, version, prices=prices, place=place)
    missed = [result for result in results if not result.is_met]
    show(Table(COLUMNS, [_row(result) for result in results]), format, empty="")
    note(f"{len(results) - len(missed)} of {len(results)} as expected.")
    if missed:
        raise typer.Exit(1)


def _version_in_files(
    toolbox: Toolbox, files: list[str]
) -> tuple[PolicyVersion, Mapping[str, Price]]:
    """Return the policy document of some files as version 0, with its deployments' prices."""
    parsed = read_policy(files)
    policy = parsed.policy
    version = PolicyVersion(version=0, sha256=document_sha256(parsed.text), policy=policy)
    return version, prices_of(policy, at=toolbox.now(), builtin=builtin_price)


def _current_version(toolbox: Toolbox) -> tuple[PolicyVersion, Mapping[str, Price]]:
    """Return the policy version in force, with its deployments' prices of today."""

    with toolbox.open_admin() as database:
        version = require_current(PolicyStore(database))
        book = PriceStore(database).book(version.policy.deployments.values())
    return version, prices_of(version.policy, at=toolbox.now(), builtin=builtin_price, book=book)


def _row(result: Result) -> tuple[object, ...]:
    """Return a test case's result as a table row."""
    case = result.case
    return (
        case.line,
        case.team,
        case.route,
        case.data_class,
        result.expected,
        result.got,
        result.is_met,
        result.why,
    )
