"""Runs Streamlit on `dashboard/server.py` for `python -m dashboard`, after importing the slow
libraries, so that the first page does not wait for them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from streamlit.web import cli

# Charts, tables and the Postgres driver take a second to import: the first page would wait for it.
from dashboard.views import budgets, events, latency, receipt, spend  # noqa: F401

if __name__ == "__main__":
    cli.main(
        ["run", str(Path(__file__).parent / "server.py"), *sys.argv[1:]], prog_name="dashboard"
    )
