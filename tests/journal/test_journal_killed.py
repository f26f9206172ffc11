"""Real kills, a real full disk, a real failing sync: the kernel's remains, not a model's."""

from __future__ import annotations

import errno
import json
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from gateway.storage.journal import Damage, adopt_free, journals_on
from tests.journal.append_and_die import ATTEMPTS
from tests.journal.append_for_ever import intent_of, settlement_of
from tests.journal.break_the_disk import EXIT_CODE
from tests.journal.factories import adopted, key, settlements

REPOSITORY = Path(__file__).parents[2]
KILLS = 15
FAILS_AT = 7


def kill_one(root: Path, first: int, lines: int) -> dict[str, set[int]]:
    """Kill a worker after that many lines; return its printed numbers, by word."""
    program = [sys.executable, "-m", "tests.journal.append_for_ever", str(root), str(first)]
    reported: dict[str, set[int]] = defaultdict(set)
    with subprocess.Popen(program, stdout=subprocess.PIPE, cwd=REPOSITORY) as worker:
        assert worker.stdout is not None
        for count, line in enumerate(worker.stdout):
            word, number = line.split()
            reported[word.decode()].add(int(number))
            if count == lines:
                # it continues until the signal arrives; the rest of its output is read as well
                worker.kill()
    assert worker.returncode == -9
    return reported


def test_a_killed_worker_loses_nothing_and_books_nothing_twice(
    root: Path, rng: random.Random
) -> None:
    """Every acknowledged intent and every settlement is there or in Postgres; a record in
    Postgres is not open.
    """
    met = defaultdict(int)
    for round_number in range(KILLS):
        lines = rng.randrange(20, 6000)
        reported = kill_one(root, round_number * 10**6, lines)
        found = adopted(root)
        delivered = dict(settlements(found.settlements))
        opened = found.recovered.open_intents
        print(
            f"round {round_number}: killed after {lines} lines; {len(delivered)} settlements, "
            f"{len(opened)} open"
        )
        written = {key(number) for number in reported["written"]}
        assert {
            key(number) for number in reported["acked"]
        } <= delivered.keys() | opened.keys() | written
        assert {key(number) for number in reported["settled"]} <= delivered.keys() | written
        assert not opened.keys() & (delivered.keys() | written)
        assert all(payload == settlement_of(name[0].int) for name, payload in delivered.items())
        assert all(payload == intent_of(name[0].int) for name, payload in opened.items())
        assert found.recovered.progress
        assert found.recovered.damage.quarantined_records == 0
        met["torn"] += found.recovered.damage.torn_tails
        met["open"] += len(opened)
        met["let go"] += not (found.directory / "00000001.segment").exists()
        found.finish()
        assert journals_on(root) == []
    print(f"met: {dict(met)}")
    assert met["open"]
    assert met["let go"]  # kills came while segments were let go, not only before


def test_a_kill_loses_nothing_that_was_appended_even_before_the_first_sync(root: Path) -> None:
    """A settlement is promised when `settle` returns: nothing may wait in the process for a
    later write.
    """
    program = [sys.executable, "-m", "tests.journal.append_and_die", str(root)]
    assert subprocess.run(program, cwd=REPOSITORY, timeout=60).returncode == -signal.SIGKILL
    found = adopted(root)
    assert dict(settlements(found.settlements)) == {
        key(n): settlement_of(n) for n in range(0, ATTEMPTS, 2)
    }
    assert found.recovered.open_intents == {key(n): intent_of(n) for n in range(1, ATTEMPTS, 2)}
    assert found.recovered.damage == Damage()
    assert (found.directory / "00000003.segment").exists()
    found.finish()


def can_trace(folder: Path) -> bool:
    """Whether strace is installed and allowed here."""
    strace = shutil.which("strace")
    return (
        strace is not None
        and subprocess.run([strace, "-o", folder / "probe", "true"]).returncode == 0
    )


def test_a_failed_sync_ends_the_process_and_acknowledges_nothing(
    root: Path, tmp_path: Path
) -> None:
    """The kernel itself answers EIO (by strace, if installed): one call, no second, no
    acknowledgement.
    """
    program = [sys.executable, "-m", "tests.journal.break_the_disk", str(root)]
    trace = tmp_path / "trace"
    is_traced = can_trace(tmp_path)
    if is_traced:
        inject = f"inject=fdatasync:error=EIO:when={FAILS_AT}+"
        program = [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(trace),
            "-e",
            "trace=fdatasync",
            "-e",
            inject,
            *program,
        ]
    else:
        program.append(str(FAILS_AT))
    ended = subprocess.run(program, cwd=REPOSITORY, capture_output=True, timeout=60)
    assert ended.returncode == EXIT_CODE, ended.stderr.decode()
    acked = [
        int(line.split()[1]) for line in ended.stdout.splitlines() if line.startswith(b"acked")
    ]
    assert acked == list(range(FAILS_AT - 1))
    assert ended.stdout.splitlines()[-1] == b"errno %d" % errno.EIO
    if is_traced:
        assert trace.read_text().count("INJECTED") == 1
    found = adopted(root)
    assert {key(number) for number in acked} <= found.recovered.open_intents.keys()
    found.finish()
    assert adopt_free(root) == []


def test_a_full_volume_refuses_intents_and_takes_every_settlement(tmp_path: Path) -> None:
    """A volume of 4 MiB that another program fills to the last byte while attempts are in
    flight.
    """
    volume = tmp_path / "volume"
    volume.mkdir()
    mount = f'mount -t tmpfs -o size=4m tmpfs "{volume}" && exec "$@"'
    enter = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*enter, "true"], capture_output=True).returncode
    ):
        pytest.skip(
            "needs Linux mount namespaces; test_a_disk_without_space_refuses_intents covers "
            "the refusal itself"
        )
    program = [*enter, sys.executable, "-m", "tests.journal.fill_the_disk", str(volume / "journal")]
    ended = subprocess.run(program, cwd=REPOSITORY, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr.decode()
    reported = json.loads(ended.stdout)
    admitted = reported.pop("admitted")
    assert admitted > 20
    assert reported == {
        "delivered": admitted,
        "longest": True,
        "is_full": True,
        "progress_misses": 1,
        "open": 0,
    }
