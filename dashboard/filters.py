"""Shows the switch between real and demo data, and keeps its choice in the page's address."""

from __future__ import annotations

import streamlit as st

from gateway.reports.report import Dataset

NONE = "(none)"
DATASET_KEY = "data"


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


def as_option(value: object) -> str:
    """Return a cell's text as a picker and the address have it, `(none)` for an empty cell."""
    return NONE if value is None else str(value)
