"""Asks `gateway.reports` for the pages' figures, and caches reports and receipts for 10 seconds;
CSV exports and the count of unsummed hours are not cached.
"""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import UUID

import streamlit as st

from gateway import reports
from gateway.reports import Dataset, Question, Receipt, Report, Reports, WhatIf

URL_VARIABLE = "TOLLGATE_REPORTS_URL"
# Long enough that a click on a filter does not repeat every query, short enough to see a request
# arrive.
KEEP_S = 10
KEEP_ENTRIES = 500


class NotConfigured(Exception):
    """The dashboard was started without an address of the reports."""


def answer(name: str, question: Question) -> Report:
    """Return a report by its name, cached for a few seconds. Raises `reports.DatabaseUnavailable`
    or `NotConfigured`.
    """
    return _answer(_reports_url(), name, question)


def compare_with_api(question: Question, what_if: WhatIf) -> Report:
    """Return the comparison of own GPUs with an API, cached for a few seconds. Raises the errors of
    `answer`, and `reports.NothingFound` for an unknown model.
    """
    return _compare_with_api(_reports_url(), question, what_if)


def find_receipt(request_id: UUID, dataset: Dataset) -> Receipt | None:
    """Return a request's receipt in a dataset, cached for a few seconds; None if there is none."""
    return _find_receipt(_reports_url(), request_id, dataset)


def whole_csv(name: str, question: Question) -> bytes:
    """Return every row of a report as CSV, from one export without limit or cache.

    Raises the errors of `answer`.
    """
    with _open_reports(_reports_url()).export(
        name, replace(question, limit=None, offset=0)
    ) as export:
        return "".join(reports.csv_lines(export)).encode()


def hours_not_summed() -> int | None:
    """Return the number of hours whose events are not summed yet, None if that cannot be asked."""
    try:
        return _open_reports(_reports_url()).hours_not_summed()
    except reports.DatabaseUnavailable:
        return None


def _reports_url() -> str:
    """Return the Postgres URL of the reports from the environment. Raises `NotConfigured` without
    one.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        raise NotConfigured
    return url


@st.cache_resource(show_spinner=False, max_entries=2)
def _open_reports(url: str) -> Reports:
    """Open the reports of a Postgres URL; Streamlit keeps one for all sessions."""
    return reports.open_reports(url)


@st.cache_data(show_spinner=False, ttl=KEEP_S, max_entries=KEEP_ENTRIES)
def _answer(url: str, name: str, question: Question) -> Report:
    """Return the answer to one report; Streamlit caches it."""
    return _open_reports(url).run(name, question)


@st.cache_data(show_spinner=False, ttl=KEEP_S, max_entries=KEEP_ENTRIES)
def _compare_with_api(url: str, question: Question, what_if: WhatIf) -> Report:
    """Return the comparison of own GPUs with an API; Streamlit caches it."""
    return _open_reports(url).selfhost_vs_api(question, what_if)


@st.cache_data(show_spinner=False, ttl=KEEP_S, max_entries=KEEP_ENTRIES)
def _find_receipt(url: str, request_id: UUID, dataset: Dataset) -> Receipt | None:
    """Return one request's receipt, None if there is none; Streamlit caches it."""
    return _open_reports(url).receipt(request_id, dataset=dataset)
