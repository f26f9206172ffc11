"""The pages there are, and the ways from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import streamlit as st

from dashboard.filters import DATASET_KEY, as_option, dataset
from dashboard.views import events, latency, receipt, spend
from gateway.reports import Cell, Dimension


def all_pages() -> list[st.Page]:
    """Pages in the order of the menu."""
    return [
        st.Page(spend.show, title="Spend", icon=":material/payments:", url_path="spend", default=True),
        st.Page(latency.show, title="Latency", icon=":material/speed:", url_path="latency"),
        st.Page(events.show, title="Requests", icon=":material/list_alt:", url_path="events"),
        st.Page(receipt.show, title="Receipt", icon=":material/receipt_long:", url_path="receipt"),
    ]
