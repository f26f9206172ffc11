"""Draws the one bar above every page: time, comparison, currency, split and filters, each bound to
the page's address, and names the choices that a page cannot apply.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import streamlit as st

from dashboard.display import inert
from dashboard.filters import as_option, dataset
from dashboard.shell import period
from dashboard.shell.choices import (
    COMPARE,
    COMPARISONS,
    CURRENCY,
    FILTERS,
    SPLIT,
    USD,
    Choices,
    choose,
    read_choices,
)
from dashboard.shell.period import Period, key_of, period_of_key
from dashboard.source import answer, newest_event, rated_currencies
from gateway.domain.reports.comparison import Compared
from gateway.reports.dimensions import Dimension

LABELS: Mapping[str, str] = {
    Dimension.KEY.value: "API key",
    Dimension.USAGE_SOURCE.value: "Usage from",
    Dimension.DAY.value: "Day (UTC)",
    Dimension.HOUR.value: "Hour (UTC)",
}
MOST_OPTIONS = 1_000
MOST_FILTERS = 6  # at first: each asks for its values
OTHER_DAYS = "other"
_PERIOD, _COMPARE, _CURRENCY, _SPLIT, _DAYS = (
    f"bar_{name}" for name in ("period", "compare", "currency", "split", "days")
)
_WANTS_DAYS = "bar_wants_days"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applies:
    """The choices that a page applies. `splits` are those that it offers."""

    filters: Collection[Dimension] = FILTERS
    days: bool = True
    month: bool = True
    compare: bool = False
    currency: bool = False
    splits: Sequence[Dimension] = ()


EVERYTHING = Applies(compare=True, currency=True)


def spent_values(chosen: Choices, one: Dimension) -> list[str]:
    """Return the values of a dimension with spending in the shown time, the dearest first."""
    asked = chosen.unfiltered.question(by=(one.value,), has_currency=False)
    return [as_option(row[0]) for row in answer("spend", asked).rows]


def show_bar(
    applies: Applies,
    *,
    crumbs: Collection[Dimension] = (),
    values: Callable[[Choices, Dimension], Sequence[str]] = spent_values,
) -> Choices:
    """Show the bar of a page and return the choices that the page applies.

    The others stay in the address and are named as not applied. `crumbs` are filters that the page
    shows itself; `values` returns those that a filter offers.
    """
    chosen = read_choices()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="bar"):
        if applies.month or applies.days:
            _show_period(chosen)
        if applies.compare:
            _show_comparison(chosen)
        if applies.currency:
            _show_currency(chosen)
        if applies.splits:
            _show_split(chosen, applies.splits)
        if applies.filters:
            _show_filters(chosen, applies.filters, values)
    applied = _applied(chosen, applies)
    _show_chips(chosen, {one.value for one in crumbs})
    _show_not_applied(chosen, applied, applies)
    return applied


def label_of(name: str) -> str:
    """Return a dimension for people: `cost_centre` is `Cost centre`."""
    words = name.replace("_", " ")
    return LABELS.get(name, f"{words[:1].upper()}{words[1:]}")


def _show_period(chosen: Choices) -> None:
    """Show the picker of the time, and of two days if the reader wants others."""
    newest = newest_event(dataset())
    options = period.offered(newest.date() if newest else period.today())
    shown = key_of(chosen.period)
    options = {**({} if shown in options else {shown: chosen.period.label}), **options}
    options[OTHER_DAYS] = "Other days …"
    wants_days = st.session_state.get(_WANTS_DAYS, False)
    st.session_state[_PERIOD] = OTHER_DAYS if wants_days else shown
    st.selectbox(
        "Time (UTC)",
        list(options),
        format_func=lambda key: options.get(key, key),
        key=_PERIOD,
        on_change=_period_picked,
        width=190,
    )
    if wants_days:
        span = chosen.period.span or (period.today(), period.today())
        st.date_input(
            "First and last day (UTC)", span, key=_DAYS, on_change=_days_picked, width=230
        )


def _period_picked() -> None:
    """Put the picked time into the address, or show the days to pick."""
    picked = st.session_state[_PERIOD]
    st.session_state[_WANTS_DAYS] = picked == OTHER_DAYS
    if picked != OTHER_DAYS:
        choose(**period_of_key(picked).address)


def _days_picked() -> None:
    """Put the picked days into the address, as soon as there are two."""
    days = st.session_state[_DAYS]
    if len(days) == 2:
        st.session_state[_WANTS_DAYS] = False
        choose(**Period(days=(days[0], days[1])).address)


def _show_comparison(chosen: Choices) -> None:
    """Show the picker of the earlier time."""
    st.session_state[_COMPARE] = chosen.compare
    st.selectbox(
        "Compare with",
        list(COMPARISONS),
        format_func=COMPARISONS.__getitem__,
        key=_COMPARE,
        on_change=partial(_picked, _COMPARE, COMPARE, Compared.PREVIOUS.value),
        width=165,
    )


def _show_currency(chosen: Choices) -> None:
    """Show the picker of the currency, if any has a rate."""
    options = list(dict.fromkeys([USD, *rated_currencies(), chosen.currency]))
    if len(options) == 1:
        return
    st.session_state[_CURRENCY] = chosen.currency
    st.selectbox(
        "Currency",
        options,
        key=_CURRENCY,
        on_change=partial(_picked, _CURRENCY, CURRENCY, USD),
        width=105,
        help="By the rate of each day. tollgate currency list shows the rates and their sources.",
    )


def _show_split(chosen: Choices, splits: Sequence[Dimension]) -> None:
    """Show the picker of the split: the first one stands for none in the address."""
    options = [one.value for one in splits]
    st.session_state[_SPLIT] = chosen.by if chosen.by in options else options[0]
    st.selectbox(
        "Split by",
        options,
        format_func=label_of,
        key=_SPLIT,
        on_change=partial(_picked, _SPLIT, SPLIT, options[0]),
        width=150,
    )


def _picked(key: str, name: str, default: str) -> None:
    """Put the choice of a picker into the address; the default is not written."""
    picked = st.session_state[key]
    choose(**{name: None if picked == default else picked})


def _show_filters(
    chosen: Choices,
    filters: Collection[Dimension],
    values: Callable[[Choices, Dimension], Sequence[str]],
) -> None:
    """Show the pickers of the filters; their options are only asked for while they are open."""
    box = st.popover("Filters", icon=":material/filter_alt:", on_change="rerun", key="bar_filters")
    if not box.open:
        return
    with box:
        st.caption("Type to search. A value that is not listed can be typed too.")
        offered = [one for one in filters if one is not Dimension.DAY]
        if len(offered) > MOST_FILTERS and not st.toggle("More filters", key="bar_more"):
            offered = [
                one
                for place, one in enumerate(offered)
                if place < MOST_FILTERS or one.value in chosen.where
            ]
        for one in offered:
            name, key = one.value, f"bar_{one.value}"
            value = chosen.where.get(name)
            # End users are not listed: there may be as many as requests.
            found = [] if one is Dimension.END_USER else values(chosen, one)[:MOST_OPTIONS]
            options = list(dict.fromkeys([*([value] if value else []), *found]))
            st.session_state[key] = value
            st.selectbox(
                label_of(name),
                options,
                index=None,
                key=key,
                on_change=partial(_filter_picked, key, name),
                placeholder="All",
                accept_new_options=True,
            )


def _filter_picked(key: str, name: str) -> None:
    """Put the value of a filter into the address, or take it out."""
    choose(**{name: st.session_state[key] or None})


def _show_chips(chosen: Choices, crumbs: Collection[str]) -> None:
    """Show each filter as a button that takes it away."""
    shown = {name: value for name, value in chosen.where.items() if name not in crumbs}
    if not shown:
        return
    with st.container(horizontal=True, gap="small", key="chips"):
        for name, value in shown.items():
            st.button(
                f"{label_of(name)}: {inert(value)}",
                icon=":material/close:",
                key=f"without_{name}",
                help="Take this filter away",
                on_click=partial(choose, **{name: None}),
            )


def _applied(chosen: Choices, applies: Applies) -> Choices:
    """Return the choices with all that the page cannot apply taken out."""
    names = {one.value for one in applies.filters}
    wanted = {name: value for name, value in chosen.where.items() if name in names}
    shown = chosen.period
    if not (applies.days if shown.days is not None else applies.month):
        shown = Period(month=period.ALL)
    return Choices(
        dataset=chosen.dataset,
        period=shown,
        compare=chosen.compare if applies.compare else "none",
        currency=chosen.currency if applies.currency else USD,
        by=chosen.by if chosen.by in {one.value for one in applies.splits} else None,
        where=wanted,
    )


def _show_not_applied(chosen: Choices, applied: Choices, applies: Applies) -> None:
    """Name the choices of the address that this page does not apply: none is silently ignored."""
    left_out = [
        f"{label_of(name)} {inert(value)}"
        for name, value in chosen.where.items()
        if name not in applied.where
    ]
    if applied.period != chosen.period and (applies.month or applies.days):
        left_out.append(inert(chosen.period.label))
    if applied.currency != chosen.currency:
        left_out.append(f"{chosen.currency} (shown in USD)")
    if chosen.by is not None and applied.by is None and applies.splits:
        left_out.append(f"split by {inert(label_of(chosen.by).lower())}")
    if left_out:
        text = f"**Not applied on this page:** {' · '.join(left_out)}."
        st.warning(text, icon=":material/filter_alt_off:")
