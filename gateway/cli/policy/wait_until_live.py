"""Waits, for 10 s after an apply, until every gateway serves the new policy version, and prints
those that do not; a lagging gateway is no error.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.cli.terminal.output import note

if TYPE_CHECKING:
    from gateway.domain.ledger.journals import ServingWorker
    from gateway.storage.ledger.journals_table import JournalTable

PATIENCE_S = 10.0  # seconds; a gateway looks every two seconds even without a notification
_LOOK_EVERY_S = 0.1


def wait_until_live(
    journals: JournalTable, version: int, *, patience_s: float = PATIENCE_S
) -> None:
    """Wait until every gateway serves a policy version, at most `patience_s`, and print how many do
    and which ones lag.
    """

    began_s = time.monotonic()
    while True:
        workers = journals.serving()
        took_s = time.monotonic() - began_s
        lagging = [worker for worker in workers if (worker.policy_version or 0) < version]
        if not lagging or took_s > patience_s:
            break
        time.sleep(_LOOK_EVERY_S)
    note(result_text(workers, lagging, took_s))


def result_text(
    workers: Sequence[ServingWorker], lagging: Sequence[ServingWorker], took_s: float
) -> str:
    """Return the sentence about a wait for a policy version: the replicas with it, and those
    behind.
    """
    if not workers:
        return "No gateway is running; each takes it up when it starts."
    there = len(workers) - len(lagging)
    live = f"{there}/{len(workers)} replica{'' if len(workers) == 1 else 's'}"
    if not lagging:
        return f"Live on {live} in {took_s:.1f} s."
    named = "; ".join(_lag(worker) for worker in lagging)
    return (
        f"Live on {live} after {took_s:.0f} s. Behind: {named}. GET /readyz there gives the reason."
    )


def _lag(worker: ServingWorker) -> str:
    """Return the sentence part about one gateway that does not serve the version yet."""
    name = f"{worker.replica} (journal {worker.id})"
    if worker.policy_version is None:
        return f"{name} has not reported its version"
    return f"{name} serves version {worker.policy_version}"
