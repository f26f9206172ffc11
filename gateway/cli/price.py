"""`tollgate price`: what the current policy's deployments cost, and where each figure comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.output import Format, FormatOption, Table, note, show
from gateway.domain.policy import Deployment
from gateway.domain.pricing import Price
from gateway.services.policies import prices_of, require_current, unpriced

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox

COLUMNS = ("deployment", "provider", "model", "kind", "usd_per_mtok", "from_input_tokens", "source", "price_id")

app = typer.Typer(name="price", help="Prices and their sources.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", short_help="List the rates in force.", epilog="\b\nExample:\n  tollgate price list --format csv")
def list_prices(ctx: typer.Context, format: FormatOption = Format.TABLE) -> None:
    """List the rates in force, in USD per million tokens: one row for each kind of token and tier.

    A deployment takes the policy's price, else its GPU rate, else the built-in list's. Without any its
    requests are refused, never billed at zero.
    """
    from gateway.storage.prices import builtin_price

    toolbox: Toolbox = ctx.obj
    with toolbox.open_stores() as stores:
        policy = require_current(stores.policies).policy
    prices = prices_of(policy, at=toolbox.now(), builtin=builtin_price)
    rows = [row for name, deployment in policy.deployments.items() for row in _rows(deployment, prices.get(name))]
    show(Table(COLUMNS, rows), format, empty="The policy has no deployment.")
    for name in unpriced(policy, prices):
        note(f"{name} has no price: its requests are refused (unpriced_model). Add 'price' or 'gpu' to it.")


def _rows(deployment: Deployment, price: Price | None) -> Iterator[tuple[Any, ...]]:
    head = (deployment.name, deployment.provider, deployment.model)
    if price is None:
        yield (*head, None, None, None, "no price", None)
        return
    for rate in price.rates:
        yield (*head, rate.kind.value, rate.usd_per_mtok, rate.from_input_tokens, price.source, price.price_id)
