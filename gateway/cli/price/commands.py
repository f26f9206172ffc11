"""Declares `tollgate price list` and `show`, which print past, present and future rates with their
sources, and registers the commands that write prices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.price import write_commands
from gateway.cli.price.terms import moment_of
from gateway.cli.price.write_commands import current_policy, outdated_models
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    note,
    print_json,
    rate_text,
    show,
    show_record,
    write,
)
from gateway.domain.money import nusd_from_usd, plain_usd, usd_from_nusd
from gateway.domain.policy.policy import Deployment, Policy
from gateway.domain.policy.price_book import BookEntry, Dated, ModelKey
from gateway.domain.pricing.pricing import Price, cost_nusd, lines
from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind, TokenUsage
from gateway.errors import NothingFound
from gateway.services.policy.apply import price_of, prices_of, require_current, unpriced
from gateway.storage.policy import price_list
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.policy.prices import PriceStore

COLUMNS = (
    "deployment",
    "provider",
    "model",
    "kind",
    "usd_per_mtok",
    "from_input_tokens",
    "service_tier",
    "place",
    "factor",
    "source",
    "price_id",
)
RATE_COLUMNS = ("service_tier", "kind", "from_input_tokens", "usd_per_mtok")
HISTORY_COLUMNS = (
    "valid_from",
    "daily",
    "origin",
    "source",
    "price_id",
    "author",
    "reason",
    "created_at",
)
IN_FORCE_COLUMNS = ("valid_from", "price_id", "source", "policy_version")
EXAMPLE_TOKENS = 1000
SHOWN_IN_FORCE = 20

app = typer.Typer(
    name="price",
    help="Prices: past, present and future.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
AtOption = Annotated[
    str | None,
    typer.Option("--at", metavar="DATE", help="At this moment (UTC); now, unless given."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrice:
    """The facts about one deployment or model: its price at the moment, and its origin."""

    name: str
    price: Price | None
    history: Sequence[tuple[Any, ...]]
    in_force: Sequence[tuple[Any, ...]] = ()


@app.command(
    "list",
    short_help="List the rates in force.",
    epilog="\b\nExamples:\n  tollgate price list --format csv\n  tollgate price list --at "
    "2026-12-01",
)
def list_prices(
    ctx: typer.Context, at: AtOption = None, format: FormatOption = Format.TABLE
) -> None:
    """List the rates in force, in USD per million tokens: one row for each kind of token and tier.

    A deployment takes the policy's price, else the one from `price add`, else its GPU rate, else
    the built-in list's, else the policy's stand-in. Without any its requests are refused, never
    billed at zero. Calls of a provider's tools (web_search, ...) are in USD per million calls.
    `place` is the place of the rates, and `factor` their ratio to the list's; a place that an
    answer may state has rows of its own.
    """

    toolbox: Toolbox = ctx.obj
    moment = toolbox.now() if at is None else moment_of(at)
    with toolbox.open_admin() as database:
        stored = PriceStore(database)
        policy = require_current(PolicyStore(database)).policy
        book = stored.book(policy.deployments.values())
        outdated = outdated_models(stored, policy, toolbox.now())
    prices = prices_of(policy, at=moment, builtin=price_list.builtin_price, book=book)
    rows = [
        row
        for name, deployment in policy.deployments.items()
        for price in _places(prices.get(name))
        for row in _rows(deployment, price)
    ]
    if format is Format.TABLE:
        rows = [_for_people(COLUMNS, row) for row in rows]
    show(Table(COLUMNS, rows), format, empty="The policy has no deployment.")
    for name in unpriced(policy, prices):
        note(
            f"{name} has no price: its requests are refused (unpriced_model). Give it one: "
            "tollgate price add --help"
        )
    for name in (name for name, price in prices.items() if price.is_estimated):
        note(
            f"{name}: its place is not known from its address, so it is charged by the dearest "
            "known factor, and its events are flagged. Write the provider's own address, or the "
            "price of your contract: tollgate price add --help"
        )
    for name in (name for name, price in prices.items() if price.is_stand_in):
        note(
            f"{name} is charged by its stand-in price, and its events are flagged. Next: "
            "tollgate price add --help"
        )
    if outdated:
        note(
            f"The built-in list differs from the book for {', '.join(outdated)}. Next: tollgate "
            "price sync --dry-run"
        )


@app.command(
    "show",
    short_help="Show a model's price and its history.",
    epilog="\b\nExamples:\n  tollgate price show gpt-5.5\n  tollgate price show gpt-eu --at "
    "2026-10-01 --format json",
)
def show_price(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="A deployment, its model, or a model of the list."),
    ],
    at: AtOption = None,
    format: FormatOption = Format.TABLE,
) -> None:
    """Show the price of a model or deployment at a moment: rates, source, history, and an example
    request.

    The example has 1,000 tokens each way. The history has every entry of the price book, and the
    prices that the deployment was charged by. A model of the list that no deployment uses is shown
    as listed. CSV has only the rates.
    """

    toolbox: Toolbox = ctx.obj
    moment = toolbox.now() if at is None else moment_of(at)
    with toolbox.open_admin() as database:
        policy = current_policy(PolicyStore(database))
        found = _find(PriceStore(database), policy, name, at=moment)
    if format is Format.CSV:
        rows = [(one.name, *row) for one in found for row in _rate_rows(one.price)]
        show(Table(("name", *RATE_COLUMNS), rows), format, empty="")
    elif format is Format.JSON:
        print_json([_as_record(one, moment) for one in found])
    else:
        if len(found) > 1:
            note(
                f"{len(found)} are called '{name}': {', '.join(one.name for one in found)}. "
                "Each is shown below."
            )
        for one in found:
            _print_price(one, moment)


write_commands.register(app)


def _places(price: Price | None) -> Iterator[Price | None]:
    """Yield a deployment's price, and those of the places that its answers may state, each once."""
    yield price
    known = set() if price is None else {(price.factor, price.is_estimated)}
    for _, elsewhere in () if price is None else price.elsewhere:
        if (elsewhere.factor, elsewhere.is_estimated) not in known and not elsewhere.is_estimated:
            known.add((elsewhere.factor, elsewhere.is_estimated))
            yield elsewhere


def _rows(deployment: Deployment, price: Price | None) -> Iterator[tuple[Any, ...]]:
    """Yield a table row for each rate of a deployment's price, or one row without a price."""
    head = (deployment.name, deployment.provider, deployment.model)
    if price is None:
        yield (*head, None, None, None, None, None, None, "no price", None)
        return
    place = (price.place or None, price.factor, price.source, price.price_id)
    for tier, kind, from_input_tokens, usd_per_mtok in _rate_rows(price):
        yield (*head, kind, usd_per_mtok, from_input_tokens, tier, *place)


def _for_people(columns: Sequence[str], row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a rate's row for people: the calls of a provider's tools have the unit of contracts,
    per thousand.
    """
    rate, kind = columns.index("usd_per_mtok"), columns.index("kind")
    if row[kind] not in CALL_KINDS or row[rate] is None:
        return tuple(row)
    per_thousand = f"{rate_text(row[rate] / 1000)} per 1,000 calls"
    return (*row[:rate], per_thousand, *row[rate + 1 :])


def _rate_rows(price: Price | None) -> list[tuple[str, str, int, Decimal]]:
    """Return a row for each rate of a price: the standard tier first, then the others by name."""
    rates = (
        sorted(price.rates, key=lambda rate: rate.service_tier or "") if price is not None else []
    )
    return [
        (
            rate.service_tier or "standard",
            rate.kind.value,
            rate.from_input_tokens,
            rate.usd_per_mtok,
        )
        for rate in rates
    ]


def _find(
    stored: PriceStore, policy: Policy | None, name: str, *, at: datetime
) -> list[ShownPrice]:
    """Return the price of everything that a name means: deployments of the policy by name or model,
    else models of the list.

    Raises `NothingFound`.
    """
    meant = (
        []
        if policy is None
        else [d for d in policy.deployments.values() if name in (d.name, d.model)]
    )
    found = [_shown_deployment(stored, deployment, at) for deployment in meant]
    found = found or [_shown_model(stored, key, at) for key in price_list.models_named(name)]
    if not found:
        raise NothingFound(
            f"No deployment and no model of the built-in list is called '{name[:100]}'."
        )
    return found


def _shown_deployment(stored: PriceStore, deployment: Deployment, at: datetime) -> ShownPrice:
    """Return a deployment's price at a moment, its entries in the book and the prices it was
    charged by.
    """
    book = stored.book([deployment])
    record = stored.in_force(deployment.name, limit=SHOWN_IN_FORCE)
    return ShownPrice(
        name=deployment.name,
        price=price_of(deployment, at=at, builtin=price_list.builtin_price, book=book),
        history=[
            _entry_row(entry)
            for entry in book.book.history(deployment, price_list.key_of(deployment))
        ],
        in_force=[
            (entry.valid_from, entry.price_id, entry.source, entry.policy_version)
            for entry in record
        ],
    )


def _shown_model(stored: PriceStore, key: ModelKey, at: datetime) -> ShownPrice:
    """Return a listed model's price at a moment and its history, from the book or, if the book has
    none, from the bundled list.
    """
    book = stored.entries([key])
    name = f"{key.provider}/{key.model}"
    if book.has_listed(key):
        history = [_entry_row(entry) for entry in book.list_entries(key)]
        return ShownPrice(name=name, price=book.listed(key, at), history=history)
    bundled = [
        (*_dated_row(dated, "bundled list", None), None, None, None)
        for dated in price_list.schedule(key)
    ]
    return ShownPrice(name=name, price=price_list.listed_price(key, at), history=bundled)


def _entry_row(entry: BookEntry) -> tuple[Any, ...]:
    """Return a history row of one entry of the price book: its dates, origin, source, author and
    reason.
    """
    head = _dated_row(entry.dated, entry.origin.value, entry.source)
    return (*head, entry.author, entry.reason, entry.created_at)


def _dated_row(dated: Dated, origin: str, source: str | None) -> tuple[Any, ...]:
    """Return the first five cells of a history row: begin, window of the day, origin, source and
    price id. The caller adds author, reason and time.
    """
    price = dated.price
    named = source if source is not None or price is None else price.source
    return (
        dated.valid_from,
        write_commands.daily(dated),
        origin,
        named,
        "none" if price is None else price.price_id,
    )


def _example_costs(price: Price) -> Iterator[tuple[str, Decimal]]:
    """Yield, for each service tier, the cost of a request of 1,000 input and 1,000 output tokens; a
    model without an output rate is priced for input only.
    """
    for tier in (None, *price.service_tiers):
        own = price.for_tier(tier)
        writes = own.rate(TokenKind.OUTPUT, input_tokens=EXAMPLE_TOKENS) is not None
        usage = TokenUsage(
            input_tokens=EXAMPLE_TOKENS, output_tokens=EXAMPLE_TOKENS if writes else 0
        )
        yield tier or "standard", usd_from_nusd(cost_nusd(lines(usage, own)))


def _as_record(one: ShownPrice, at: datetime) -> dict[str, Any]:
    """Return a price with its rates, example costs and history as a record for JSON."""
    examples = [] if one.price is None else list(_example_costs(one.price))
    return {
        **_summary_record(one, at),
        "rates": Table(RATE_COLUMNS, _rate_rows(one.price)).records(),
        "example_cost_usd": dict(examples),
        "history": Table(HISTORY_COLUMNS, one.history).records(),
        "in_force": Table(IN_FORCE_COLUMNS, one.in_force).records(),
    }


def _summary_record(one: ShownPrice, at: datetime) -> dict[str, Any]:
    """Return a price's name, moment, source and id, without its rates."""
    price = one.price
    return {
        "name": one.name,
        "at": at,
        "source": "no price" if price is None else price.source,
        "price_id": None if price is None else price.price_id,
        "is_stand_in": price is not None and price.is_stand_in,
    }


def _print_price(one: ShownPrice, at: datetime) -> None:
    """Print a price for people: rates, example costs and history."""
    show_record(_summary_record(one, at), Format.TABLE)
    if one.price is not None:
        write("\nRates, USD per million tokens:\n")
        rows = [_for_people(RATE_COLUMNS, row) for row in _rate_rows(one.price)]
        show(Table(RATE_COLUMNS, rows), Format.TABLE, empty="")
        write("\nA request of 1,000 tokens in and 1,000 out:\n")
        examples = [
            (tier, f"${plain_usd(nusd_from_usd(cost_usd))}")
            for tier, cost_usd in _example_costs(one.price)
        ]
        show(Table(("service_tier", "cost_usd"), examples), Format.TABLE, empty="")
    write("\nIn the price book:\n")
    show(
        Table(HISTORY_COLUMNS, one.history),
        Format.TABLE,
        empty="nothing: it is priced from elsewhere.",
    )
    if one.in_force:
        write("\nPrices it was charged by, newest first:\n")
        show(Table(IN_FORCE_COLUMNS, one.in_force), Format.TABLE, empty="")
    write("\n")
