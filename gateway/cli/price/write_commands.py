"""Declares `tollgate price add` and `sync`, which add dated prices to the book, and `reprice`,
which posts adjustments; no entry and no event is edited.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.operator import ReasonOption, TakesYesOption, operator_name
from gateway.cli.price.terms import PriceTerms, moment_of, month_of, rates_of
from gateway.cli.terminal.confirm import confirm
from gateway.cli.terminal.output import Format, FormatOption, Table, note, show, show_record
from gateway.domain.money import usd_from_nusd
from gateway.domain.policy.policy import Deployment, Policy
from gateway.domain.policy.price_book import Dated, ModelKey, NewEntry, PriceBook, PriceOrigin
from gateway.errors import NothingFound, PolicyRejected
from gateway.services.policy.apply import require_current, version_of
from gateway.services.policy.price_changes import (
    Difference,
    RateChange,
    Repricing,
    rate_changes,
    sync_steps,
)
from gateway.storage.ledger.repricing import RepriceStore
from gateway.storage.policy import price_list
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.policy.prices import PriceStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.storage.policy.policies import PolicyStore
    from gateway.storage.policy.prices import PriceStore

CHANGE_COLUMNS = (
    "provider",
    "model",
    "kind",
    "service_tier",
    "from_input_tokens",
    "valid_from",
    "daily",
    "was_usd_per_mtok",
    "becomes_usd_per_mtok",
)
DIFFERENCE_COLUMNS = (
    "team",
    "model",
    "deployment",
    "events",
    "was_usd",
    "becomes_usd",
    "difference_usd",
)

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show it and change nothing.")]
Additions = list[tuple[ModelKey, tuple[Dated, ...], PriceBook]]


def register(app: typer.Typer) -> None:
    """Add the commands that write prices to the command line's `price` group."""
    app.command(
        "add",
        short_help="Add a negotiated price from a date on.",
        epilog="\b\nExamples:\n  tollgate price add gpt-5.5 --input 4 --cached-input 0.4 "
        "--output 24 \\\n"
        "    --effective-from 2026-12-01 --source 'contract 2026-117' --reason 'new contract'\n"
        "  tollgate price add --deployment partner --input 0.8 --output 3.2 --rate "
        "input@200001=1.6 \\\n"
        "    --rate input/priority=1.6 --rate output/priority=6.4 --source 'offer of 3 May' "
        "--reason renewal\n"
        "  tollgate price add gpt-5.5 --withdraw --effective-from 2027-01-01 --reason 'the "
        "contract ends'",
    )(add)
    app.command(
        "sync",
        short_help="Bring the book up to date with the built-in list.",
        epilog="\b\nExamples:\n  tollgate price sync\n  tollgate price sync --dry-run --format "
        "csv\n"
        "  tollgate price sync --all --yes",
    )(sync)
    app.command(
        "reprice",
        short_help="Correct an open month by today's price book.",
        epilog="\b\nExamples:\n  tollgate price reprice --month 2026-11 --dry-run\n"
        "  tollgate price reprice --month 2026-11 --deployment gpt-eu --yes",
    )(reprice)


def add(
    ctx: typer.Context,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Every deployment of this model …")
    ] = None,
    deployment: Annotated[
        str | None, typer.Option("--deployment", help="… or one deployment.")
    ] = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="MODEL at this provider alone.")
    ] = None,
    effective_from: Annotated[
        str | None,
        typer.Option(
            "--effective-from", metavar="DATE", help="From this moment (UTC); now, unless given."
        ),
    ] = None,
    input_usd: Annotated[str | None, typer.Option("--input", metavar="USD", help="Input.")] = None,
    cached_usd: Annotated[
        str | None, typer.Option("--cached-input", metavar="USD", help="Cached input.")
    ] = None,
    write_usd: Annotated[
        str | None, typer.Option("--cache-write", metavar="USD", help="Cache writes.")
    ] = None,
    output_usd: Annotated[
        str | None, typer.Option("--output", metavar="USD", help="Output.")
    ] = None,
    reasoning_usd: Annotated[
        str | None, typer.Option("--reasoning", metavar="USD", help="Reasoning.")
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            "--rate", metavar="KIND[@TOKENS][/TIER]=USD", help="Any other rate; repeatable."
        ),
    ] = None,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="End an added price.")] = False,
    source: Annotated[
        str | None, typer.Option("--source", help="The source of the figures.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the history.")] = "",
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add a dated price to the book; gateways use it from its moment on.

    No entry is ever edited or deleted.

    It overrides GPU rates and the built-in list, not a 'price' in the policy. Rates are USD per
    million tokens; for calls of a provider's tools, per thousand. '@200001' is for requests with an
    input of at least that many tokens, '/priority' for answers from that service tier: a tier needs
    all of its rates. A moment in the past changes no event: see 'price reprice'.
    """

    toolbox: Toolbox = ctx.obj
    named = {
        "input": input_usd,
        "cached_input": cached_usd,
        "cache_write": write_usd,
        "output": output_usd,
        "reasoning": reasoning_usd,
    }
    terms = PriceTerms(
        model=model, deployment=deployment, provider=provider, source=source, reason=reason
    )
    rates = rates_of(named, rate or ())
    now = toolbox.now()
    starts = now if effective_from is None else moment_of(effective_from)
    with toolbox.open_admin() as database:
        meant = _target_deployments(terms, current_policy(PolicyStore(database)))
        terms.check(rates, is_withdrawn=withdraw, meant=meant)
        price = None if withdraw else terms.price(rates, meant)
        entry = NewEntry(
            origin=PriceOrigin.OVERRIDE,
            provider=provider,
            model=model,
            deployment=deployment,
            dated=Dated(valid_from=starts, price=price),
            source=source or "withdrawn",
        )
        PriceStore(database).add([entry], author=operator_name(), reason=reason)
    price_id = None if price is None else price.price_id
    show_record(
        {"applies_to": deployment or model, "valid_from": starts, "price_id": price_id}, format
    )
    _print_consequences(terms, meant, is_past=starts < now)


def sync(
    ctx: typer.Context,
    all_models: Annotated[
        bool, typer.Option("--all", help="Every model of the list, not just the policy's.")
    ] = False,
    reason: ReasonOption = "price sync",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Update the price book from the built-in list: shows every rate that changes, asks, adds
    entries.

    Uses no network: the list comes with this version of Tollgate. A price that the list dates holds
    from its date. One that the list changed in place holds from now on, because its true date is
    unknown. Nothing is edited.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        prices = PriceStore(database)
        keys = (
            price_list.all_keys()
            if all_models
            else _keys(require_current(PolicyStore(database)).policy)
        )
        additions = _additions(prices, keys, toolbox.now())
        rows = [
            _change_row(change)
            for key, found, book in additions
            for change in rate_changes(key, found, book)
        ]
        show(
            Table(CHANGE_COLUMNS, rows),
            format,
            empty="The book agrees with the built-in list: nothing to do.",
        )
        entries = [
            NewEntry(origin=PriceOrigin.LIST, provider=key.provider, model=key.model, dated=dated)
            for key, found, _ in additions
            for dated in found
        ]
        if not entries or dry_run:
            return
        if not yes:
            confirm("Add these prices?", done="written", act="write")
        added = prices.add(entries, author=operator_name(), reason=reason)
    note(f"Added {added} dated price(s). Gateways use each from its moment on.")


def reprice(
    ctx: typer.Context,
    month: Annotated[str, typer.Option("--month", metavar="YYYY-MM", help="An open month (UTC).")],
    route: Annotated[str | None, typer.Option("--route", help="Only this route.")] = None,
    deployment: Annotated[
        str | None, typer.Option("--deployment", help="Only this deployment.")
    ] = None,
    reason: ReasonOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Price the events of an open month again by today's book: shows differences, asks, posts
    signed adjustments.

    Each event takes the price that today's book has for its own moment, under its own policy
    version. No event changes: a difference becomes an adjustment of its event, once however often
    this runs. Events of unknown usage stay, and a month that is not open is refused.
    """

    toolbox: Toolbox = ctx.obj
    with toolbox.open_admin() as database:
        ledger, policies, prices = (
            RepriceStore(database),
            PolicyStore(database),
            PriceStore(database),
        )
        repricing = Repricing(
            ledger=ledger,
            policy_of=lambda version: _policy_of(policies, version),
            book_of=lambda policy: prices.book(policy.deployments.values()),
            builtin=price_list.builtin_price,
            month=month_of(month),
            route=route,
            deployment=deployment,
        )
        repricing.require_open()
        differences, kept = repricing.differences()
        rows = [_difference_row(difference) for difference in differences]
        show(Table(DIFFERENCE_COLUMNS, rows), format, empty="No event's cost changes.")
        for why, count in sorted(kept.items()):
            note(f"{count} event(s) keep their cost: {why}.")
        if not differences or dry_run:
            return
        if not yes:
            confirm("Post these differences as adjustments?", done="written", act="write")
        posted = ledger.post(
            repricing.month, repricing.adjustments(), author=operator_name(), reason=reason
        )
    note(
        f"Posted {posted} adjustment(s) in {month}. The events stay as they were; receipts "
        "show both."
    )


def current_policy(policies: PolicyStore) -> Policy | None:
    """Return the policy in force; None without one, or if this Tollgate is stricter than the one
    that wrote it.
    """
    stored = policies.current()
    try:
        return None if stored is None else version_of(stored).policy
    except PolicyRejected:
        return None


def outdated_models(prices: PriceStore, policy: Policy, now: datetime) -> list[str]:
    """Return the policy's models for which the built-in list and the book differ."""
    imported = [(key, book) for key, _, book in _additions(prices, _keys(policy), now)]
    return [key.model for key, book in imported if book.has_listed(key)]


def daily(dated: Dated) -> str | None:
    """Return the part of each day for which a price holds, such as `22:00 to 06:00`; None if it
    holds all day.
    """
    return (
        None if dated.daily is None else f"{dated.daily.since:%H:%M} to {dated.daily.until:%H:%M}"
    )


def _target_deployments(terms: PriceTerms, policy: Policy | None) -> list[Deployment]:
    """Return the deployments that an added price is for.

    Raises `NothingFound` for an unknown deployment.
    """
    deployments = [] if policy is None else list(policy.deployments.values())
    if terms.deployment is not None:
        found = [deployment for deployment in deployments if deployment.name == terms.deployment]
        if not found:
            names = ", ".join(deployment.name for deployment in deployments) or "none"
            raise NothingFound(
                f"There is no deployment '{terms.deployment[:100]}' in the policy. There is: "
                f"{names}."
            )
        return found
    return [
        d for d in deployments if d.model == terms.model and terms.provider in (None, d.provider)
    ]


def _print_consequences(terms: PriceTerms, meant: Sequence[Deployment], *, is_past: bool) -> None:
    """Print notes on an added price: no deployment has it, the policy's price wins, or it begins in
    the past.
    """
    if not meant:
        note(
            f"No deployment of the current policy has model {terms.model}: nothing is charged "
            "by this yet."
        )
    for name in (deployment.name for deployment in meant if deployment.price is not None):
        note(
            f"{name} has a price in the policy, which wins over this one. Remove it there to "
            "use this."
        )
    if is_past:
        note(
            "It begins in the past. Events keep their cost; next: tollgate price reprice "
            "--month YYYY-MM --dry-run"
        )


def _keys(policy: Policy) -> list[ModelKey]:
    """Return the models of the built-in list by which this policy's external deployments can be
    priced.
    """

    external = (
        deployment for deployment in policy.deployments.values() if not deployment.is_self_hosted
    )
    return sorted({key for key in map(price_list.key_of, external) if key is not None})


def _additions(prices: PriceStore, keys: Sequence[ModelKey], now: datetime) -> Additions:
    """Return the entries that a sync adds to the price book, model by model, and the book that they
    extend.
    """

    book = prices.entries(keys)
    found = [(key, sync_steps(key, price_list.schedule(key), book, now=now), book) for key in keys]
    return [addition for addition in found if addition[1]]


def _change_row(change: RateChange) -> tuple[Any, ...]:
    """Return the table row of one rate that a sync changes."""
    was, becomes = change.was, change.becomes
    return (
        change.key.provider,
        change.key.model,
        change.rate.kind.value,
        change.rate.service_tier or "standard",
        change.rate.from_input_tokens,
        change.dated.valid_from,
        daily(change.dated),
        None if was is None else was.usd_per_mtok,
        None if becomes is None else becomes.usd_per_mtok,
    )


def _difference_row(difference: Difference) -> tuple[Any, ...]:
    """Return the table row of one difference that repricing makes."""
    was, becomes = difference.was_nusd, difference.becomes_nusd
    return (
        difference.team,
        difference.model,
        difference.deployment,
        difference.events,
        usd_from_nusd(was),
        usd_from_nusd(becomes),
        usd_from_nusd(becomes - was),
    )


def _policy_of(policies: PolicyStore, version: int) -> Policy | None:
    """Return a stored policy version, parsed; None if it is missing or this release cannot read
    it.
    """
    stored = policies.get(version)
    try:
        return None if stored is None else version_of(stored).policy
    except PolicyRejected:
        return None
