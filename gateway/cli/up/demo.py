"""Runs `tollgate demo-data`: writes 90 days of usage events, marked as demo, to the ledger;
`services/demo_events.py` generates them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.terminal.output import Format, FormatOption, note, show_record
from gateway.services.demo_events import demo_events, demo_prices
from gateway.services.demo_teams import DEPLOYMENTS

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.cli.toolbox import Toolbox
    from gateway.domain.ledger.usage_event import UsageEvent
    from gateway.domain.pricing.pricing import Price
    from gateway.services.stores import PriceList

DAYS = 90
SEED = 1  # the same figures on every machine, so that a screenshot can be compared
BATCH = 1000
PROGRESS_EVERY_S = 2.0


app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    "demo-data",
    short_help="Write generated usage to look at.",
    epilog="\b\nExample:\n  tollgate demo-data --small && tollgate report spend --demo",
)
def demo_data(
    ctx: typer.Context,
    small: Annotated[
        bool, typer.Option("--small", help="90 days of five teams: the only size so far.")
    ] = True,
    format: FormatOption = Format.TABLE,
) -> None:
    """Write generated usage, marked as demo.

    Reports show it only with --demo; real figures never contain it.

    Running it again adds the days since, and nothing twice.
    """
    toolbox: Toolbox = ctx.obj
    now = toolbox.now()
    prices = demo_prices(_listed_prices(toolbox.machine.price_list(), now))
    events = demo_events(until=now, days=DAYS, seed=SEED, prices=prices)
    written, printed_s = 0, monotonic()
    with toolbox.open_booking() as stores:
        stores.database.ensure_months(first=(now - timedelta(days=DAYS)).date(), last=now.date())
        stores.prices.store_event_prices(prices.values())
        for batch in _batches(events):
            written += stores.ledger.write(batch)
            printed_s = _print_progress(f"{written:,} events written.", printed_s)
        note("Summing up the hours, so that reports and dashboard are fast.")
        stores.database.refresh_rollups()
    show_record({"days": DAYS, "new_events": written}, format)
    note("Look at it with: tollgate report spend --demo, or in the dashboard.")


def _print_progress(text: str, printed_s: float) -> float:
    """Print progress now and then; return the time of the last print."""
    if monotonic() - printed_s < PROGRESS_EVERY_S:
        return printed_s
    note(text)
    return monotonic()


def _listed_prices(price_list: PriceList, now: datetime) -> dict[str, Price]:
    """Return the built-in list's prices of the demo's external deployments, without those that it
    does not list.
    """
    listed = {
        name: price_list.builtin_price(
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
