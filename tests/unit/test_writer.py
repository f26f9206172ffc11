"""Events on their way to Postgres: none is lost while it is away, none is written twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.domain.usage_event import UsageEvent
from gateway.services.writer import BATCH_EVENTS, MAX_WAITING_EVENTS, EventWriter
from tests.fakes import FakeLedger
from tests.unit.test_request_service import WHOLE, FakeUpstreamAnswer, body, stage


@dataclass
class Heard:
    """What the writer reported."""

    events: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)
    failures: int = 0
    on_failure: Callable[[], None] = lambda: None

    def event(self, event: UsageEvent) -> None:
        self.events += 1

    def failure(self) -> None:
        self.failures += 1
        self.on_failure()


def writer(ledger: FakeLedger, heard: Heard, *, every_s: float = 0.001) -> EventWriter:
    return EventWriter(
        ledger, every_s=every_s, on_event=heard.event, on_written=lambda n, left: heard.written.append((n, left)),
        on_failure=heard.failure,
    )  # fmt: skip


async def an_event() -> UsageEvent:
    on = stage(FakeUpstreamAnswer([WHOLE]))
    await on.answer(body())
    return on.event


async def test_what_was_taken_is_written_and_reported() -> None:
    """Taking never waits; writing says how much went and how much is left."""
    ledger, heard = FakeLedger(), Heard()
    made = writer(ledger, heard)
    made.take(await an_event())
    assert (made.waiting_events, made.is_full, ledger.batches) == (1, False, [])
    await made.flush()
    assert (made.waiting_events, ledger.batches, heard) == (0, [1], Heard(events=1, written=[(1, 0)]))


async def test_nothing_is_lost_while_the_database_is_away() -> None:
    """A failed batch stays where it is, is reported, and goes in one piece afterwards."""
    ledger, heard = FakeLedger(is_away=True), Heard()
    made = writer(ledger, heard)
    made.take(await an_event())
    await made.flush()
    assert (made.waiting_events, heard.failures, heard.written) == (1, 1, [])
    ledger.is_away = False
    await made.flush()
    assert (made.waiting_events, len(ledger.rows)) == (0, 1)


async def test_a_batch_that_is_written_again_counts_once() -> None:
    """The commit's acknowledgement may be lost: the batch is sent again and the ledger takes each event once."""
    ledger, heard = FakeLedger(), Heard()
    made = writer(ledger, heard)
    event = await an_event()
    made.take(event)
    made.take(event)
    await made.flush()
    assert len(ledger.rows) == 1


async def test_many_events_go_in_bounded_batches() -> None:
    """A backlog of an hour must not become one transaction of an hour."""
    ledger, heard = FakeLedger(), Heard()
    made = writer(ledger, heard)
    event = await an_event()
    for _ in range(BATCH_EVENTS * 2 + 1):
        made.take(event)
    await made.flush()
    assert ledger.batches == [BATCH_EVENTS, BATCH_EVENTS, 1]


async def test_a_full_writer_says_so() -> None:
    """Beyond its bound nothing new is admitted: memory is not endless, and what is in flight must still fit."""
    made = writer(FakeLedger(is_away=True), Heard())
    event = await an_event()
    for _ in range(MAX_WAITING_EVENTS):
        made.take(event)
    assert made.is_full


async def test_the_loop_writes_and_survives_what_it_did_not_expect() -> None:
    """An unforeseen error in one round is logged and reported; what was taken is still written later."""
    written, failed = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    heard = Heard(on_failure=failed.set)

    class Clumsy(FakeLedger):
        """Fails once in a way nobody planned for."""

        has_failed = False

        def write(self, events: object) -> int:
            if not self.has_failed:
                self.has_failed = True
                loop.call_soon_threadsafe(made.take, event)
                raise ZeroDivisionError
            loop.call_soon_threadsafe(written.set)
            return super().write(events)  # type: ignore[arg-type]

    ledger = Clumsy()
    made = writer(ledger, heard)
    event = await an_event()
    made.take(event)
    task = asyncio.create_task(made.run())
    async with asyncio.timeout(10):
        await failed.wait()
        for _ in range(BATCH_EVENTS):  # a full batch does not wait for the pause after a failure
            made.take(event)
        await written.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert heard.failures == 1
    assert len(ledger.rows) == 1
