"""Declares `tollgate demo-data`, which writes generated usage events to the ledger: a small set for
`up`, or a whole organisation with its invoices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.cli.terminal.progress import ProgressStep
from gateway.cli.terminal.replaced_file import whole_file
from gateway.errors import BadUsage, DatabaseUnavailable, OperatorError
from gateway.services.demo.organisation import OrganisationSize
from gateway.services.demo_events import demo_events, demo_prices
from gateway.services.demo_teams import DEPLOYMENTS
from gateway.storage.ledger import rollups
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.policy.price_list import builtin_price
from gateway.storage.policy.prices import PriceStore
from gateway.storage.postgres.partitions import ensure_months

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.cli.toolbox import Toolbox
    from gateway.domain.ledger.usage_event import UsageEvent
    from gateway.domain.pricing.pricing import Price
    from gateway.services.demo.exports import DemoFile

DAYS = 90
SEED = 1  # the same figures on every machine, so that a screenshot can be compared
BATCH = 1000
PROGRESS_EVERY_S = 2.0
FULL = OrganisationSize(months=6, events=2_000_000, teams=60)
SMALL_LEDGER = OrganisationSize(months=3, events=25_000, teams=5)
OUT = "demo-files"
NOT_IMPORTED = ("policy", "readme")  # kinds of files that are no bills


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "demo-data",
    short_help="Write generated usage to look at.",
    epilog="\b\nExamples:\n  tollgate demo-data --small && tollgate report spend --demo\n"
    "  tollgate demo-data --months 6 --events 2000000 --teams 60\n"
    "  TOLLGATE_HOME=~/practice tollgate demo-data --small --as-ledger --out practice",
)
def demo_data(
    ctx: typer.Context,
    small: Annotated[
        bool, typer.Option("--small", help="90 days of five teams. The default.")
    ] = False,
    months: Annotated[
        int | None,
        typer.Option(
            "--months", help="An organisation of so many months; this one up to yesterday."
        ),
    ] = None,
    events: Annotated[int | None, typer.Option("--events", help="Its events, exactly.")] = None,
    teams: Annotated[int | None, typer.Option("--teams", help="Its teams, at most 400.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Another seed makes another organisation.")
    ] = None,
    as_ledger: Annotated[
        bool,
        typer.Option(
            "--as-ledger",
            help="Write real events, and invoices with known gaps. Only without real events.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help=f"Folder of the invoices and the policy. Default: {OUT}."
        ),
    ] = None,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Write generated usage, marked as demo.

    Reports show it only with --demo; real figures never contain it. With --months, --events or
    --teams it is a whole organisation: growth, weekends, a spike, a price change, failovers,
    aborted streams.

    With --as-ledger the events count as real ones, to practise closing, reconciling and exporting:
    every report and page then says that the ledger is a demo, for ever. Budgets are not charged,
    and the policy is among the files, for `policy apply`.

    Running it again adds nothing twice; --small adds the days since.
    """
    toolbox: Toolbox = ctx.obj
    asked = (months, events, teams, seed)
    if small and any(one is not None for one in asked):
        raise BadUsage("--small has its own size. Leave it out, or --months, --events, --teams.")
    if out is not None and not as_ledger:
        raise BadUsage("--out is the folder of the invoices, which only --as-ledger makes.")
    if not as_ledger and all(one is None for one in asked):
        record = _write_small(toolbox)
        note_after = "Look at it with: tollgate report spend --demo, or in the dashboard."
    else:
        is_small = all(one is None for one in asked)
        size = (
            SMALL_LEDGER
            if is_small
            else OrganisationSize(
                months=FULL.months if months is None else months,
                events=FULL.events if events is None else events,
                teams=FULL.teams if teams is None else teams,
                seed=SEED if seed is None else seed,
            )
        )
        record = _write_organisation(
            toolbox, size, folder=(out or Path(OUT)) if as_ledger else None
        )
        demo = "" if as_ledger else " --demo"
        note_after = f"Look at it with: tollgate report spend --by team{demo}"
    if format is not Format.JSON:  # a table and CSV have one cell for all files
        record["files"] = [file["path"] for file in record["files"]]
    show_record(record, format)
    if not record["new_events"]:
        note("Every event was there already: nothing was added.")
    note(note_after)


def _write_organisation(
    toolbox: Toolbox, size: OrganisationSize, *, folder: Path | None
) -> dict[str, Any]:
    """Write an organisation, as a ledger if there is a folder for its files; return the record to
    print.
    """
    from gateway.cli.up.write_organisation import write_organisation
    from gateway.services.demo.files import demo_files

    size.check()
    reached = 0
    try:
        with (
            toolbox.open_booking() as database,
            ProgressStep("Writing events", out=sys.stderr) as step,
        ):

            def on_progress(events: int) -> None:
                nonlocal reached
                reached = events
                step.advance(f"{events:,} of {size.events:,} events", done=events / size.events)

            written = write_organisation(
                database,
                size,
                last_day=toolbox.now().date() - timedelta(days=1),
                builtin=builtin_price,
                is_ledger=folder is not None,
                on_progress=on_progress,
            )
    except DatabaseUnavailable:
        if reached:
            note(f"{reached:,} events are there and stay. Repeat the command: it adds the others.")
        raise
    made: list[dict[str, str]] = []
    if folder is not None:
        files = demo_files(size, written.calendar, written.usage, written.prices)
        made = [
            {
                "kind": file.kind,
                "provider": file.provider,
                "account": file.account,
                "path": str(folder / file.name),
            }
            for file in files
            if file.kind not in NOT_IMPORTED
        ]
        _write_files(folder, files)
        note(
            f"Invoices, the GPU bill and the policy are in {folder}; {files[-1].name} lists the "
            "gaps."
        )
    return {"days": written.calendar.days, "new_events": written.new_events, "files": made}


def _write_files(folder: Path, files: list[DemoFile]) -> None:
    """Write the files into a folder, each whole or not at all: a half one would look like another
    person's file to the next run. Raises `OperatorError`, also if another one is there by its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            path = folder / file.name
            if path.exists() and path.read_bytes() != file.text.encode():
                raise OperatorError(
                    f"{path} exists with other content and was not replaced. The events are in "
                    "the ledger. Run the command again with another --out: it adds no event twice."
                )
        for file in files:
            with whole_file(folder / file.name) as out:
                out.write(file.text.encode())
    except OSError as broken:
        raise OperatorError(
            f"The files cannot be written to {folder}: {broken.strerror}. The events are in the "
            "ledger. Run the command again with another --out: it adds no event twice."
        ) from None


def _write_small(toolbox: Toolbox) -> dict[str, Any]:
    """Write 90 days of five teams up to now; return the record to print."""
    now = toolbox.now()
    prices = demo_prices(_listed_prices(now))
    events = demo_events(until=now, days=DAYS, seed=SEED, prices=prices)
    written, printed_s = 0, monotonic()
    with toolbox.open_booking() as database, closing(Ledger(database)) as ledger:
        ensure_months(database, first=(now - timedelta(days=DAYS)).date(), last=now.date())
        PriceStore(database).store_event_prices(prices.values())
        for batch in _batches(events):
            written += ledger.write(batch)
            printed_s = _print_progress(f"{written:,} events written.", printed_s)
        note("Summing up the hours, so that reports and dashboard are fast.")
        rollups.refresh(database)
    return {"days": DAYS, "new_events": written, "files": []}


def _print_progress(text: str, printed_s: float) -> float:
    """Print progress now and then; return the time of the last print."""
    if monotonic() - printed_s < PROGRESS_EVERY_S:
        return printed_s
    note(text)
    return monotonic()


def _listed_prices(now: datetime) -> dict[str, Price]:
    """Return the built-in list's prices of the demo's external deployments, without those that it
    does not list.
    """
    listed = {
        name: builtin_price(
            provider=deployment.provider, model=deployment.model, base_url="", at=now
        )
        for name, deployment in DEPLOYMENTS.items()
        if deployment.gpu is None
    }
    return {name: price for name, price in listed.items() if price is not None}


def _batches(events: Iterator[UsageEvent]) -> Iterator[list[UsageEvent]]:
    """Yield the events in lists of at most `BATCH`, each for one transaction."""
    while batch := list(islice(events, BATCH)):
        yield batch
