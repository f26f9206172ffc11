"""Reads the mark of a ledger that `demo-data --as-ledger` generated, and names it for answers."""

from __future__ import annotations

from gateway.reports.sources.connection import ReadSnapshot

DEMO_LEDGER = "demo-ledger"  # the name of its dataset, in place of `real`
DEMO_LEDGER_NOTE = (
    "Demo ledger: its events were generated (tollgate demo-data --as-ledger), they are not real "
    "spend."
)


def is_demo_ledger(snapshot: ReadSnapshot) -> bool:
    """Return True if this database's ledger was generated."""
    found = snapshot.row("SELECT EXISTS (SELECT FROM finance.demo_ledger) AS is_marked")
    return bool(found["is_marked"])
