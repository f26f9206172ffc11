"""If a journal's files could not be opened by name for a moment, or were deleted, settled events
were never booked.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23. One failed open
of a segment was taken for damage: USD 158.70 were never booked, and a hard budget got that amount
back. With the folder deleted, 160 of 160 requests were served and none was booked.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.ledger.records import Intent
from gateway.errors import JournalFull
from gateway.storage.journal import Segments, SettlementReader, journals_on
from gateway.storage.journal.layout import segment_path
from gateway.storage.ledger.event_journal import LeftJournals, OwnJournal, open_own
from tests import plain_http
from tests.factories import price
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import ask
from tests.integration.policy import small
from tests.storage.factories import event
from tests.waiting import eventually


def own_journal(root: Path) -> OwnJournal:
    return open_own(
        root, max_bytes=64 * 2**20, syncs=False, on_failed_sync=print, on_synced=lambda _: None
    )


async def settled(own: OwnJournal) -> Any:
    """Return one attempt that was intended and settled."""
    one = event()
    await own.intend(Intent(event=one, price=price(), writes_output=True))
    own.settle(one)
    return one


async def test_settled_events_are_read_after_their_files_are_unlinked(tmp_path: Path) -> None:
    """The files are open, so they need not be found by name."""
    own = own_journal(tmp_path)
    one = await settled(own)
    shutil.rmtree(own.journal.directory)
    assert own.read(own.end(), max_events=10).keys == [one.key]


async def test_a_segment_that_is_cut_short_is_for_the_next_try(tmp_path: Path) -> None:
    """The segment waits and is not drained: its unreadable part is never released."""
    own = own_journal(tmp_path)
    one = await settled(own)
    path = segment_path(own.journal.directory, 1)
    whole = path.read_bytes()
    os.truncate(path, 100)
    with pytest.raises(OSError, match="shorter"):
        own.read(own.end(), max_events=10)
    assert not own.is_drained
    path.write_bytes(whole)
    assert own.read(own.end(), max_events=10).keys == [one.key]


async def test_a_left_segment_that_cannot_be_opened_now_is_for_the_next_try(tmp_path: Path) -> None:
    """Too many open files is not a damaged segment."""
    own = own_journal(tmp_path)
    one = await settled(own)
    path = segment_path(own.journal.directory, 1)
    reader = SettlementReader(Segments(own.journal.directory))
    path.rename(path.with_suffix(".away"))
    with pytest.raises(FileNotFoundError):
        list(reader.segments.records(1))
    path.with_suffix(".away").rename(path)
    assert [key for key, _ in reader.read(upto=None, max_records=9, max_bytes=10**6).documents] == [
        one.key
    ]


async def test_a_folder_that_comes_back_is_used_again(tmp_path: Path) -> None:
    """Until the folder comes back, no new request is admitted."""
    own = own_journal(tmp_path)
    away = own.journal.directory.with_name("away")
    own.journal.directory.rename(away)
    await asyncio.to_thread(eventually, lambda: _looked(own).is_gone, "that it is gone")
    assert own.is_full
    away.rename(own.journal.directory)
    await asyncio.to_thread(eventually, lambda: not own.is_gone, "that it is back")
    assert not own.is_full


async def test_a_file_in_the_folders_place_is_a_folder_that_is_gone(tmp_path: Path) -> None:
    """The gateway took it for a broken disk and ended with 2,350 events that Postgres never got."""
    own = open_own(
        tmp_path / "root",
        max_bytes=64 * 2**20,
        syncs=True,
        on_failed_sync=pytest.fail,
        on_synced=lambda _: None,
    )
    one = await settled(own)
    shutil.rmtree(tmp_path / "root")
    (tmp_path / "root").touch()
    await own.journal.flush()
    assert _looked(own).is_gone
    assert own.read(own.end(), max_events=10).keys == [one.key]
    own.finish()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_segments_turn_without_their_folder(tmp_path: Path, is_deleted: bool) -> None:
    """Attempts that were admitted earlier may fill a segment; the process used to end then, as
    if the disk were broken.
    """
    own = own_journal(tmp_path)
    one = event()
    held = [event(number) for number in range(1, 7501)]
    for attempt in held:
        await own.intend(Intent(event=attempt, price=price(), writes_output=True))
    begun = own.journal.segment_numbers()
    away = own.journal.directory.with_name("away")
    if is_deleted:
        shutil.rmtree(own.journal.directory)
    else:
        own.journal.directory.rename(away)
    for attempt in held:
        own.settle(attempt)
    assert own.journal.segment_numbers() > begun
    await own.journal.flush()
    await asyncio.to_thread(eventually, lambda: _looked(own).is_gone, "that it is gone")
    with pytest.raises(JournalFull):
        await own.intend(Intent(event=one, price=price(), writes_output=True))
    found: list[Any] = []
    while batch := own.read(own.end(), max_events=1000):
        if not batch.keys:
            break
        found += batch.keys
        own.acknowledge(batch)
    assert sorted(found) == sorted(attempt.key for attempt in held)
    assert own.is_drained
    own.finish(is_recorded=True)


async def test_a_journal_whose_lock_file_is_deleted_is_not_adopted(tmp_path: Path) -> None:
    """The journal's own gateway adopted it, booked live attempts as interrupted, and deleted it.

    The lock file is the folder's oldest, so a job that deletes old files removes it first.
    """
    own = own_journal(tmp_path)
    await own.intend(Intent(event=event(), price=price(), writes_output=True))
    (own.journal.directory / "lock").unlink()
    assert LeftJournals(tmp_path).adopt() == []
    assert [listing.is_held for listing in journals_on(tmp_path)] == [True]
    assert not _looked(own).is_gone


def _looked(own: OwnJournal) -> OwnJournal:
    own.journal._look_for_folder()  # as the journal's thread does each second
    return own


def test_requests_are_refused_and_served_requests_are_booked(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """Readiness gives the reason, and after a stop every served request is booked."""
    gateway = start_gateway(small(fake_upstream.url), write_every_s=3)
    answers = [ask(gateway, model="vllm", fake="out=40")]
    (journal,) = (gateway.home / "journal").glob("*-*")
    shutil.rmtree(journal)

    def refused() -> bool:
        answers.append(ask(gateway, model="vllm", fake="out=40"))
        return answers[-1].status_code == 503

    eventually(refused, "a refusal")
    assert "journal" in answers[-1].json()["error"]["message"]
    ready = plain_http.get(f"http://127.0.0.1:{gateway.port}/readyz", timeout=10)
    assert ready.status_code == 503
    (check,) = [check for check in ready.json()["checks"] if check["check"] == "journal"]
    assert (check["status"], check["what_to_do"]) == ("fail", "see docs/runbooks/journal-gone.md")
    assert "journal-gone.md" in ready.text.split('"checks"')[0]
    assert gateway.stop(signal.SIGTERM) == 0
    served = [answer.headers["x-request-id"] for answer in answers if answer.status_code == 200]
    rows = gateway.query("SELECT request_id::text AS id FROM finance.usage_events")
    assert {row["id"] for row in rows} == set(served)
    gateway.start()
    assert ask(gateway, model="vllm", fake="out=40").status_code == 200


@pytest.mark.parametrize("is_synced", [True, False])
def test_an_idle_gateway_sees_that_its_journal_is_gone(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, is_synced: bool
) -> None:
    """It looked only with a commit: the first request after a quiet night was served, and a kill
    then lost it.
    """
    environment = {} if is_synced else {"TOLLGATE_JOURNAL_FSYNC": "false"}
    gateway = start_gateway(small(fake_upstream.url), environment=environment)
    assert ask(gateway, model="vllm", fake="out=40").status_code == 200
    (journal,) = (gateway.home / "journal").glob("*-*")
    away = journal.with_name("away")
    journal.rename(away)
    ready = f"http://127.0.0.1:{gateway.port}/readyz"
    eventually(lambda: plain_http.get(ready, timeout=10).status_code == 503, "not ready")
    assert ask(gateway, model="vllm", fake="out=40").status_code == 503
    away.rename(journal)
    eventually(lambda: plain_http.get(ready, timeout=10).status_code == 200, "ready again")
    assert ask(gateway, model="vllm", fake="out=40").status_code == 200
