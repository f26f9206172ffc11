"""Usability D2: the download of the page "Requests" had the 50 rows of its page and was called
CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Callable

from dashboard.source import whole_csv
from gateway.reports.question import ask
from tests.dashboard.conftest import Open
from tests.dashboard.test_pages import events_page, page
from tests.storage.factories import event, request_id

Write = Callable[..., None]


def test_the_download_of_all_rows_has_all_rows(look: Open, write: Write) -> None:
    """Finance imports the file: a page of it would be booked as the month."""
    write(*(event(number) for number in range(1, 121)), event(500, team="research"))
    app = page(look, events_page, team="payments")
    assert not app.exception
    assert [button.label for button in app.get("download_button")] == ["This page", "All 120"]
    rows = list(
        csv.DictReader(whole_csv("events", ask(where={"team": "payments"}))().decode().splitlines())
    )
    assert {row["request_id"] for row in rows} == {
        str(request_id(number)) for number in range(1, 121)
    }
