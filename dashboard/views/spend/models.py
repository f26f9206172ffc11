"""Draws the page *Models and providers*: spending from providers down to models and deployments,
and in panels the places of the data, the kinds of tokens, and the savings of caches and routing.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial

import streamlit as st

from dashboard import charts
from dashboard.display import count, counted, metric_money, money, share
from dashboard.downloads import csv_button
from dashboard.question_page import ShownReport, show_panel
from dashboard.shell.choices import Choices
from dashboard.shell.leading import MODELS
from dashboard.source import answer
from dashboard.tables import show_cells, show_report
from dashboard.views.spend.drill import Drill, show_drill
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Report

SAVINGS = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_tokens",
    "cached_share",
    "cache_saving_usd",
    "cost_usd",
)
TOKEN_KINDS = {
    "uncached_input_tokens": "Input, not cached",
    "cached_input_tokens": "Cached input",
    "cache_write_tokens": "Cache write",
    "plain_output_tokens": "Output, no reasoning",
    "reasoning_tokens": "Reasoning",
}
TOKEN_COSTS = ShownReport(
    report="token-costs",
    about="The cost of 1,000 tokens of each kind, as charged.",
    headlines=("total_usd",),
    fixed=("kind",),
    columns=("tokens", "usd_per_1k_tokens", "total_usd", "share"),
    split=None,
)
ROUTING = ShownReport(
    report="routing-savings",
    about="The same tokens at the dearest deployment that could have served each attempt, and at "
    "the first listed one.",
    headlines=("compared_usd", "dearest_saving_usd", "default_saving_usd"),
    columns=(
        "attempts",
        "compared_attempts",
        "compared_usd",
        "dearest_usd",
        "dearest_saving_usd",
        "default_usd",
        "default_saving_usd",
    ),
    split="Route",
)
PLACES = ("external", "self-hosted")
PLACE_COLOURS = ("#C97B00", "#00997A")


def page() -> st.Page:
    """Return the page of models and providers for the menu."""
    return st.Page(show, title="Models and providers", icon=":material/neurology:", url_path=MODELS)


def show() -> None:
    """Show the spending of providers and models, and the way down."""
    show_drill(PAGE)


def _show_places(choices: Choices) -> Report | None:
    """Show the cost at self-hosted and external deployments, by day."""
    currency, figure = choices.currency, choices.money("cost_usd")
    by = (Dimension.DAY.value, Dimension.DESTINATION.value)
    daily = answer("destinations", choices.question(by=by))
    charts.stacked_days(
        daily.records(),
        group=Dimension.DESTINATION.value,
        size=figure,
        size_title=f"Cost per day, {currency}",
        read=partial(money, currency=currency),
        size_format=charts.MONEY_AXIS,
        names=PLACES,
        colours=PLACE_COLOURS,
        alt_text=f"Cost per day in {currency}, self-hosted and external",
        currency=currency,
    )
    csv_button(st, daily, name=f"destinations-{choices.file_label}", label="By day")
    return daily


def _show_tokens(choices: Choices) -> Report | None:
    """Show the tokens of each kind, by day and as a table with shares."""
    report = answer("tokens", choices.question())
    kinds = [label for name, label in TOKEN_KINDS.items() if report.total[name]]
    if not kinds:
        st.caption("No tokens were reported for these attempts.")
        return report
    charts.stacked_days(
        [
            {"day": row["day"], "kind": label, "tokens": row[name]}
            for row in report.records()
            for name, label in TOKEN_KINDS.items()
            if row[name]
        ],
        group="kind",
        size="tokens",
        size_title="Tokens per day",
        read=count,
        size_format="~s",
        names=kinds,
        alt_text="Tokens per day by kind",
    )
    counts = [report.total[name] for name, label in TOKEN_KINDS.items() if label in kinds]
    whole = sum(int(str(part)) for part in counts)
    show_cells(
        {
            "Kind": [*kinds, "Total"],
            "Tokens": [*counts, whole],
            "Share": [*(_part(part, whole) for part in counts), Decimal(1)],
        },
        {"Tokens": count, "Share": share},
        numbers=("Tokens", "Share"),
        shaded=[len(kinds)],
    )
    csv_button(st, report, name=f"tokens-{choices.file_label}", label="By day")
    return report


def _part(part: Cell, whole: int) -> Decimal:
    """Return a count as a share of all."""
    return Decimal(str(part)) / whole


def _show_savings(choices: Choices) -> Report | None:
    """Show the savings by the providers' prompt caches, by model."""
    by = Dimension.MODEL.value
    report = answer("savings", choices.question(by=(by,)))
    total, currency = report.total, choices.currency
    if not (total["cached_input_tokens"] or total["cache_write_tokens"]):
        st.caption("No provider reported cached tokens for these attempts.")
        return report
    unknown = total["unknown_saving_attempts"]
    rest = f" · unknown for {counted(unknown, 'attempt')}" if unknown else ""
    saved = metric_money(total[choices.money("cache_saving_usd")], currency)
    st.markdown(f"**Saved {saved} · {share(total['cached_share'])} of the input was cached{rest}**")
    st.caption(
        "Cached tokens at the rate of plain input, minus their cost. Cache writes that cost more "
        "than plain input count against the saving."
    )
    show_report(report, (by, *(choices.money(name) for name in SAVINGS)))
    csv_button(st, report, name=f"savings-{choices.file_label}", label="Savings")
    return report


def _show_token_costs(choices: Choices) -> Report | None:
    """Show the cost of each kind of tokens; it reads single events, so nothing else asks for it."""
    return show_panel(TOKEN_COSTS, choices)


def _show_routing(choices: Choices) -> Report | None:
    """Show the savings of routing, by route."""
    return show_panel(ROUTING, choices)


PAGE = Drill(
    title="Models and providers",
    root="All providers",
    url_path=MODELS,
    chain=(Dimension.PROVIDER, Dimension.MODEL, Dimension.DEPLOYMENT, Dimension.DAY),
    others=(Dimension.ROUTE, Dimension.REGION, Dimension.DESTINATION, Dimension.TEAM),
    report="destinations",
    columns=(
        "cost_per_mtok_usd",
        "attempts",
        "input_tokens",
        "output_tokens",
        "adjustments_usd",
        "held_usd",
    ),
    panels={
        "Self-hosted and external": _show_places,
        "Tokens by kind": _show_tokens,
        "Cost of tokens": _show_token_costs,
        "Prompt caches": _show_savings,
        "Routing": _show_routing,
    },
)
