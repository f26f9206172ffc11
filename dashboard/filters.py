"""Filters that live in the address: a page can be shared, and a total can open its events."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from dashboard.source import answer
from gateway.reports import Dataset, Dimension, Question, ask

ALL_MONTHS = "all"
NONE = "(none)"
DATASET_KEY = "data"


def dataset() -> Dataset:
    """The dataset chosen in the sidebar."""
    return Dataset(st.session_state.get(DATASET_KEY, Dataset.REAL.value))


def choose_dataset() -> Dataset:
    """Show the switch. It follows `?data=demo`, and the address follows it."""
    if DATASET_KEY not in st.session_state:
        is_demo = st.query_params.get(DATASET_KEY) == Dataset.DEMO.value
        st.session_state[DATASET_KEY] = (Dataset.DEMO if is_demo else Dataset.REAL).value
    chosen = st.segmented_control(
        "Data", [each.value for each in Dataset], key=DATASET_KEY, required=True, format_func=str.capitalize,
        width="stretch",
    )  # fmt: skip
    if chosen == Dataset.DEMO.value:
        st.query_params[DATASET_KEY] = chosen
    else:
        st.query_params.pop(DATASET_KEY, None)
    return Dataset(chosen)


def choose_month() -> str:
    """Show the month picker: newest first, then all. Returns `YYYY-MM` or `all`."""
    months = answer("months", Question(dataset=dataset()))
    options = [*(f"{row['month']:%Y-%m}" for row in months.records()), ALL_MONTHS]
    return st.selectbox("Month (UTC)", options, key="month", bind="query-params")


def choose(dimension: Dimension, *, month: str) -> str | None:
    """Show a picker for one dimension; return what was picked, None for all."""
    report = answer("spend", question(month=month, by=(dimension,)))
    everything = f"All {_PLURALS[dimension]}"
    names = sorted(as_option(row[0]) for row in report.rows)
    picked = st.selectbox(
        dimension.value.replace("_", " ").capitalize(), [everything, *names], key=dimension.value, bind="query-params"
    )
    return None if picked == everything else picked


def question(
    *, month: str, by: tuple[Dimension, ...] | None = None, where: Mapping[Dimension, str | None] | None = None,
    limit: int = 100, offset: int = 0,
) -> Question:  # fmt: skip
    """Return a question about the chosen dataset. `where` leaves out what is None and asks `(none)` for missing."""
    filters = {str(name): None if value == NONE else value for name, value in (where or {}).items() if value}
    return ask(
        month=month, by=None if by is None else [str(each) for each in by], where=filters,
        demo=dataset() is Dataset.DEMO, limit=limit, offset=offset,
    )  # fmt: skip


def as_option(value: object) -> str:
    """What stands for a cell in an address and in a picker."""
    return NONE if value is None else str(value)


_PLURALS = {
    Dimension.TEAM: "teams",
    Dimension.MODEL: "models",
    Dimension.ROUTE: "routes",
    Dimension.DEPLOYMENT: "deployments",
    Dimension.OUTCOME: "outcomes",
    Dimension.USAGE_SOURCE: "sources",
}
