"""Filters that live in the address: a page can be shared, and a total can open its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date

import streamlit as st

from dashboard.source import answer
from gateway.reports import Dataset, Dimension, Question, ask

ALL_MONTHS = "all"
NONE = "(none)"
DATASET_KEY, MONTH_KEY = "data", "month"


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
    return dataset()


def choose_month() -> str:
    """Show the month picker: newest first, then all. Returns `YYYY-MM` or `all`."""
    months = answer("months", Question(dataset=dataset()))
    options = [*(f"{row['month']:%Y-%m}" for row in months.records()), ALL_MONTHS]
    kept = st.session_state.get(MONTH_KEY, options[0])  # the month stays when another page is opened
    st.session_state[MONTH_KEY] = _pick("Month (UTC)", options, MONTH_KEY, default=kept, read=_month_name)
    return str(st.session_state[MONTH_KEY])


def choose(dimension: Dimension, *, month: str) -> str | None:
    """Show a picker for one dimension; return what was picked, None for all."""
    report = answer("spend", question(month=month, by=(dimension,)))
    everything = f"All {_PLURALS[dimension]}"
    names = sorted(as_option(row[0]) for row in report.rows)
    label = dimension.value.replace("_", " ").capitalize()
    picked = _pick(label, [everything, *names], dimension.value, default=everything)
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


def _pick(label: str, options: Sequence[str], name: str, *, default: str, read: Callable[[str], str] = str) -> str:
    """Show a picker that follows the address, and let the address follow it.

    Not Streamlit's `bind`: a bound name cannot be set when one page opens another.
    """
    wanted = st.query_params.get(name, default)
    picked = st.selectbox(label, options, index=options.index(wanted) if wanted in options else 0, format_func=read)
    if picked == options[0]:
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = picked
    return picked


def _month_name(month: str) -> str:
    return "All months" if month == ALL_MONTHS else f"{date.fromisoformat(month + '-01'):%B %Y}"


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
