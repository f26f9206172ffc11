"""Offers the files of a month: FOCUS, events and adjustments, whole and for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from importlib.util import find_spec

import streamlit as st

from dashboard.downloads import MOST_ATTEMPTS
from dashboard.source import export_file
from gateway.reports.exports.export import ExportKind
from gateway.reports.exports.focus.columns import FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.exports.rows import ADJUSTMENTS, EVENTS
from gateway.reports.question import ask

FORMATS = {"CSV": "csv", "CSV, compressed": "csv.gz", "Parquet": "parquet", "Excel": "xlsx"}
MIME = {
    "csv": "text/csv",
    "csv.gz": "application/gzip",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
NEEDS = {"parquet": "pyarrow", "xlsx": "xlsxwriter"}
EXPORTS: Mapping[str, tuple[Callable[[], ExportKind], str]] = {
    "focus": (
        lambda: focus_export(FocusVersion.V1_2, is_billed_elsewhere=False),
        "Charges in FOCUS 1.2, for FinOps tools: usage, adjustments and idle GPU time.",
    ),
    "events": (lambda: EVENTS, "Every attempt, one row each, with all its columns."),
    "adjustments": (lambda: ADJUSTMENTS, "Every adjustment, one row each."),
}


def show_exports(month: date, *, attempts: int) -> None:
    """Show the exports of a month, in the format that the reader chooses."""
    st.subheader("Exports")
    formats = {
        name: suffix
        for name, suffix in FORMATS.items()
        if suffix not in NEEDS or find_spec(NEEDS[suffix]) is not None
    }
    chosen = st.segmented_control(
        "Format", list(formats), default="CSV", required=True, key="export_format"
    )
    suffix = formats[chosen]
    cards = st.columns(len(EXPORTS))
    for card, (name, (kind, about)) in zip(cards, EXPORTS.items(), strict=True):
        with card.container(border=True, height="stretch"):
            st.markdown(f"**{name.upper() if name == 'focus' else name.capitalize()}**")
            st.caption(about)
            _offer(name, kind, month, suffix, is_large=attempts > MOST_ATTEMPTS)
    st.caption(
        "A file is made when it is asked for, with every row of the month. New rows alone: "
        "`tollgate export events --since WATERMARK`."
    )


def _offer(
    name: str, kind: Callable[[], ExportKind], month: date, suffix: str, *, is_large: bool
) -> None:
    """Show the button that saves an export, or the command if the file is too large for a page."""
    file = f"tollgate-{name}-{month:%Y-%m}.{suffix}"
    if is_large and name == "events":
        st.caption(f"More than {MOST_ATTEMPTS:,} attempts: write the file in a shell.")
        st.code(f"tollgate export {name} --month {month:%Y-%m} --out {file}", language="bash")
        return
    st.download_button(
        f"{suffix.upper()} file",
        export_file(kind(), ask(month=f"{month:%Y-%m}"), file),
        file_name=file,
        mime=MIME[suffix],
        icon=":material/download:",
        on_click="ignore",
        key=f"export_{name}",
    )
