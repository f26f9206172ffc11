"""The file of the last good snapshot: complete and authentic, or refused; never a reason to
fail.
"""

from __future__ import annotations

import fcntl
import os
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from gateway.domain.policy.api_keys import Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot, NotUsable
from gateway.storage.policy.last_snapshot import MAGIC, SnapshotFile
from tests.storage.factories import NOON, PEPPER, key, price

OTHER = Pepper(b"another pepper of thirty-two byte")
DOCUMENT = "version: 1\n# a document as it was written: ä\n"


def last(at: datetime = NOON, **changes: object) -> LastSnapshot:
    other = key(
        "k000000002",
        expires_at=NOON + timedelta(days=1),
        project="checkout",
        is_demo=True,
        is_paused=True,
    )
    keys = (key(), other)
    made = LastSnapshot(
        good_at=at,
        version=7,
        sha256="f" * 64,
        document=DOCUMENT,
        prices={"gpt-eu": price("1E+1")},
        keys=keys,
        ejected={"gpt-us": "us"},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "snapshot"


def file(path: Path, *peppers: Pepper, now: datetime = NOON) -> SnapshotFile:
    return SnapshotFile(path, peppers or (PEPPER,), now=lambda: now)


def refused(path: Path, *peppers: Pepper) -> str:
    with pytest.raises(NotUsable) as caught:
        file(path, *peppers).read()
    return str(caught.value)


def test_a_written_snapshot_is_read_back_exactly(path: Path) -> None:
    """Every field of keys and prices must survive to the microsecond; otherwise the first
    refresh would report changes.
    """
    moment = NOON + timedelta(microseconds=1)
    written = last(moment, prices={"gpt-eu": replace(price("0.1"), is_stand_in=True)})
    assert written.prices["gpt-eu"].bound, "what a price remembers of itself is not written"
    assert file(path).write(written)
    assert file(path).read() == written


def test_the_file_is_private_and_encrypted(path: Path) -> None:
    """A backup of the home must reveal neither the holders of keys nor the policy."""
    file(path).write(last())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    for secret in (
        b"payments",
        b"k123456789",
        b"a document",
        b"gpt-5.5",
        key().digest,
        PEPPER.secret,
    ):
        assert secret not in content
    assert [entry.name for entry in path.parent.iterdir()] == ["snapshot"]


def test_every_byte_counts(path: Path) -> None:
    """Damage to any byte is detected, and the gateway then starts as if there were no file."""
    file(path).write(last())
    good = path.read_bytes()
    for place in range(len(good)):
        for flipped in (0x01, 0x80):
            path.write_bytes(good[:place] + bytes([good[place] ^ flipped]) + good[place + 1 :])
            assert "damaged" in refused(path)
    path.write_bytes(good)
    assert file(path).read() == last()


def test_a_file_that_was_cut_or_lengthened_is_refused(path: Path) -> None:
    """A full disk or an interrupted copy leaves such a file."""
    file(path).write(last())
    good = path.read_bytes()
    for end in range(len(good)):
        path.write_bytes(good[:end])
        assert "damaged" in refused(path)
    path.write_bytes(good + b"\0")
    assert "damaged" in refused(path)


def test_a_later_time_cannot_be_written_over_an_old_one(path: Path) -> None:
    """An attacker who can write to the disk must not be able to make an old snapshot look new."""
    file(path).write(last(NOON - timedelta(days=30)))
    old = path.read_bytes()
    file(path).write(last(NOON))
    new = path.read_bytes()
    path.write_bytes(new[: len(MAGIC) + 8] + old[len(MAGIC) + 8 :])
    assert "damaged" in refused(path)


def test_another_pepper_opens_nothing(path: Path) -> None:
    """Another pepper belongs to another database. During a rotation, either of the two peppers
    opens the file.
    """
    file(path).write(last())
    assert "another pepper" in refused(path, OTHER)
    assert file(path, OTHER, PEPPER).read() == last()
    file(path, OTHER, PEPPER, now=NOON).write(last(NOON + timedelta(seconds=1)))
    assert "another pepper" in refused(path, PEPPER)


def test_two_files_of_the_same_snapshot_have_nothing_in_common(path: Path) -> None:
    """A repeated nonce would break AES-GCM's secrecy."""
    contents = []
    for _ in range(2):
        file(path).write(last())
        contents.append(path.read_bytes()[len(MAGIC) + 8 :])
    assert len(set(contents)) == 2
    assert contents[0][:12] != contents[1][:12]


def test_an_unreadable_file_is_refused(path: Path) -> None:
    """The file may be missing, a folder, or in a newer release's format."""
    assert "there is none at" in refused(path)
    path.mkdir(parents=True)
    assert "cannot be read" in refused(path)
    path.rmdir()
    path.write_bytes(b"tollgate snapshot 2\n" + bytes(100))
    assert "another version" in refused(path)


def test_contents_of_another_tollgate_are_refused(path: Path) -> None:
    """It is authentic, but contains a value that this release does not know."""
    file(path).write(last(version="seven"))
    assert "another version" in refused(path)


def test_an_older_snapshot_never_takes_the_place_of_a_newer_one(path: Path) -> None:
    """The slower of two workers may not know yet that a key was revoked."""
    newer, older = last(NOON, keys=()), last(NOON - timedelta(seconds=2))
    assert file(path).write(newer)
    assert file(path).write(older)
    assert file(path).read() == newer


def test_a_snapshot_from_the_future_makes_room(path: Path) -> None:
    """The clock was set back, so the file would be refused at every start until the clock
    reaches its time.
    """
    assert file(path, now=NOON + timedelta(hours=1)).write(last(NOON + timedelta(hours=1)))
    assert file(path).write(last(NOON))
    assert file(path).read() == last(NOON)


def test_only_one_worker_writes_at_a_time(path: Path) -> None:
    """The other workers do not wait for the writing worker, which may have been stopped in the
    middle.
    """
    path.parent.mkdir()
    handle = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert file(path).write(last()) is False
    assert not path.exists()
    os.close(handle)
    assert file(path).write(last()) is True


def test_the_temporary_file_of_a_killed_worker_is_no_hindrance(path: Path) -> None:
    """A worker may be killed between writing and renaming the file."""
    file(path).write(last(NOON - timedelta(seconds=1)))
    path.with_name("snapshot.new").write_bytes(b"half of")
    file(path).write(last())
    assert file(path).read() == last()
    assert [entry.name for entry in path.parent.iterdir()] == ["snapshot"]


def test_a_failed_write_leaves_no_old_snapshot(path: Path) -> None:
    """The old file may hold a key that has been revoked since."""
    file(path).write(last(NOON - timedelta(seconds=1)))
    path.with_name("snapshot.new").mkdir()  # fails like a full disk, also for root
    with pytest.raises(OSError, match="directory"):
        file(path).write(last(keys=()))
    assert not path.exists()
