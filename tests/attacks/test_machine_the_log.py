"""Standard error was on the way of every request: a reader of the log that stopped stopped the
gateway, a full device kept it from starting, and a stranger wrote a megabyte a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from gateway.cli.up.children import Children
from gateway.storage.postgres.disk_use import turn_log_over
from gateway.telemetry.log_writer import LogWriter
from gateway.telemetry.logs import line_about_dropped
from tests import plain_http
from tests.attacks.raw_callers import CHAT, answer, connected, question, request, two_teams
from tests.gateway_process import REPOSITORY, FakeUpstreamProcess, Gateway, StartGateway
from tests.waiting import eventually

ASKED = 200  # their lines take 80 kB; the pipe takes 4


@contextmanager
def logging_to(gateway: Gateway, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a stopped gateway's command again, with another standard error."""
    argv = [sys.executable, "-m", "gateway.main", "serve"]
    with subprocess.Popen(
        argv, env=dict(gateway.variables), cwd=REPOSITORY, stderr=stderr
    ) as process:
        gateway.process = process
        try:
            eventually(lambda: is_ready(gateway), "the gateway", within_s=60)
            yield process
        finally:
            process.terminate()
            process.wait(60)


def is_ready(gateway: Gateway) -> bool:
    """Return True if the gateway takes traffic."""
    with contextlib.suppress(httpx2.HTTPError):
        url = f"http://127.0.0.1:{gateway.port}/readyz"
        return plain_http.get(url, timeout=5).status_code == 200
    return False


def asked(gateway: Gateway, count: int) -> list[int]:
    """Return the statuses of this many chats on one connection."""
    with connected(gateway) as caller:
        statuses = []
        for _ in range(count):
            caller.sendall(request(gateway, question()))
            statuses.append(answer(caller)[0])
    return statuses


@pytest.fixture
def stopped(start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess) -> Gateway:
    """Return a gateway that was started and stopped."""
    gateway: Gateway = start_gateway(two_teams(f"{fake_upstream.url}/v1"))
    gateway.stop()
    return gateway


def test_a_reader_that_stops_reading_stops_no_request(stopped: Gateway) -> None:
    """The event loop stood in `write`, and `/healthz` with it, until somebody read."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(reads, "rb") as log, logging_to(stopped, writes) as process:
        os.close(writes)
        assert asked(stopped, ASKED) == [200] * ASKED
        # Nothing is lost either, as long as the buffer holds it.
        requests = 0
        while requests < ASKED:
            line = json.loads(log.readline())
            requests += line["event"] == "request"
            assert line["event"] != "log_lines_dropped"
        process.terminate()
        assert process.wait(60) == 0


def test_a_stopped_reader_does_not_hold_up_the_stop(stopped: Gateway) -> None:
    """A deployment would wait for its grace period, and then kill the process."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    with logging_to(stopped, writes) as process:
        os.close(writes)
        assert asked(stopped, 50) == [200] * 50
        process.terminate()
        assert process.wait(30) == 0
    os.close(reads)


def test_a_full_device_stops_neither_start_nor_requests(stopped: Gateway) -> None:
    """`serve` ended with 1 at its first line."""
    with open("/dev/full", "wb") as full, logging_to(stopped, full.fileno()) as process:
        assert asked(stopped, 5) == [200] * 5
        dropped = [
            float(line.split()[1])
            for line in eventually(stopped.metrics, "metrics").splitlines()
            if line.startswith("tollgate_log_lines_dropped_total")
        ]
        assert dropped
        assert dropped[0] >= 1
        process.terminate()
        assert process.wait(60) == 0


def test_a_stranger_writes_a_count_and_no_lines(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess
) -> None:
    """3,000 requests with a wrong key wrote 645 kB in 0.6 s."""
    gateway = start_gateway(two_teams(f"{fake_upstream.url}/v1"))
    before = len(gateway.log_lines())
    with connected(gateway) as stranger:
        for number in range(ASKED):
            key = f"authorization: Bearer tk_{number:012}_x\r\n" if number % 2 else ""
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{key}content-length: 2\r\n\r\n{{}}"
            stranger.sendall(head.encode())
            assert answer(stranger)[0] == 401
    with connected(gateway) as caller:
        caller.sendall(request(gateway, question()))
        assert answer(caller)[0] == 200
    gateway.stop()
    lines = gateway.log_lines()[before:]
    counted = [line for line in lines if line["event"] == "refused_without_key"]
    assert sum(line["requests"] for line in counted) == ASKED
    assert len(counted) < ASKED / 4
    assert {(line["status"], line["error"]) for line in counted} <= {
        (401, "invalid_api_key"),
        (401, "missing_api_key"),
    }
    assert all(line["last_request_id"] for line in counted)
    assert [line["team"] for line in lines if line["event"] == "request"] == ["red"]


def test_lines_beyond_the_buffer_are_dropped_and_counted() -> None:
    """An unbounded buffer would move the fault from the pipe to the memory."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    dropped: list[int] = []
    writer = LogWriter(writes, most_bytes=20_000, line_about=line_about_dropped)
    writer.on_dropped = dropped.append
    line = b"x" * 999 + b"\n"
    for _ in range(100):
        writer.write(line)
    assert 70 <= sum(dropped) <= 85
    with os.fdopen(reads, "rb") as log:
        closing = threading.Thread(target=writer.close, args=(60,))
        closing.start()
        written = [log.readline() for _ in range(101 - sum(dropped))]
        closing.join()
        said = [json.loads(one) for one in written if one != line]
    assert [(one["event"], one["lines"]) for one in said] == [("log_lines_dropped", sum(dropped))]
    os.close(writes)


def test_a_closed_pipe_costs_lines_and_raises_nothing() -> None:
    """`serve | head` is no reason to end, and no reason to spin."""
    reads, writes = os.pipe()
    os.close(reads)
    dropped: list[int] = []
    writer = LogWriter(writes, line_about=line_about_dropped)
    writer.on_dropped = dropped.append
    writer.write(b"one\ntwo\n")
    writer.close()
    os.close(writes)
    assert dropped == [2]


def test_the_logs_of_up_stay_small(tmp_path: Path) -> None:
    """They grew until the journal's disk was full, which is 503 for every caller."""
    children = Children(tmp_path / "logs", most_log_bytes=100_000)
    flood = (
        "import pathlib, time\n"
        "for number in range(4_000): print(number, 'x' * 50, flush=True)\n"
        "pathlib.Path('FOLDER/written').touch()\n"
        "while not pathlib.Path('FOLDER/go').exists(): time.sleep(0.05)\n"
        "print('later', flush=True)"
    ).replace("FOLDER", str(tmp_path))
    children.start("flood", [sys.executable, "-c", flood], {}, may_end=True)
    log = children.log_path("flood")
    eventually((tmp_path / "written").exists, "the flood", within_s=60)
    children.require_alive()
    assert log.stat().st_size == 0
    assert log.with_suffix(".log.1").read_bytes().count(b"\n") == 4_000
    (tmp_path / "go").touch()
    children.finish("flood")
    children.stop()
    # At the beginning of the file: a child that kept its position would leave a hole before it.
    assert log.read_text() == "later\n"


def test_the_log_of_the_database_stays_small(tmp_path: Path) -> None:
    """Each process that uses the embedded server turns it over, with `up` and without."""
    other = tmp_path / "server.log"
    other.write_bytes(b"y" * 300_000)
    turn_log_over(other, most_bytes=100_000)
    assert other.stat().st_size == 0
    assert other.with_suffix(".log.1").stat().st_size == 300_000
