"""Runs Streamlit on `dashboard/server.py` for `python -m dashboard`, after importing the slow
libraries, so that the first page does not wait for them.
"""

from __future__ import annotations

import gc
import logging
import sys
from importlib import import_module
from pathlib import Path

from streamlit.web import cli

from dashboard.visitors.connections import limit_connections

VIEWS = ("budgets_and_forecast", "events", "latency", "receipt", "spend.overview")


def import_views() -> None:
    """Import charts, tables and the Postgres driver: the first page would wait a second for them.

    Streamlit warns of every cached function that is imported before its server runs; as this is
    intended, its warnings are off meanwhile.
    """
    logging.disable(logging.WARNING)
    for name in VIEWS:
        import_module(f"dashboard.views.{name}")
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    limit_connections()
    import_views()
    # What the imports made stays: with Python's own thresholds, looking for garbage among it took a
    # tenth of the time of a page with many rows.
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    cli.main(
        ["run", str(Path(__file__).parent / "server.py"), *sys.argv[1:]], prog_name="dashboard"
    )
