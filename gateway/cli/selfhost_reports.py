"""Declares `tollgate report selfhost-vs-api` and `demand`, whose options no other report has."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, FormatOption, note, print_json, write
from gateway.cli.terminal.report_file import OutOption, print_export, require_writable, write_file
from gateway.errors import BadUsage
from gateway.reports.question import ask, month_of
from gateway.reports.report import Export, Report
from gateway.reports.selfhost.demand import MeasuredDemand
from gateway.reports.selfhost.versus_api import WhatIf

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

MOST_DAYS = 400
MOST_USD = Decimal(1_000_000_000)


class DemandFormat(StrEnum):
    """The format of a demand file."""

    YAML = "yaml"
    JSON = "json"


def register(app: typer.Typer, *, as_text: Callable[[Report], str]) -> None:
    """Add both reports to the command line's `report` group; `as_text` lays out a table."""

    @app.command(
        "selfhost-vs-api",
        short_help="Compare own GPUs with an API.",
        epilog="\b\nExamples:\n  tollgate report selfhost-vs-api --month 2026-11\n"
        "  tollgate report selfhost-vs-api --api gpt-5.5 --gpu-usd-per-hour 2.50 --utilisation 0.6"
        "\n  tollgate report selfhost-vs-api --model qwen-small --ops-usd-per-month 2000",
    )
    def selfhost_vs_api(
        ctx: typer.Context,
        api: Annotated[
            str | None,
            typer.Option(
                "--api",
                metavar="MODEL",
                help="Price own traffic by this deployment, or model of the price book.",
            ),
        ] = None,
        gpu_usd_per_hour: Annotated[
            str | None,
            typer.Option("--gpu-usd-per-hour", metavar="X", help="What if a GPU hour cost this?"),
        ] = None,
        utilisation: Annotated[
            str | None,
            typer.Option(
                "--utilisation", metavar="U", help="What if the GPUs were used to this share?"
            ),
        ] = None,
        model: Annotated[
            str | None,
            typer.Option(
                "--model",
                metavar="NAME",
                help="What if this own deployment (or its model) served all traffic?",
            ),
        ] = None,
        ops_usd_per_month: Annotated[
            str | None,
            typer.Option(
                "--ops-usd-per-month", metavar="X", help="Cost of operating own GPUs, by month."
            ),
        ] = None,
        month: Annotated[
            str | None,
            typer.Option("--month", metavar="YYYY-MM", help="One month (UTC), last, or all."),
        ] = None,
        demo: Annotated[
            bool, typer.Option("--demo", help="Generated demo data in place of real events.")
        ] = False,
        currency: Annotated[  # for the refusal with its reason
            str | None, typer.Option("--currency", metavar="CODE", hidden=True)
        ] = None,
        out: OutOption = None,
        format: FormatOption = Format.TABLE,
    ) -> None:
        """Compare the cost of each route's traffic on own GPUs and at an API, with the volume from
        which own GPUs cost less.

        One row for each route and own deployment that could serve it, and one (without a
        deployment) for each route that an API serves. 'never' means that the GPUs cannot serve the
        break-even volume.
        """
        toolbox: Toolbox = ctx.obj
        if out is not None:
            require_writable(out)
        what_if = WhatIf(
            api=api,
            usd_per_gpu_hour=_number("--gpu-usd-per-hour", gpu_usd_per_hour),
            utilisation=_number("--utilisation", utilisation, most=Decimal(1)),
            model=model,
            ops_usd_per_month=_number("--ops-usd-per-month", ops_usd_per_month, is_zero_fine=True)
            or Decimal(0),
        )
        question = ask(month=month_of(month, now=toolbox.now()), demo=demo, currency=currency)
        with toolbox.open_reports() as reports:
            found = reports.selfhost_vs_api(question, what_if)
        export = Export(report=found, rows=iter(found.rows))
        if out is not None:
            write_file(export, out, format)
        elif format is Format.TABLE:
            write(as_text(found))
        else:
            print_export(export, format)
        if out is not None or format is not Format.JSON:
            for line in found.notes:
                note(line)

    @app.command(
        "demand",
        short_help="Print the demand file of engine plan.",
        epilog="\b\nExamples:\n  tollgate report demand --days 30 > demand.yaml\n"
        "  tollgate report demand --days 90 --where route=assistant --format json",
    )
    def demand(
        ctx: typer.Context,
        days: Annotated[
            int, typer.Option("--days", min=1, max=MOST_DAYS, help="The last days to measure.")
        ] = 30,
        where: Annotated[
            list[str] | None, typer.Option("--where", metavar="NAME=VALUE", help="Only these.")
        ] = None,
        demo: Annotated[
            bool, typer.Option("--demo", help="Generated demo data in place of real events.")
        ] = False,
        format: Annotated[
            DemandFormat, typer.Option("--format", "-f", help="How to print: yaml or json.")
        ] = DemandFormat.YAML,
    ) -> None:
        """Print the demand of the last days as the demand file of `tollgate engine plan`.

        Requests per day, lengths, cached share, growth per month and peak are measured over the
        requests with an answer. The SLO is a start: the tightest bound of the policy's routes,
        else what the traffic has now. Edit it to what you need.
        """
        toolbox: Toolbox = ctx.obj
        question = ask(where=filters_of(where), demo=demo)
        with toolbox.open_reports() as reports:
            found = reports.demand(question, days=days)
        if format is DemandFormat.JSON:
            print_json(_document(found))
        else:
            write(_yaml(found))
        for line in found.notes:
            note(line)


def filters_of(where: list[str] | None) -> dict[str, str | None]:
    """Parse the `--where NAME=VALUE` options into filters; an empty value means none. Raises
    `BadUsage`, also for a name that is given twice: the last one would count silently.
    """
    filters: dict[str, str | None] = {}
    for condition in where or ():
        name, separator, value = condition.partition("=")
        if not separator:
            raise BadUsage(
                f"--where takes NAME=VALUE, for example team=payments; got '{condition}'."
            )
        if name in filters:
            raise BadUsage(
                f"--where names {name} twice; a filter has one value. Split by it to see several: "
                f"--by {name}."
            )
        filters[name] = value or None
    return filters


def _number(
    option: str, given: str | None, *, most: Decimal = MOST_USD, is_zero_fine: bool = False
) -> Decimal | None:
    """Return the number of an option, None without it. Raises `BadUsage` unless it is above 0 and
    at most `most`.
    """
    if given is None:
        return None
    try:
        value = Decimal(given.removeprefix("$"))
    except InvalidOperation:
        value = Decimal("NaN")
    is_good = value.is_finite() and (value >= 0 if is_zero_fine else value > 0) and value <= most
    if not is_good or value.as_tuple().exponent < -12:  # type: ignore[operator]  # it is finite
        least = "from 0" if is_zero_fine else "above 0"
        raise BadUsage(f"{option} is a number {least} to {most:,}; got '{given}'.")
    return value


def _document(found: MeasuredDemand) -> dict[str, object]:
    """Return a demand as the object of its file."""
    lengths = {
        name: {"p50": quantiles.p50, "p95": quantiles.p95}
        for name, quantiles in (
            ("prompt_tokens", found.prompt_tokens),
            ("output_tokens", found.output_tokens),
        )
    }
    return {
        "requests_per_day": found.requests_per_day,
        **lengths,
        "cached_share": found.cached_share,
        "growth_per_month": found.growth_per_month,
        "peak_to_mean": found.peak_to_mean,
        "start": found.start,
        "slo": found.slo,
    }


def _yaml(found: MeasuredDemand) -> str:
    """Return a demand as the text of a YAML file: numbers, one month and flat objects alone."""
    lines = []
    for name, value in _document(found).items():
        if isinstance(value, dict):
            inside = ", ".join(f"{key}: {part}" for key, part in value.items())
            lines.append(f"{name}: {{{inside}}}\n")
        else:
            lines.append(f'{name}: "{value}"\n' if name == "start" else f"{name}: {value}\n")
    return "".join(lines)
