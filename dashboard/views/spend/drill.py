"""Draws the body that the pages *Teams* and *Models and providers* share: a breadcrumb, headlines,
a chart over time and a table, whose parts lead one level down.

The level is the first dimension of the page's chain that the address does not name, so that every
level has an address of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import (
    change,
    count,
    counted,
    inert,
    metric_money,
    money,
    share,
)
from dashboard.downloads import csv_button
from dashboard.filters import as_option, dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, label_of, show_bar
from dashboard.shell.changes import with_changes
from dashboard.shell.choices import FILTERS, SPLIT, Choices, address_of, choose, is_time
from dashboard.shell.leading import REQUESTS, lead_to, refusals_shown, requests_button
from dashboard.shell.look import choose_look
from dashboard.shell.ranked import MOST_ROWS, show_ranked
from dashboard.source import answer, newest_event
from dashboard.tables import MOST_LISTED
from gateway.reports.dimensions import UNALLOCATED, Dimension
from gateway.reports.report import Cell, Report

LONG_DAYS = 100  # a longer time is drawn by month
MOST_POINTS = 20_000  # of a chart over time: more groups are drawn as bars
ALL_ROWS = "all_rows"
OVER_TIME = "Over time"
PLURALS: Mapping[str, str] = {
    Dimension.TEAM: "teams",
    Dimension.MODEL: "models",
    Dimension.PROJECT: "projects",
    Dimension.KEY: "keys",
    Dimension.COST_CENTRE: "cost centres",
    Dimension.PROVIDER: "providers",
    Dimension.DEPLOYMENT: "deployments",
    Dimension.ROUTE: "routes",
    Dimension.REGION: "regions",
    Dimension.TAG: "tags",
    Dimension.END_USER: "end users",
    Dimension.OUTCOME: "outcomes",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A page that leads down: its name, its address, the levels of its chain, the other splits that
    it offers, its report and the columns of its table after the money. A panel returns the report
    that it shows.
    """

    title: str
    root: str
    url_path: str
    chain: Sequence[Dimension]
    others: Sequence[Dimension]
    report: str
    columns: Sequence[str]
    panels: Mapping[str, Callable[[Choices], Report | None]]


def show_drill(page: Drill) -> None:
    """Show a page that leads down."""
    st.title(page.title)
    if newest_event(dataset()) is None:
        empty_states.show_no_data(dataset())
        return
    named = {*st.query_params}
    level = next_level(page.chain, named)
    splits = [level, *(one for one in (*page.chain, *page.others) if one != level)]
    splits = [one for one in splits if one.value not in named]
    choices = show_bar(
        Applies(filters=FILTERS, compare=True, currency=True, splits=splits), crumbs=page.chain
    )
    by = choices.by or splits[0].value
    _show_crumbs(page, choices)
    with refusals_shown(choices):
        _show_figures(page, choices, by)


def next_level(chain: Sequence[Dimension], named: set[str]) -> Dimension:
    """Return the first dimension of a chain that is not named yet; the hour at its end."""
    return next((one for one in chain if one.value not in named), Dimension.HOUR)


def _show_crumbs(page: Drill, choices: Choices) -> None:
    """Show the way down to this level; each part leads back to its own level."""
    path = [one for one in page.chain if one.value in choices.where]
    if not path:
        return
    with st.container(horizontal=True, gap="xsmall", vertical_alignment="center", key="crumbs"):
        st.button(page.root, type="tertiary", key="crumb_all", on_click=_go_up, args=(path, -1))
        for place, one in enumerate(path):
            st.markdown(":gray[›]", width="content")
            st.button(
                inert(choices.where[one.value]),
                type="tertiary",
                key=f"crumb_{one.value}",
                help=label_of(one.value),
                on_click=_go_up,
                args=(path, place),
                disabled=place == len(path) - 1,
            )


def _go_up(path: Sequence[Dimension], place: int) -> None:
    """Take the filters below a place of the path out of the address."""
    choose(**{SPLIT: None, **{one.value: None for one in path[place + 1 :]}})


def _show_figures(page: Drill, choices: Choices, by: str) -> None:
    """Show the headlines, the chosen panel, the table and the notes."""
    with st.spinner("Reading …", show_time=True):
        found = with_changes(page.report, choices, by=(by,))
    report = found.report
    if not report.rows:
        empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        return
    _show_headlines(choices, report, found.against)
    go_down = partial(_go_down, choices, by)
    panel = choose_look([OVER_TIME, *page.panels])
    of_panel = None
    if panel == OVER_TIME:
        _show_over_time(page, choices, by, report=report, go_down=go_down)
    else:
        of_panel = page.panels[panel](choices)
    _show_table(page, choices, by, report=report, go_down=go_down)
    show_notes(*([] if of_panel is None else [of_panel]), report)


def _go_down(choices: Choices, by: str, value: str) -> None:
    """Lead one level down: into a part of the split, or to the requests of an hour's day."""
    if by == Dimension.HOUR:
        lead_to(REQUESTS, address_of(choices, **{Dimension.DAY.value: value[:10]}))
    elif by in (Dimension.WEEK, Dimension.MONTH, Dimension.QUARTER) or value == charts.OTHER:
        return
    else:
        choose(**{SPLIT: None, by: value})


def _show_headlines(choices: Choices, report: Report, against: str | None) -> None:
    """Show the spending with its change, its share of all, and the amount not known yet."""
    total, currency = report.total, choices.currency
    figure = choices.money
    cards = st.columns(3)
    part = total.get("change_share") if against else None
    cards[0].metric(
        f"Spend, {currency}",
        metric_money(total[figure("total_usd")], currency),
        border=True,
        height="stretch",
        delta=None if part is None else change(part),
        delta_color="inverse",
        help="Known cost of all attempts, and adjustments.",
    )
    attempts = total["attempts"]
    if {*choices.where} - {Dimension.DAY}:
        all_of_it = answer("spend", choices.unfiltered.question(by=()))
        whole = all_of_it.total[figure("total_usd")]
        cards[1].metric(
            "Share of all spending",
            share(_ratio(total[figure("total_usd")], whole)),
            border=True,
            height="stretch",
            delta=f"of {metric_money(whole, currency)}",
            delta_color="off",
            delta_arrow="off",
        )
    else:
        cards[1].metric(
            "Attempts",
            count(attempts),
            border=True,
            height="stretch",
            help="Every call to a deployment, retries included.",
        )
    unknown = total.get("unknown_attempts")
    cards[2].metric(
        "Not yet known, at most",
        metric_money(total[figure("held_usd")], currency),
        border=True,
        height="stretch",
        delta=None if unknown is None else f"{counted(unknown, 'attempt')}",
        delta_color="off",
        delta_arrow="off",
        help="Attempts without reported usage. Their cost is not in the spend; this is its upper "
        "bound.",
    )
    if against:
        st.caption(inert(against))


def _ratio(part: Cell, whole: Cell) -> float | None:
    """Return a part of a whole for people; None if one is unknown or the whole is 0."""
    return None if part is None or not whole else float(str(part)) / float(str(whole))


def _show_over_time(
    page: Drill,
    choices: Choices,
    by: str,
    *,
    report: Report,
    go_down: Callable[[str], None],
) -> None:
    """Show the cost of each day by the split, or of each part if parts overlap or are too many."""
    figure, currency = choices.money("total_usd"), choices.currency
    read = partial(money, currency=currency)
    key = f"chart_{page.url_path}_{_signature(choices, by)}"
    title = f"Spend, {currency}"
    if by in (Dimension.DAY, Dimension.HOUR):
        points = [{**row, "iso": row[by], "place": _place(row[by])} for row in report.records()]
        charts.columns(
            points,
            place="place",
            size=figure,
            size_title=title,
            read=read,
            size_format=charts.MONEY_AXIS,
            alt_text=f"Spend in {currency} by {by}",
            currency=currency,
            click=charts.Click(key=key, field="iso", on_pick=go_down),
        )
        return
    span = choices.time.span
    is_long = span is None or (span[1] - span[0]).days > LONG_DAYS
    step = Dimension.MONTH if is_long else Dimension.DAY
    days = 60 if span is None or is_long else (span[1] - span[0]).days + 1
    if by == Dimension.TAG or is_time(by) or len(report.rows) * days > MOST_POINTS:
        parts = [row for row in report.records() if row[by] != UNALLOCATED][:MOST_ROWS]
        charts.bars(
            [{**row, by: as_option(row[by])} for row in parts],
            group=by,
            size=figure,
            size_title=title,
            read=read,
            size_format=charts.MONEY_AXIS,
            alt_text=f"Spend in {currency} by {label_of(by)}",
            currency=currency,
            click=charts.Click(key=key, field="group", on_pick=go_down),
        )
        return
    over_time = answer(page.report, choices.question(by=(step.value, by)))
    points = [
        {**row, "day": _first_day(row[step.value]), by: as_option(row[by])}
        for row in over_time.records()
    ]
    charts.stacked_days(
        charts.keep_largest(points, group=by, size=figure),
        group=by,
        size=figure,
        size_title=f"Spend per {step.value}, {currency}",
        read=read,
        size_format=charts.MONEY_AXIS,
        alt_text=f"Spend per {step.value} in {currency} by {label_of(by)}",
        is_by_month=is_long,
        currency=currency,
        click=charts.Click(key=key, field="group", on_pick=go_down),
    )


def _first_day(cell: Cell) -> date:
    """Return the day of a cell of days, or the first day of a month `2026-11`."""
    return cell if isinstance(cell, date) else date.fromisoformat(f"{cell}-01")


def _place(cell: Cell) -> str:
    """Return a day or an hour for the axis: `14 Nov`, `10:00`."""
    return f"{cell.day} {cell:%b}" if isinstance(cell, date) else str(cell)[11:16]


def _show_table(
    page: Drill,
    choices: Choices,
    by: str,
    *,
    report: Report,
    go_down: Callable[[str], None],
) -> None:
    """Show the parts as a table with the rest and the total, and its downloads."""
    names = [choices.money("total_usd"), "share"]
    if any(one.name == "change_share" for one in report.columns):
        names += ["change_share", choices.money("change_usd"), choices.money("previous_usd")]
    names += [name for name in map(choices.money, page.columns) if _has_figures(report, name)]
    signature = _signature(choices, by)
    shows_all = st.session_state.get(ALL_ROWS) == signature
    st.subheader(f"By {label_of(by)[:1].lower()}{label_of(by)[1:]}")
    show_ranked(
        report,
        by=by,
        names=[name for name in names if name in {one.name for one in report.columns}],
        key=f"table_{page.url_path}_{signature}_{shows_all}",
        on_pick=go_down,
        most=MOST_LISTED if shows_all else MOST_ROWS,
        on_rest=partial(_show_all, signature),
        words=f"other {PLURALS.get(by, 'rows')}",
    )
    hint = "Requests" if by == Dimension.HOUR else "one level down"
    st.caption(f"Pick a row, or click the chart, to go to {hint}.")
    # Below the table: its toolbar, which appears above its right end, would cover them there.
    with st.container(horizontal=True):
        csv_button(st, report, name=_file(page, choices, by))
        requests_button(st, choices)
        if len(report.rows) > MOST_ROWS + 1 and not is_time(by):
            listed = f"{MOST_LISTED:,} of" if len(report.rows) > MOST_LISTED + 1 else "all"
            label = "Show fewer" if shows_all else f"Show {listed} {len(report.rows):,}"
            wanted = None if shows_all else signature
            st.button(label, key="all", on_click=_show_all, args=(wanted,))


def _has_figures(report: Report, name: str) -> bool:
    """Return False for a column of nothing but zeros, which would push others out of sight."""
    place = next((n for n, one in enumerate(report.columns) if one.name == name), None)
    return place is None or any(row[place] for row in report.rows)


def _show_all(signature: str | None) -> None:
    """Let the table of one view have all its rows, or as many as fit; None: the largest alone."""
    st.session_state[ALL_ROWS] = signature


def _signature(choices: Choices, by: str) -> str:
    """Return a name of this view, so that no selection of another one is taken for its own."""
    parts = {**address_of(choices), SPLIT: by}
    return "&".join(f"{name}={parts[name]}" for name in sorted(parts))


def _file(page: Drill, choices: Choices, by: str) -> str:
    """Return the name of a download."""
    return f"{page.url_path}-{choices.file_label}-by-{by}"
