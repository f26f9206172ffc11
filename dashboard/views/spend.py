"""Draws the spend page: cost by team, model or another dimension over time, self-hosted and
external cost, tokens by kind, savings by prompt caches, and the way to the events behind a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import compact, count, counted, inert, money, share
from dashboard.downloads import csv_button
from dashboard.filters import (
    address_filters,
    as_option,
    choose_month,
    dataset,
    month_name,
    question,
)
from dashboard.notes import show_notes
from dashboard.source import answer
from dashboard.tables import show_cells, show_report
from dashboard.views import events
from gateway.reports import UNALLOCATED, BadUsage, Dimension, Report

SPLITS = {
    "Team": Dimension.TEAM,
    "Model": Dimension.MODEL,
    "Project": Dimension.PROJECT,
    "Cost centre": Dimension.COST_CENTRE,
    "Route": Dimension.ROUTE,
    "Deployment": Dimension.DEPLOYMENT,
    "Region": Dimension.REGION,
    "Key": Dimension.KEY,
    "Tag": Dimension.TAG,
}
FIGURES = (
    "attempts",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "reasoning_tokens",
    "cost_usd",
    "held_usd",
    "unknown_share",
    "derived_share",
)
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
Where = Mapping[Dimension, str | None]
PLACES = ("external", "self-hosted")
PLACE_COLOURS = ("#C97B00", "#00997A")


def page() -> st.Page:
    """Return the spend page for the menu."""
    return st.Page(show, title="Spend", icon=":material/payments:", url_path="spend", default=True)


def show() -> None:
    """Show the spend page: headlines, cost over time, a table, destinations and tokens."""
    title, picker, save = st.columns([6, 2, 1.3], vertical_alignment="bottom")
    title.title("Spend")
    if answer("months", question(month="all")).complete_until is None:
        empty_states.show_no_data(dataset())
        return
    with picker:
        month = choose_month()
    where = address_filters()
    try:
        question(month=month, where=where)
    except BadUsage as wrong:
        st.error(inert(wrong.message))
        return
    _show_headlines(month, where)
    split = st.segmented_control(
        "Split by", list(SPLITS), default="Team", required=True, key="split"
    )
    by = SPLITS[split]
    report = answer("spend", question(month=month, by=(by,), where=where))
    csv_button(save, report, name=f"spend-{month}-by-{by.value}")
    if not report.rows:
        empty_states.show_nothing_matches(month_name(month), is_filtered=any(where.values()))
        return
    _show_over_time(report, by, split, month=month, where=where)
    _show_table(report, by, month, where)
    left, right = st.columns([6, 5], gap="medium")  # the left table has five columns
    with left:
        _show_destinations(month, where)
    with right:
        _show_tokens(month, where)
    _show_savings(by, split, month, where)
    show_notes(report)


def _show_headlines(month: str, where: Where) -> None:
    """Show a month's cost, its self-hosted part, its tokens, and the upper bound of unknown
    costs.
    """
    total = answer("overview", question(month=month, where=where)).total
    cost, own = total["cost_usd"], total["self_hosted_cost_usd"]
    cards = st.columns(4)
    cards[0].metric(
        "Spend, USD",
        _amount(cost),
        border=True,
        delta=f"{_amount(total['external_cost_usd'])} external",
        delta_color="off",
        delta_arrow="off",
        help="Known cost of all attempts, retries included.",
    )
    cards[1].metric(
        "Self-hosted, USD",
        _amount(own),
        border=True,
        delta=f"{_share_text(own, cost)} of spend",
        delta_color="off",
        delta_arrow="off",
        help="Standard cost of tokens on your own GPUs. Idle GPU time is not in it.",
    )
    tokens = _known_sum(total["input_tokens"], total["output_tokens"])
    cards[2].metric(
        "Tokens",
        compact(tokens),
        border=True,
        delta=counted(total["requests"], "request"),
        delta_color="off",
        delta_arrow="off",
        help="Input and output, cached and reasoning tokens included.",
    )
    unknown, attempts = total["unknown_attempts"], total["attempts"]
    cards[3].metric(
        "Not yet known, at most",
        _amount(total["held_usd"]),
        border=True,
        delta_color="off",
        delta_arrow="off",
        delta=f"{count(unknown)} of {counted(attempts, 'attempt')}",
        help="Attempts without reported usage. Their cost is not in the spend; this is its "
        "upper bound.",
    )


def _show_over_time(report: Report, by: Dimension, split: str, *, month: str, where: Where) -> None:
    """Show the cost of each day by a dimension, or of each tag in the whole month."""
    if (
        by is Dimension.TAG
    ):  # an event with two tags is in two groups: stacking would count it twice
        tagged = [row for row in report.records() if row["tag"] != UNALLOCATED]
        points = [{"group": row["tag"], "cost_usd": row["cost_usd"]} for row in tagged[:20]]
        charts.bars(
            points,
            group="group",
            size="cost_usd",
            size_title="Cost, USD",
            read=money,
            size_format=charts.MONEY_AXIS,
            alt_text="Cost in USD by tag",
        )
        return
    daily = answer("spend", question(month=month, by=(Dimension.DAY, by), where=where))
    points = [{**row, by.value: as_option(row[by.value])} for row in daily.records()]
    charts.stacked_days(
        charts.keep_largest(points, group=by.value, size="cost_usd"),
        group=by.value,
        size="cost_usd",
        size_title="Cost per day, USD",
        read=money,
        size_format=charts.MONEY_AXIS,
        alt_text=f"Cost per day in USD by {split.lower()}",
    )


def _show_table(report: Report, by: Dimension, month: str, where: Where) -> None:
    """Show the cost by a dimension as a table; a picked row opens the events behind it."""
    others = {name: value for name, value in where.items() if value}
    total = report.total
    st.caption("Pick a row to open the events behind it.")
    picked = show_report(report, (by.value, *FIGURES), key=f"spend_{month}_{by.value}_{dataset()}")
    if picked is not None:
        events.open_events(month=month, where=others | {by: as_option(report.rows[picked][0])})
    line, opener = st.columns([5, 1.4], vertical_alignment="center")
    held = f", up to {money(total['held_usd'])} not yet known" if total["unknown_attempts"] else ""
    text = f"Total {money(total['cost_usd'])}{held} · {counted(total['attempts'], 'attempt')}"
    line.markdown(f"**{text.replace('$', chr(92) + '$')}**")
    if opener.button("Open all events", icon=":material/list_alt:", width="stretch"):
        events.open_events(month=month, where=others)


def _show_destinations(month: str, where: Where) -> None:
    """Show the cost at self-hosted and external deployments, by day and as a table."""
    st.subheader("Self-hosted and external")
    daily = answer(
        "destinations",
        question(month=month, by=(Dimension.DAY, Dimension.DESTINATION), where=where),
    )
    charts.stacked_days(
        daily.records(),
        group="destination",
        size="cost_usd",
        size_title="Cost per day, USD",
        read=money,
        size_format=charts.MONEY_AXIS,
        names=PLACES,
        colours=PLACE_COLOURS,
        is_half_width=True,
        alt_text="Cost per day in USD, self-hosted and external",
    )
    report = answer("destinations", question(month=month, where=where))
    show_report(report, ("destination", "deployment", "region", "cost_usd", "cost_per_mtok_usd"))


def _show_tokens(month: str, where: Where) -> None:
    """Show the tokens of each kind, by day and as a table with shares."""
    st.subheader("Tokens by kind")
    report = answer("tokens", question(month=month, where=where))
    points = [
        {"day": row["day"], "kind": label, "tokens": row[name]}
        for row in report.records()
        for name, label in TOKEN_KINDS.items()
        if row[name]
    ]
    kinds = [label for name, label in TOKEN_KINDS.items() if report.total[name]]
    if not points:
        st.caption("No tokens were reported for these attempts.")
        return
    charts.stacked_days(
        points,
        group="kind",
        size="tokens",
        size_title="Tokens per day",
        read=count,
        size_format="~s",
        names=kinds,
        is_half_width=True,
        alt_text="Tokens per day by kind",
    )
    counts = [report.total[name] for name, label in TOKEN_KINDS.items() if label in kinds]
    whole = _known_sum(*counts)
    show_cells(
        {
            "Kind": kinds,
            "Tokens": counts,
            "Share": [Decimal(str(part)) / Decimal(str(whole)) for part in counts],
        },
        {"Tokens": count, "Share": share},
        numbers=("Tokens", "Share"),
    )


def _show_savings(by: Dimension, split: str, month: str, where: Where) -> None:
    """Show the savings by the providers' prompt caches, split by a dimension; nothing if nothing
    was cached.
    """
    report = answer("savings", question(month=month, by=(by,), where=where))
    total = report.total
    if not (total["cached_input_tokens"] or total["cache_write_tokens"]):
        return
    st.subheader("Prompt caches")
    unknown = total["unknown_saving_attempts"]
    rest = f" · unknown for {counted(unknown, 'attempt')}" if unknown else ""
    st.markdown(
        f"**Saved {_amount(total['cache_saving_usd'])} · {share(total['cached_share'])} of the "
        f"input was cached{rest}**"
    )
    st.caption(
        f"Cached tokens at the rate of plain input, minus their cost, by {split.lower()}. Cache "
        "writes that cost more than plain input count against the saving."
    )
    show_report(report, (by.value, *SAVINGS))


def _amount(amount: object) -> str:
    """Return an amount for a metric, with its dollar sign escaped for Markdown."""
    # A metric reads Markdown: two amounts in one text would be typeset as a formula.
    return money(amount).replace("$", "\\$")  # type: ignore[arg-type]  # a cell of a money column


def _share_text(part: object, whole: object) -> str:
    """Return a part as a percentage of a whole; a dash if the part is unknown or the whole is 0."""
    if part is None or not whole:
        return share(None)
    return share(Decimal(str(part)) / Decimal(str(whole)))


def _known_sum(*counts: object) -> int | None:
    """Return the sum of the known counts, None if all are unknown."""
    known = [int(str(number)) for number in counts if number is not None]
    return sum(known) if known else None
