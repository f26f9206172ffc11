"""Refreshing a snapshot: its age, a start without Postgres, and the copy for the next start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from gateway.api.authenticate import authenticate
from gateway.domain.policy.last_snapshot import LastSnapshot, NotUsable, usable_age_s
from gateway.errors import BadUsage, DatabaseUnavailable, PolicyRejected, RequestError
from gateway.services.snapshot.refresh import CONFIRMED_APART_S, RENEW_AFTER_S, Refresher
from gateway.services.snapshot.snapshot import Snapshot, SnapshotHolder
from gateway.services.supervisor import Supervisor
from tests.factories import NOW, key, key_record, snapshot, version
from tests.fakes import FakeClock
from tests.waiting import soon

MINE, THEIRS = key(1), key(2)
OUTAGE_S = 600.0


@dataclass
class FakeSource:
    """A database that answers with `now`, or fails; `takes_s` passes on the clock before its answer
    comes.

    It answers only when `admission` is set. Word of changes comes when `has_changed` is set.
    """

    clock: FakeClock
    now: Snapshot | None
    fails: Exception | None = None
    takes_s: float = 0.0
    admission: threading.Event | None = None
    has_changed: threading.Event = field(default_factory=threading.Event)
    deaf: Exception | None = None
    loads: int = 0
    refuses_rebuild: bool = False

    def load(self, before: Snapshot | None) -> Snapshot | None:
        self.loads += 1
        answer = self.now
        self.clock.advance(self.takes_s)
        if self.admission is not None:
            assert self.admission.wait(30), "the test sets it"
        if self.fails is not None:
            raise self.fails
        return answer

    def rebuilt(self, last: LastSnapshot) -> Snapshot:
        if self.refuses_rebuild:
            raise PolicyRejected(())
        return snapshot(*last.keys)

    def wait(self, timeout_s: float) -> bool:
        if self.deaf is not None:
            raise self.deaf
        changed = self.has_changed.wait(timeout_s)
        self.has_changed.clear()
        return changed


@dataclass
class FakeShelf:
    """The stored snapshot, in memory."""

    last: LastSnapshot | None = None
    writes: list[LastSnapshot] = field(default_factory=list)
    fails: Exception | None = None
    is_busy: bool = False

    def write(self, last: LastSnapshot) -> bool:
        if self.fails is not None:
            raise self.fails
        if not self.is_busy:
            self.last = last
            self.writes.append(last)
        return not self.is_busy

    def read(self) -> LastSnapshot:
        if self.last is None:
            raise NotUsable("there is none")
        return self.last


@dataclass
class Worker:
    """A refresher with all it works on."""

    clock: FakeClock = field(default_factory=FakeClock)
    shelf: FakeShelf = field(default_factory=FakeShelf)
    swapped: list[Snapshot] = field(default_factory=list)
    # The version, and the one that was served by then.
    reports: list[tuple[int, int]] = field(default_factory=list)
    deaf_to: Exception | None = None

    def __post_init__(self) -> None:
        self.source = FakeSource(self.clock, snapshot(key_record(MINE)))
        self.holder = SnapshotHolder(clock=self.clock, outage_s=OUTAGE_S)
        self.refresher = self.made()

    def made(self, **changes: float) -> Refresher:
        return Refresher(
            self.source,
            self.holder,
            clock=self.clock,
            on_swap=self.swapped.append,
            shelf=self.shelf,
            report=self.report,
            **{"every_s": 0.01, **changes},
        )

    def report(self, version: int) -> None:
        if self.deaf_to is not None:
            raise self.deaf_to
        current = self.holder.current
        self.reports.append((version, 0 if current is None else current.policy.version))

    def away(self) -> None:
        """Postgres goes."""
        self.source.fails = DatabaseUnavailable("Postgres is away.")

    def kept(self, *, age_s: float) -> None:
        """An earlier process kept a snapshot with MINE and THEIRS so long ago."""
        records = (key_record(MINE), key_record(THEIRS))
        good_at = self.clock.now() - timedelta(seconds=age_s)
        self.shelf.last = LastSnapshot(
            good_at=good_at, version=7, sha256="", document="", prices={}, keys=records, ejected={}
        )

    def answer(self, sent: str) -> str:
        """The team of a key, or the code of its refusal."""
        try:
            return authenticate(
                [(b"api-key", sent.encode())], self.holder, now=self.clock.now, allows_demo=False
            ).team
        except RequestError as error:
            return error.code


@pytest.fixture
def worker() -> Worker:
    return Worker()


async def test_the_time_runs_from_before_postgres_was_asked(worker: Worker) -> None:
    """Its answer may be as old as the question: a key revoked meanwhile is still in it."""
    worker.source.takes_s = 100
    await worker.refresher.refresh()
    assert (worker.holder.age_s(), worker.holder.refreshed_at) == (100, NOW)


async def test_known_keys_serve_for_the_stated_time_and_again_when_postgres_is_back(
    worker: Worker,
) -> None:
    """No restart: whoever is woken at night fixes Postgres and nothing else."""
    await worker.refresher.refresh()
    worker.away()
    seen = []
    for pause_s in (OUTAGE_S, 1):
        worker.clock.advance(pause_s)
        await worker.refresher.refresh()
        seen.append((worker.answer(MINE), worker.answer(key(9))))
    assert seen == [("payments", "unavailable"), ("unavailable", "unavailable")]
    worker.source.fails = None
    await worker.refresher.refresh()
    assert (worker.answer(MINE), worker.answer(key(9))) == ("payments", "invalid_api_key")
    assert len(worker.swapped) == 1


async def test_a_database_without_a_policy_does_not_keep_old_keys_alive(worker: Worker) -> None:
    """Restored empty, it says nothing of our keys: that is no proof that they still hold."""
    await worker.refresher.refresh()
    worker.source.now = None
    worker.clock.advance(OUTAGE_S + 1)
    await worker.refresher.refresh()
    assert worker.answer(MINE) == "unavailable"


@asynccontextmanager
async def at_work(refresher: Refresher) -> AsyncIterator[None]:
    """Its job in the background."""
    supervisor = Supervisor(FakeClock(), on_failure=lambda loop: None)
    supervisor.start(refresher.loops())
    try:
        yield
    finally:
        await supervisor.cancel()


async def test_whoever_asks_gets_a_look_that_was_begun_after(worker: Worker) -> None:
    """A look under way may have missed a new key; all waiters share one look."""
    admission = worker.source.admission = threading.Event()
    admission.set()
    refresher = worker.made(every_s=60, confirmed_within_s=60)
    await refresher.refresh()
    async with at_work(refresher):
        admission.clear()
        worker.clock.advance(1)
        under_way = asyncio.create_task(worker.holder.confirm())
        await soon(lambda: worker.source.loads == 2, "the look for the first")
        worker.clock.advance(1)
        worker.source.now = snapshot(key_record(MINE), key_record(THEIRS))
        later = [asyncio.create_task(worker.holder.confirm()) for _ in range(50)]
        await asyncio.sleep(0)
        admission.set()
        assert await asyncio.gather(under_way, *later) == [True] * 51
    assert (worker.answer(THEIRS), worker.source.loads) == ("payments", 3)


async def test_a_key_made_just_after_a_look_is_seen(worker: Worker) -> None:
    """A script makes a key and uses it at once; a flood of invented keys asks Postgres rarely."""
    refresher = worker.made(every_s=60, confirmed_within_s=60)
    await refresher.refresh()
    worker.source.now = snapshot(key_record(MINE), key_record(THEIRS))
    async with at_work(refresher):
        worker.clock.advance(0.001)
        asked = [asyncio.create_task(worker.holder.confirm()) for _ in range(50)]
        assert await asyncio.gather(*asked) == [True] * 50
    assert (worker.answer(THEIRS), worker.source.loads) == ("payments", 2)


async def test_a_caller_that_asked_before_a_look_began_shares_it(worker: Worker) -> None:
    """Also one whose turn comes while that look waits for Postgres."""
    refresher = worker.made(every_s=60, confirmed_within_s=60)
    await refresher.refresh()
    worker.clock.advance(0.001)
    worker.source.admission = admission = threading.Event()
    early = asyncio.create_task(worker.holder.confirm())
    await asyncio.sleep(0.05)
    late = asyncio.create_task(worker.holder.confirm())
    async with at_work(refresher):
        await soon(lambda: worker.source.loads == 2, "the second look")
        await asyncio.sleep(2 * CONFIRMED_APART_S)  # the later one's turn has come
        admission.set()
        assert await asyncio.gather(early, late) == [True, True]
    assert worker.source.loads == 2


async def test_a_postgres_that_is_away_confirms_nothing(worker: Worker) -> None:
    """At once, even before the outage was noticed; after that no query is sent."""
    refresher = worker.made(every_s=60, confirmed_within_s=60)
    await refresher.refresh()
    worker.clock.advance(1)
    worker.away()
    async with at_work(refresher):
        assert not await worker.holder.confirm()
        loads = worker.source.loads
        assert not await worker.holder.confirm()
        assert worker.source.loads == loads == 2


async def test_a_postgres_that_hangs_confirms_nothing(worker: Worker) -> None:
    """The caller is not kept for as long as a look may hang."""
    admission = threading.Event()
    refresher = worker.made(every_s=60, confirmed_within_s=0.01)
    await refresher.refresh()
    worker.clock.advance(1)
    worker.source.admission = admission
    async with at_work(refresher):
        assert not await worker.holder.confirm()
        admission.set()


async def test_a_look_that_hangs_does_not_stop_the_next_one(worker: Worker) -> None:
    """A backend that neither answers nor breaks: on another connection Postgres is well.

    Its late answer is dropped.
    """
    worker.refresher = worker.made(hung_after_s=0.05)
    hanging = worker.source.admission = threading.Event()
    await worker.refresher.refresh()
    assert worker.holder.problem is not None
    assert "has not answered" in worker.holder.problem
    worker.source.admission, worker.source.now = None, snapshot(key_record(THEIRS))
    await worker.refresher.refresh()
    hanging.set()
    await worker.refresher.refresh()
    assert (worker.answer(MINE), worker.answer(THEIRS)) == ("invalid_api_key", "payments")


async def test_a_mistake_of_ours_does_not_end_the_looking(worker: Worker) -> None:
    """Without further looks all service would end at the snapshot's time limit."""
    worker.source.fails = ValueError("a row that nobody expected")
    with capture_logs() as logs:
        async with at_work(worker.refresher):
            await soon(lambda: len(logs) > 1, "the mistake")
            worker.source.fails = None
            await soon(lambda: worker.answer(MINE) == "payments", "the next look")
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {
        "background_loop_failed",
        "background_loop_ended",
    }


async def test_a_start_without_postgres_serves_the_saved_snapshot(worker: Worker) -> None:
    """For the rest of its time: a restart late in an outage must not extend it."""
    worker.away()
    worker.kept(age_s=500)
    await worker.refresher.start()
    assert [worker.answer(each) for each in (MINE, THEIRS, key(9))] == [
        "payments",
        "payments",
        "unavailable",
    ]
    assert len(worker.swapped) == 1
    worker.clock.advance(OUTAGE_S - 500)
    assert worker.answer(MINE) == "payments"
    worker.clock.advance(0.001)
    assert worker.answer(MINE) == "unavailable"
    worker.source.fails = None
    await worker.refresher.refresh()
    assert [worker.answer(each) for each in (MINE, THEIRS)] == ["payments", "invalid_api_key"]


async def test_a_start_does_not_wait_for_a_postgres_that_hangs(worker: Worker) -> None:
    """A dead host takes connections' whole timeouts; callers are there already."""
    worker.kept(age_s=1)
    admission = worker.source.admission = threading.Event()
    worker.refresher = worker.made(first_look_s=0.05)
    await worker.refresher.start()
    assert worker.answer(THEIRS) == "payments"
    admission.set()


@pytest.mark.parametrize("age_s", [OUTAGE_S + 0.001, -0.001, 10 * 365 * 86_400, -86_400])
async def test_a_saved_snapshot_too_old_or_from_the_future_is_not_used(
    worker: Worker, age_s: float
) -> None:
    """Keys may have been revoked since; with a clock set back, the age is unknown."""
    worker.away()
    worker.kept(age_s=age_s)
    with capture_logs() as logs:
        for _ in range(3):
            await worker.refresher.refresh()
    assert worker.answer(MINE) == "unavailable"
    assert [line["event"] for line in logs] == ["snapshot_not_refreshed", "last_snapshot"]


async def test_an_unreadable_saved_policy_is_not_served(
    worker: Worker,
) -> None:
    """After a downgrade it is better to serve no request than to apply a half-understood policy."""
    worker.away()
    worker.kept(age_s=1)
    worker.source.refuses_rebuild = True
    await worker.refresher.start()
    assert worker.answer(MINE) == "unavailable"


async def test_the_saved_snapshot_never_replaces_an_answer_of_postgres(worker: Worker) -> None:
    """Only while Postgres cannot be asked: its answer is the truth, even that there is no policy
    or a wrong one.
    """
    worker.kept(age_s=1)
    for says in (None, PolicyRejected(())):
        worker.source.now, worker.source.fails = None, says
        await worker.refresher.refresh()
        assert worker.answer(MINE) == "unavailable"


async def test_a_pepper_of_another_database_ends_a_start_and_nothing_later(worker: Worker) -> None:
    """An operator watches a start; a serving gateway continues with its snapshot."""
    worker.source.fails = BadUsage("This pepper file belongs to another database.")
    with pytest.raises(BadUsage):
        await worker.refresher.start()
    await worker.refresher.refresh()
    assert worker.holder.problem == "This pepper file belongs to another database."


async def test_a_change_is_kept_at_once_and_the_time_once_a_minute(worker: Worker) -> None:
    """A revoked key must be out of the file; and a disk should not be synced with every look."""
    written = worker.shelf.writes
    for pause_s, expected in ((0, 1), (RENEW_AFTER_S - 1, 1), (1, 2), (1, 2)):
        worker.clock.advance(pause_s)
        await worker.refresher.refresh()
        await worker.refresher.keep()
        assert len(written) == expected
    assert [last.good_at for last in written] == [NOW, NOW + timedelta(seconds=RENEW_AFTER_S)]
    worker.source.now = snapshot(key_record(THEIRS))
    await worker.refresher.refresh()
    await worker.refresher.keep()
    assert [[record.key_id for record in last.keys] for last in written[1:]] == [
        [key_record(MINE).key_id],
        [key_record(THEIRS).key_id],
    ]


async def test_a_failed_refresh_does_not_renew_the_saved_snapshot(worker: Worker) -> None:
    """Else an outage would never be over."""
    await worker.refresher.refresh()
    worker.away()
    worker.clock.advance(RENEW_AFTER_S)
    await worker.refresher.refresh()
    await worker.refresher.keep()
    assert [last.good_at for last in worker.shelf.writes] == [NOW]


async def test_an_unwritable_disk_is_logged_once_and_stops_no_request(worker: Worker) -> None:
    """The gateway serves all the same."""
    worker.shelf.fails = OSError(28, "No space left on device")
    with capture_logs() as logs:
        for _ in range(3):
            worker.clock.advance(RENEW_AFTER_S)
            await worker.refresher.refresh()
            await worker.refresher.keep()
    assert [(line["event"], "No space left" in line["problem"]) for line in logs] == [
        ("last_snapshot", True)
    ]
    assert worker.answer(MINE) == "payments"
    worker.shelf.fails = None
    worker.clock.advance(RENEW_AFTER_S)
    await worker.refresher.keep()
    assert len(worker.shelf.writes) == 1


async def test_a_snapshot_locked_by_another_worker_is_written_later(worker: Worker) -> None:
    """The other worker may write a snapshot older than a revocation that this one knows."""
    worker.shelf.is_busy = True
    await worker.refresher.refresh()
    await worker.refresher.keep()
    worker.shelf.is_busy = False
    await worker.refresher.keep()
    assert len(worker.shelf.writes) == 1


async def running(worker: Worker, look: Callable[[], bool], what: str) -> None:
    """Run in the background until something has come about."""
    async with at_work(worker.refresher):
        await soon(look, what)


async def test_word_of_a_change_is_not_waited_out(worker: Worker) -> None:
    """A key that was made works at once, however seldom the gateway looks by itself."""
    worker.source.has_changed.set()
    worker.refresher = worker.made(every_s=3600)
    try:
        await running(worker, lambda: worker.answer(MINE) == "payments", "the snapshot")
    finally:
        worker.source.has_changed.set()


@pytest.mark.parametrize("deaf", [DatabaseUnavailable("no connection"), ValueError("our mistake")])
async def test_a_worker_that_cannot_listen_polls(worker: Worker, deaf: Exception) -> None:
    """A broken LISTEN connection must not keep a revoked key alive; the loaded snapshot is kept."""
    worker.source.deaf = deaf
    await running(
        worker, lambda: len(worker.shelf.writes) == 1 and worker.source.loads > 3, "three looks"
    )
    assert worker.answer(MINE) == "payments"


async def test_a_listening_that_hangs_does_not_hold_up_the_looks(worker: Worker) -> None:
    """A connection that cannot be made takes its whole timeout, twice."""
    admission = threading.Event()
    worker.source.has_changed.wait = lambda timeout=None: admission.wait(30)  # type: ignore[method-assign]
    try:
        await running(worker, lambda: worker.source.loads > 3, "three looks")
    finally:
        admission.set()


@pytest.mark.parametrize(
    ("age_s", "usable"), [(0, True), (600, True), (600.001, False), (-0.001, False)]
)
def test_a_saved_snapshot_is_usable_for_the_stated_time(age_s: float, usable: bool) -> None:
    """To the moment, and never from the future."""
    now = NOW + timedelta(seconds=age_s)
    if usable:
        assert usable_age_s(NOW, now=now, outage_s=600) == age_s
    else:
        with pytest.raises(NotUsable):
            usable_age_s(NOW, now=now, outage_s=600)


async def test_a_version_is_reported_once_after_it_is_served(worker: Worker) -> None:
    """`policy apply` believes the report: too early, requests would still be decided by the
    version before.
    """
    await worker.refresher.report_version()
    assert worker.reports == [], "nothing is served yet"
    async with at_work(worker.refresher):
        await soon(lambda: worker.reports, "the first word")
        worker.source.now = replace(snapshot(key_record(MINE)), policy=version(number=8))
        await soon(lambda: len(worker.reports) == 2, "the second word")
        looks = worker.source.loads
        await soon(lambda: worker.source.loads > looks + 3, "looks that find nothing new")
    assert worker.reports == [(7, 7), (8, 8)]


@pytest.mark.parametrize(
    "why", [DatabaseUnavailable("Postgres is away."), RuntimeError("a fault of ours")]
)
async def test_a_failed_version_report_is_retried_and_delays_nothing(
    worker: Worker, why: Exception
) -> None:
    """Serving does not wait for a row that only an admin reads."""
    worker.deaf_to = why
    async with at_work(worker.refresher):
        await soon(lambda: worker.source.loads > 2, "looks that go on")
        assert worker.holder.current is worker.source.now
        worker.deaf_to = None
        await soon(lambda: worker.reports, "the word")
    assert worker.reports == [(7, 7)]
