"""Records each attempt in the journal before it is sent, while it runs and when it is settled, and
keeps unwritten events in memory for receipts; `writer.py` delivers them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import structlog

from gateway.domain.ledger.records import Intent
from gateway.domain.ledger.usage_event import Key, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.stored_response import StoredResponse, stored_response_of
from gateway.domain.residency.stated_place import Contradiction
from gateway.services.deployments.ejections import Ejections
from gateway.services.ports import EventJournal

PROGRESS_EVERY_S = 0.25
FIRST_PROGRESS_S = 0.02  # seconds; a stream that dies young should not be unknown
MOST_RECENT = 4_000  # about 6 MB; a reader gets older unwritten events as `pending`

RunningUsage = Callable[[], TokenUsage | None]  # the last usage of a live attempt

log = structlog.get_logger()


class Meter:
    """Writes intents and settlements to the journal; keeps live attempts and events not yet in
    Postgres.

    Every settled event goes to each listener of `on_settled`.
    """

    def __init__(
        self,
        journal: EventJournal,
        *,
        on_settled: Sequence[Callable[[UsageEvent], None]],
        ejections: Ejections,
    ) -> None:
        """Start without live attempts, over this worker's journal."""
        self._journal, self._on_settled, self._ejections = journal, on_settled, ejections
        self._live: dict[Key, RunningUsage] = {}
        # Documents take a third of the memory of events, and are quick to drop.
        self._recent: dict[Key, bytes] = {}
        self._settled = self._written = 0
        self._soon: asyncio.TimerHandle | None = None

    @property
    def waiting_events(self) -> int:
        """Return the number of settled events not yet in Postgres."""
        return self._settled - self._written

    def intend(self, intent: Intent, running: RunningUsage) -> Awaitable[None]:
        """Write an attempt's intent to the journal; resolves when it is durable. Progress records
        ask `running`.

        Raises `JournalFull` if there is no room; then it is not written.
        """
        durable = self._journal.intend(intent)
        self._live[intent.event.key] = running
        return durable

    def settle(self, event: UsageEvent) -> None:
        """Record a settled event in the journal. Never awaits: a disconnect cancels every await
        around the caller.

        Raises the journal's error. Then nothing has changed, and another event may be given.
        """
        document = self._journal.settle(event)
        key = event.key
        self._live.pop(key, None)
        self._settled += 1
        self._recent[key] = document
        if len(self._recent) > MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        for listener in self._on_settled:
            try:
                listener(event)
            except (
                Exception
            ):  # the event is written: a failing listener must not look like an unwritten event
                log.exception("settlement_not_heard", request_id=str(key[0]), attempt=key[1])

    def give_up(self, event: UsageEvent) -> None:
        """Drop a live attempt whose event cannot be recorded.

        Its intent stays in the journal: the next start books it.
        """
        self._live.pop(event.key, None)

    def report_region_mismatch(self, found: Contradiction, key: Key) -> None:
        """Eject a deployment whose upstream ran an attempt in a forbidden place. Never awaits."""
        request_id, attempt = key
        self._ejections.note(found, request_id=request_id, attempt=attempt)

    def note_written(self, keys: Sequence[Key]) -> None:
        """Record that Postgres has the events of these keys."""
        self._written += len(keys)
        for key in keys:
            self._recent.pop(key, None)

    def recent(self, request_id: UUID) -> list[UsageEvent]:
        """Return the events of a request's attempts that were settled here and are not in Postgres
        yet.
        """
        documents = [self._recent.get((request_id, number)) for number in range(1, 11)]
        return [self._journal.event_of(document) for document in documents if document is not None]

    def recent_responses(self, response_id: str) -> list[StoredResponse]:
        """Return the responses with an upstream's id that were settled here and are not in Postgres
        yet. Such ids are plain ASCII, so a document has one as it is.
        """
        named = response_id.encode()
        events = [self._journal.event_of(one) for one in self._recent.values() if named in one]
        found = [stored_response_of(event) for event in events]
        return [one for one in found if one is not None and one.response_id == response_id]

    def saw_first_usage(self) -> None:
        """Have the running usage of live attempts written soon, because one has its first content;
        otherwise the next turn writes it.
        """
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(
                FIRST_PROGRESS_S, self._note_running_usage
            )

    async def run(self) -> None:
        """Write the running usage of all live attempts to the journal, turn by turn, until
        cancelled.
        """
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            self._note_running_usage()

    def _note_running_usage(self) -> None:
        """Write the running usage of all live attempts to the journal once."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        running = {
            key: usage
            for key, running_usage in self._live.items()
            if (usage := _usage_of(running_usage, key)) is not None
        }
        if not running:
            return
        try:
            self._journal.note_progress(running)
        except Exception:  # one unwritable figure must not cost all other streams their notes
            log.exception("progress_not_noted")
            self._journal.note_progress(
                {key: usage for key, usage in running.items() if usage.is_plausible}
            )


def _usage_of(running: RunningUsage, key: Key) -> TokenUsage | None:
    """Return a live attempt's running usage, None if it has none or it cannot be read."""
    try:
        return running()
    except Exception:  # as above: the other streams are noted without this one
        log.exception("usage_not_readable", request_id=str(key[0]), attempt=key[1])
        return None
