"""Draws the first page: the spending and its change, the forecast of the month's end, the
budgets at risk, the teams that moved most and the largest shares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import NOTHING, change, count, inert, metric_money, money, share
from dashboard.downloads import csv_button
from dashboard.filters import as_option, dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import EVERYTHING, show_bar
from dashboard.shell.changes import with_changes
from dashboard.shell.choices import Choices, address_of
from dashboard.shell.leading import (
    BUDGETS,
    MODELS,
    OVERVIEW,
    TEAMS,
    lead_to,
    refusals_shown,
    requests_button,
)
from dashboard.shell.period import Period
from dashboard.shell.ranked import first_of, ranked, rest_of
from dashboard.source import answer, newest_event
from dashboard.tables import show_cells
from dashboard.views.budgets import USED_UP, WITHIN, outlook
from gateway.domain.reports.comparison import ComparedPeriod, Comparison
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Report

MOST_MOVERS, MOST_SHARES, MOST_BUDGETS = 8, 8, 5
LONGEST_CHART_DAYS = 100
# The filters that a budget can have.
OF_BUDGETS = (Dimension.TEAM, Dimension.PROJECT, Dimension.KEY, Dimension.COST_CENTRE)
TEAM, MODEL = Dimension.TEAM.value, Dimension.MODEL.value

Row = Mapping[str, Cell]


def page() -> st.Page:
    """Return the first page for the menu."""
    return st.Page(
        show, title="Overview", icon=":material/space_dashboard:", url_path=OVERVIEW, default=True
    )


def show() -> None:
    """Show the first page: headlines, the spending by day, movers, shares and budgets."""
    st.title("Overview")
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    choices = show_bar(EVERYTHING)
    with refusals_shown(choices):
        _show_figures(choices)


def _show_figures(choices: Choices) -> None:
    """Show all figures, the quick ones first: each part appears when it is answered."""
    cards = st.columns(4)
    places = [card.empty() for card in cards]
    with st.spinner("Reading …", show_time=True):
        found = with_changes("spend", choices, by=(TEAM,))
    teams = found.report
    if not teams.rows:
        empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        return
    _show_spend(places[0], choices, teams, found.against)
    _show_unknown(places[3], choices, teams)
    if found.against:
        st.caption(inert(found.against))
    _show_over_time(choices, teams.comparison)
    left, right = st.columns(2, gap="medium")
    with left:
        if found.against:
            _show_movers(choices, teams)
        else:
            _show_models(choices)
    with right:
        _show_shares(choices, teams)
    budgets = _budgets(choices)
    _show_budgets_card(places[2], budgets)
    with left:
        if found.against:
            _show_models(choices)
    with right:
        _show_budgets(budgets)
    show_notes(teams)
    _show_forecast(places[1], choices)


def _show_spend(place: Any, choices: Choices, teams: Report, against: str | None) -> None:
    """Show the total with its change."""
    total, part = teams.total, teams.total.get("change_share")
    place.metric(
        f"Spend, {choices.currency}",
        metric_money(total[choices.money("total_usd")], choices.currency),
        border=True,
        height="stretch",
        delta=change(part) if against and part is not None else None,
        delta_color="inverse",
        help=f"{choices.label}. Known cost of all attempts, and adjustments.",
    )


def _show_unknown(place: Any, choices: Choices, teams: Report) -> None:
    """Show the amount that is not known yet, as an upper bound."""
    total = teams.total
    place.metric(
        "Not yet known, at most",
        metric_money(total[choices.money("held_usd")], choices.currency),
        border=True,
        height="stretch",
        delta=f"{count(total['unknown_attempts'])} of {count(total['attempts'])} attempts",
        delta_color="off",
        delta_arrow="off",
        help="Attempts without reported usage. Their cost is not in the spend; this is its upper "
        "bound.",
    )


def _show_over_time(choices: Choices, compared: Comparison | None) -> None:
    """Show the spending of each day, with the same day of the earlier time."""
    st.subheader("Spend per day")
    report = answer("spend", choices.question(by=(Dimension.DAY.value,)))
    if not report.rows:  # all of it was in the compared time
        st.caption(charts.NOTHING_TO_DRAW)
        return
    figure, currency = choices.money("total_usd"), choices.currency
    earlier, label = ({}, "") if compared is None else _earlier(choices, compared.earlier)
    rows = report.records()[-LONGEST_CHART_DAYS:]
    days = [row["day"] for row in rows if isinstance(row["day"], date)]
    first = choices.time.span[0] if choices.time.span else min(days)
    amounts = {row["day"]: row[figure] for row in rows}
    span = [first + timedelta(days=n) for n in range((max(days) - first).days + 1)]
    points = [
        {
            "iso": day.isoformat(),
            "place": f"{day.day} {day:%b}",
            figure: amounts.get(day, Decimal(0)),
            "earlier": earlier.get((day - first).days),
        }
        for day in span[-LONGEST_CHART_DAYS:]
    ]
    charts.columns(
        points,
        place="place",
        size=figure,
        earlier="earlier" if earlier else None,
        names=(choices.label, label),
        size_title=f"Spend per day, {currency}",
        read=partial(money, currency=currency),
        size_format=charts.MONEY_AXIS,
        alt_text=f"Spend per day in {currency}, {choices.label}",
        currency=currency,
        click=charts.Click(
            key=f"days_{choices.file_label}",
            field="iso",
            on_pick=lambda day: lead_to(TEAMS, address_of(choices, day=day)),
        ),
    )
    with st.container(horizontal=True):
        csv_button(st, report, name=f"spend-{choices.file_label}-by-day")
        requests_button(st, choices)


def _earlier(choices: Choices, earlier: ComparedPeriod) -> tuple[Mapping[int, Cell], str]:
    """Return the amounts of the earlier time by the number of its day, and its name."""
    first, _ = span = earlier.span
    by_day = choices.question(by=(Dimension.DAY.value,), days=span)
    figure = choices.money("total_usd")
    amounts = {
        (row["day"] - first).days: row[figure]
        for row in answer("spend", by_day).records()
        if isinstance(row["day"], date)
    }
    named = Period(month=f"{first:%Y-%m}") if earlier.days is None else Period(days=span)
    return amounts, named.label


def _show_movers(choices: Choices, teams: Report) -> None:
    """Show the teams whose spending changed most, up or down."""
    st.subheader("Top movers")
    moved, currency = choices.money("change_usd"), choices.currency
    rows = sorted(
        (row for row in teams.records() if row[moved]),
        key=lambda row: -abs(Decimal(str(row[moved]))),
    )
    if not rows:
        st.caption("No team's spending changed.")
        return
    top, others = first_of(rows, by=TEAM, most=MOST_MOVERS)
    shown = [*top, *([rest_of(teams, others)] if others else []), teams.total]
    names = [as_option(row[TEAM]) for row in top]
    labels = [*names, *([f"{len(others):,} other teams"] if others else []), "Total"]
    show_cells(
        {
            "Team": labels,
            "Change": [row[moved] for row in shown],
            "Change, %": [_or_dash(row["change_share"]) for row in shown],
            "Spend": [row[choices.money("total_usd")] for row in shown],
        },
        {
            "Change": partial(_signed, currency=currency),
            "Change, %": lambda cell: cell if isinstance(cell, str) else change(cell),
            "Spend": partial(money, currency=currency),
        },
        numbers=("Change", "Change, %", "Spend"),
        key=f"movers_{choices.file_label}_{choices.compare}_{len(rows)}",
        on_pick=lambda place: _open_team(choices, names, place),
        shaded=[len(shown) - 1],
    )


def _or_dash(cell: Cell) -> Cell:
    """Return a cell, a dash for an empty one: the grid would call it unknown."""
    return NOTHING if cell is None else cell


def _signed(amount: Cell, *, currency: str) -> str:
    """Return a change of money with its sign."""
    text = money(amount, currency)
    return f"+{text}" if amount is not None and Decimal(str(amount)) > 0 else text


def _open_team(choices: Choices, names: Sequence[str], place: int) -> None:
    """Lead to the team of a row; the rest and the total lead to all teams."""
    named = {TEAM: names[place]} if place < len(names) else {}
    lead_to(TEAMS, address_of(choices, **named))


def _show_shares(choices: Choices, teams: Report) -> None:
    """Show the largest teams and the rest, with their shares of the total."""
    st.subheader("Share of the total, by team")
    _show_bars(choices, teams, TEAM, TEAMS, "teams")


def _show_models(choices: Choices) -> None:
    """Show the largest models and the rest, with their shares of the total."""
    st.subheader("Share of the total, by model")
    models = answer("spend", choices.question(by=(MODEL,)))
    _show_bars(choices, models, MODEL, MODELS, "models")


def _show_bars(choices: Choices, report: Report, by: str, target: str, words: str) -> None:
    """Show the largest parts and the rest as bars; a click opens the part."""
    figure, currency = choices.money("total_usd"), choices.currency
    found = ranked(report, by=by, most=MOST_SHARES)
    points: list[dict[str, Cell]] = [
        {**row, by: as_option(row[by])} for row in found.rows if row[figure] != 0
    ]
    listed = {str(point[by]) for point in points}
    if found.rest is not None:
        points.append({**found.rest, by: f"{found.hidden:,} other {words}"})
    shares = {str(point[figure]): share(point.get("share")) for point in points}

    def picked(value: str) -> None:
        lead_to(target, address_of(choices, **({by: value} if value in listed else {})))

    charts.bars(
        points,
        group=by,
        size=figure,
        size_title=f"Spend, {currency}",
        read=lambda amount: f"{money(amount, currency)} · {shares.get(str(amount), '–')}",
        size_format=charts.MONEY_AXIS,
        alt_text=f"Spend in {currency} and share of the total, by {by}",
        currency=currency,
        click=charts.Click(key=f"shares_{by}_{choices.file_label}", field="group", on_pick=picked),
    )
    csv_button(st, report, name=f"spend-{choices.file_label}-by-{by}")


def _budgets(choices: Choices) -> Sequence[Row] | None:
    """Return the running budgets that match the filters; None if a budget cannot have one of
    them.
    """
    if {*choices.where} - {*OF_BUDGETS}:
        return None
    asked = choices.question(has_currency=False)
    return answer("budgets", replace(asked, month=None, days=None)).records()


def _at_risk(budgets: Sequence[Row]) -> list[Row]:
    """Return the budgets that are used up, or will be before they reset."""
    return [row for row in budgets if outlook(row) != WITHIN]


def _show_budgets_card(place: Any, budgets: Sequence[Row] | None) -> None:
    """Show how many budgets are at risk."""
    if budgets is not None and not budgets:
        place.metric(
            "Budgets at risk",
            "none declared",
            border=True,
            height="stretch",
            help="The page Budgets and forecast shows how to declare one.",
        )
        return
    if budgets is None:
        place.metric(
            "Budgets at risk",
            "–",
            border=True,
            height="stretch",
            help="A budget belongs to a team, a project, a key or a cost centre: it has no other "
            "filter.",
        )
        return
    used_up = sum(outlook(row) == USED_UP for row in budgets)
    place.metric(
        "Budgets at risk",
        f"{len(_at_risk(budgets))} of {len(budgets)}",
        border=True,
        height="stretch",
        delta=f"{used_up} used up" if used_up else None,
        delta_color="off",
        delta_arrow="off",
        help="Used up, or at the present rate before the period ends.",
    )


def _show_budgets(budgets: Sequence[Row] | None) -> None:
    """Show the first budgets at risk, and the way to all."""
    if not budgets:
        return
    st.subheader("Budgets at risk")
    rows = _at_risk(budgets)
    if not rows:
        st.caption(f"None of {len(budgets)}: at the present rate all last to their end.")
    else:
        show_cells(
            {
                "Budget": [row["budget"] for row in rows[:MOST_BUDGETS]],
                "Used": [_or_dash(row["used_share"]) for row in rows[:MOST_BUDGETS]],
                "Outlook": [outlook(row) for row in rows[:MOST_BUDGETS]],
                "Spent, USD": [row["spent_usd"] for row in rows[:MOST_BUDGETS]],
            },
            {
                "Used": lambda cell: cell if isinstance(cell, str) else share(cell),
                "Spent, USD": money,
            },
            numbers=("Used", "Spent, USD"),
        )
    st.button("All budgets", key="all_budgets", on_click=partial(lead_to, BUDGETS, {}))


def _show_forecast(place: Any, choices: Choices) -> None:
    """Show the forecast of the running month's end; a dash for another time."""
    if not choices.time.is_running:
        place.metric(
            "At the month's end",
            "–",
            border=True,
            height="stretch",
            help="A forecast is made for the running month.",
        )
        return
    with place, st.spinner("Forecasting …", show_time=True):
        total = answer("forecast", choices.question(by=(TEAM,), has_currency=False)).total
    low, high = total["low_usd"], total["high_usd"]
    between = None if low is None else f"{metric_money(low)} to {metric_money(high)}"
    place.metric(
        "At the month's end, USD",
        metric_money(total["forecast_usd"]),
        border=True,
        height="stretch",
        delta=between,
        delta_color="off",
        delta_arrow="off",
        help="The spending of full days and the expected days; the range held four of five "
        "earlier forecasts. The page Budgets and forecast has it by team.",
    )
