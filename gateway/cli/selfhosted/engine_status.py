"""Runs `tollgate engine status`: prints each engine of the current policy with its live signals, as
the engine itself reports them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.terminal.output import Format, FormatOption, Table, note, show
from gateway.services.policy.apply import require_current
from gateway.storage.deployments.engine_probes import EngineProbeNotes
from gateway.storage.policy.policies import PolicyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.services.deployments.engine_status import EngineStatus

COLUMNS = (
    "deployment",
    "url",
    "ready",
    "queue",
    "running",
    "kv_use",
    "prefix_hit_rate",
    "ttft_s",
    "tpot_s",
)
LONGEST_OVER_S = 3600.0


class Quantile(StrEnum):
    """The quantile of TTFT and TPOT in the table."""

    P50 = "p50"
    P95 = "p95"
    P99 = "p99"


SHARES: Mapping[Quantile, float] = {Quantile.P50: 0.5, Quantile.P95: 0.95, Quantile.P99: 0.99}

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "status",
    short_help="Show the engines of the policy with their live signals.",
    epilog="\b\nExamples:\n  tollgate engine status\n"
    "  tollgate engine status --quantile p95 --over 30 --format json",
)
def engine_status(
    ctx: typer.Context,
    quantile: Annotated[
        Quantile, typer.Option("--quantile", help="The quantile of ttft_s and tpot_s.")
    ] = Quantile.P50,
    over_s: Annotated[
        float,
        typer.Option(
            "--over",
            min=0,
            max=LONGEST_OVER_S,
            help="Watch for so many seconds, for prefix_hit_rate, ttft_s and tpot_s; else they are "
            "since the engine's start.",
        ),
    ] = 0.0,
    format: FormatOption = Format.TABLE,
) -> None:
    """Ask each self-hosted deployment of the current policy for its load, and for one token.

    No gateway needs to run. An engine is ready if it answered the token within 5 s. All figures are
    the engine's own; one that it does not report is empty. Exit 1 if an engine is not ready, 3 if
    that could not be found out. `python -m engine status` prints what is installed here.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_booking() as database:
        version = require_current(PolicyStore(database))
        found = toolbox.engines.inspect(version, EngineProbeNotes(database), over_s)
    rows = [_row(one, SHARES[quantile]) for one in found]
    show(Table(COLUMNS, rows), format, empty="The policy has no self-hosted deployment.")
    for one in found:
        for problem in one.problems:
            note(f"{one.deployment.name}: {problem}")
    readiness = {one.is_ready for one in found}
    if None in readiness:
        raise typer.Exit(3)
    if False in readiness:
        note("Next: docs/runbooks/engine-faults.md")
        raise typer.Exit(1)


def _row(one: EngineStatus, share: float) -> tuple[Any, ...]:
    """Return an engine's row of the table: requests as whole numbers, shares to four digits, times
    to the microsecond.
    """
    signals = one.signals
    return (
        one.deployment.name,
        one.deployment.base_url,
        one.is_ready,
        _whole(signals.queue),
        _whole(signals.running),
        _rounded(signals.kv_use, 4),
        _rounded(signals.prefix_hit_rate, 4),
        _rounded(signals.ttft.quantile(share), 6),
        _rounded(signals.tpot.quantile(share), 6),
    )


def _whole(figure: float | None) -> int | None:
    """Return a count of requests as a whole number; None if unknown."""
    return None if figure is None else round(figure)


def _rounded(figure: float | None, digits: int) -> float | None:
    """Return a figure rounded to so many digits after the point; None if unknown."""
    return None if figure is None else round(figure, digits)
