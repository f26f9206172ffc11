"""Shows the pickers for dataset and month, keeps their choices in the page's address, and builds a
report's question from them.

So a page can be shared, and a total can open its events.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date

import streamlit as st

from dashboard.display import inert
from dashboard.source import answer
from gateway.reports import BadUsage, Dataset, Dimension, Question, ask

ALL_MONTHS = "all"
NONE = "(none)"
DATASET_KEY, MONTH_KEY = "data", "month"


def dataset() -> Dataset:
    """Return the dataset chosen in the sidebar."""
    return Dataset(st.session_state.get(DATASET_KEY, Dataset.REAL.value))


def choose_dataset() -> Dataset:
    """Show the switch between real and demo data and return the choice. It follows `?data=demo`,
    and the address follows it.
    """
    if DATASET_KEY not in st.session_state:
        is_demo = st.query_params.get(DATASET_KEY) == Dataset.DEMO.value
        st.session_state[DATASET_KEY] = (Dataset.DEMO if is_demo else Dataset.REAL).value
    chosen = st.segmented_control(
        "Data",
        [each.value for each in Dataset],
        key=DATASET_KEY,
        required=True,
        format_func=str.capitalize,
        width="stretch",
    )
    if chosen == Dataset.DEMO.value:
        st.query_params[DATASET_KEY] = chosen
    else:
        st.query_params.pop(DATASET_KEY, None)
    return dataset()


def choose_month() -> str:
    """Show the month picker: newest first, then all. Returns `YYYY-MM` or `all`.

    A month in the address stays chosen even without data, so that the page reports that it has
    none.
    """
    months = answer("months", Question(dataset=dataset()))
    options = [*(f"{row['month']:%Y-%m}" for row in months.records()), ALL_MONTHS]
    wanted = st.query_params.get(MONTH_KEY, ALL_MONTHS)
    if wanted not in options:
        try:
            ask(month=wanted)
        except BadUsage as wrong:
            del st.query_params[MONTH_KEY]
            st.warning(inert(wrong.message))
    kept = st.session_state.get(
        MONTH_KEY, options[0]
    )  # the month stays when another page is opened
    st.session_state[MONTH_KEY] = pick_from(
        "Month (UTC)", options, MONTH_KEY, default=kept, read=month_name
    )
    return str(st.session_state[MONTH_KEY])


def question(
    *,
    month: str,
    by: tuple[Dimension, ...] | None = None,
    where: Mapping[Dimension, str | None] | None = None,
    limit: int = 100,
    offset: int = 0,
) -> Question:
    """Return the question for `source.answer` about the dataset in the sidebar; `where` leaves out
    None values and asks `(none)` for missing ones.
    """
    filters = {
        str(name): None if value == NONE else value
        for name, value in (where or {}).items()
        if value
    }
    return ask(
        month=month,
        by=None if by is None else [str(each) for each in by],
        where=filters,
        demo=dataset() is Dataset.DEMO,
        limit=limit,
        offset=offset,
    )


def pick_from(
    label: str, options: Sequence[str], name: str, *, default: str, read: Callable[[str], str] = str
) -> str:
    """Show a picker that follows the page's address, and the address follows it; return the choice.

    A value of the address that is not among the options becomes one more option: it matches
    nothing, and is not ignored. Streamlit's `bind` is not used, because a bound name cannot be set
    when one page opens another.
    """
    wanted = st.query_params.get(name, default)
    if wanted not in options and name in st.query_params:
        options = [*options, wanted]
    picked = st.selectbox(
        label, options, index=options.index(wanted) if wanted in options else 0, format_func=read
    )
    if picked == options[0]:
        st.query_params.pop(name, None)
    else:
        st.query_params[name] = picked
    return picked


def month_name(month: str) -> str:
    """Return a month in its form for people, `November 2026`."""
    return "All months" if month == ALL_MONTHS else f"{date.fromisoformat(month + '-01'):%B %Y}"


def as_option(value: object) -> str:
    """Return a cell's text as a picker and the address have it, `(none)` for an empty cell."""
    return NONE if value is None else str(value)
