"""Reads the ledger's state from Postgres once a minute, keeps it for the readiness checks and
passes it to the metrics; it changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from gateway.domain.checks import Check, Status
from gateway.domain.ledger.health import LedgerState, state_checks
from gateway.errors import OperatorError

log = structlog.get_logger()

LOOK_EVERY_S = 60.0


class LedgerWatch:
    """Keeps the latest `LedgerState` of Postgres. `read` asks for it and runs in a thread."""

    def __init__(
        self, read: Callable[[], LedgerState], *, on_state: Callable[[LedgerState], None]
    ) -> None:
        """Make the job without a ledger state; `on_state` is called with each state that was
        read.
        """
        self._read, self._on_state = read, on_state
        self._state: LedgerState | None = None
        self._problem = "the ledger has not been looked at yet"
        self._is_due = asyncio.Event()

    def checks(self) -> tuple[Check, ...]:
        """Return the readiness checks on the latest state of the ledger.

        After a failed look, older findings are hidden: they may be over.
        """
        if self._state is None:
            return (Check("ledger", Status.UNKNOWN, self._problem),)
        return state_checks(self._state)

    async def run(self) -> None:
        """Read the ledger's state periodically, until cancelled."""
        while True:
            self._is_due.clear()
            await self.run_once()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._is_due.wait()

    def look_again(self) -> None:
        """Read the ledger's state soon: this worker has mended something in it."""
        self._is_due.set()

    async def run_once(self) -> None:
        """Read the ledger's state once. If Postgres cannot be asked, the checks report that."""
        try:
            state = await asyncio.to_thread(self._read)
        except OperatorError as problem:
            self._state, self._problem = None, problem.for_callers
            log.warning("ledger_not_looked_at", problem=problem.message)
            return
        self._state = state
        self._on_state(state)
