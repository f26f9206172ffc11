"""Offers a report as a CSV file to the reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from dashboard.filters import dataset
from gateway.domain.names import file_part
from gateway.reports.json_and_csv import to_csv
from gateway.reports.report import Report

MOST_ATTEMPTS = 500_000  # in one file of a page: it is made in the memory of the dashboard


def csv_button(
    place: Any,
    report: Report | Callable[[], bytes],
    *,
    name: str,
    label: str = "CSV",
    width: Literal["stretch", "content"] = "content",
    help: str | None = None,
) -> None:
    """Show a button at a place of the page that saves a report as `tollgate-NAME-DATASET.csv`.

    A name may have a tag's key in it, which callers choose. A function makes the file when it is
    asked for. The page is not run again.
    """
    place.download_button(
        label,
        to_csv(report) if isinstance(report, Report) else report,
        file_name=f"tollgate-{file_part(name)}-{dataset()}.csv",
        mime="text/csv",
        icon=":material/download:",
        on_click="ignore",
        width=width,
        help=help,
    )
