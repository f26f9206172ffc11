"""An export of any number of rows needs no more memory than one of a few."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import psycopg

from gateway.reports.exports.rows import BATCH, EVENTS
from gateway.reports.files.report_file import file_writer
from gateway.reports.question import ask
from gateway.reports.report import Cell, Export
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.storage.factories import event

# Two batches are in memory at once: one is read while the next arrives.
FEW, MANY = 2 * BATCH, 8 * BATCH


class Nothing(BytesIO):
    """A file that keeps nothing, so that only the export's own memory is measured."""

    def write(self, content: object) -> int:
        """Take the bytes, and forget them."""
        return len(content)  # type: ignore[arg-type]  # bytes or a buffer


def fill(url: str, first: int, count: int) -> None:
    """Write that many events of one millisecond, as copies of one that is there."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO tollgate.usage_events SELECT (jsonb_populate_record(event, "
            "jsonb_build_object('request_id', left(request_id::text, 24) || "
            "lpad(to_hex(number), 12, '0'), 'written_by', pg_current_xact_id()::text))).* "
            "FROM tollgate.usage_events AS event, "
            "generate_series(%s::int, %s) AS number WHERE request_id = %s",
            (first, first + count - 1, event(0).request_id),
        )


def peak_bytes(url: str, name: str) -> tuple[int, int]:
    """Return the number of exported rows and the most memory that Python held for them."""
    with (
        open_reports(url, scope=WHOLE_ORGANISATION) as opened,
        opened.export_ledger(EVENTS, ask(limit=None)) as export,
    ):
        seen = 0

        def rows() -> Iterator[tuple[Cell, ...]]:
            nonlocal seen
            for row in export.export.rows:
                seen += 1
                yield row

        tracemalloc.start()
        counted = Export(report=export.export.report, rows=rows())
        file_writer(Path(name))(counted, Nothing())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return seen, peak


def test_five_times_the_rows_need_the_same_memory(database: Database, database_url: str) -> None:
    """A month has millions of rows, and a warehouse job a small container."""
    Ledger(database).write([event(0)])
    fill(database_url, 1, FEW)
    few = peak_bytes(database_url, "events.csv.gz")
    fill(database_url, FEW + 1, MANY)
    many = peak_bytes(database_url, "events.csv.gz")
    assert (few[0], many[0]) == (FEW + 1, FEW + MANY + 1)
    assert many[1] < 1.5 * few[1]
