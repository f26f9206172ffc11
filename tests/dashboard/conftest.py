"""The dashboard on a real database, run in this process by Streamlit's own test runner."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from dashboard.source import URL_VARIABLE
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database

Open = Callable[..., AppTest]
APP = Path(__file__).parents[2] / "dashboard" / "app.py"
TIMEOUT_S = 60  # the first page imports pandas and altair


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """Streamlit's runner leaves the page as this process's `__main__`, which a child process of a
    later test would run.
    """
    own = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = own


@pytest.fixture
def write(database: Database) -> Callable[..., None]:
    """Write events as the gateway does."""
    ledger = Ledger(database)

    def written(*events: UsageEvent) -> None:
        assert ledger.write(events) == len(events), "every event of a test must be new"

    return written


@pytest.fixture
def look(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open the dashboard at an address; `url` is another database, or None for none."""

    def opened(url: str | None = database_url, **address: str) -> AppTest:
        st.cache_data.clear()
        if url is None:
            monkeypatch.delenv(URL_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(URL_VARIABLE, url)
        app = AppTest.from_file(str(APP), default_timeout=TIMEOUT_S)
        for name, value in address.items():
            app.query_params[name] = value
        return app.run()

    return opened
