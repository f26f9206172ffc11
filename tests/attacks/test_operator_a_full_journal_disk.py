"""A disk that the journal filled in an outage let no gateway start again, while readiness called it
6 % full.

Found by an attacker who simulated an operator of a failing system, on 2026-11-23: 6,000 settled
events lay on the disk and Postgres was back. The error advised freeing the very space that they
used.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.money.test_gateway_budgets import ask
from tests.integration.policy import small
from tests.integration.postgres_gate import PostgresGate

SIZE_MIB = 20  # a new journal takes 16


@dataclass(frozen=True)
class Disk:
    """A separate small disk, which lasts as long as the process that mounted it."""

    holder: subprocess.Popen[bytes]
    path: Path  # as seen by processes inside its namespace

    @property
    def enter(self) -> tuple[str, ...]:
        """Return the start of a command whose process can see the disk."""
        return (
            "nsenter",
            "--user",
            "--mount",
            "--preserve-credentials",
            "-t",
            str(self.holder.pid),
        )

    @property
    def seen_from_here(self) -> Path:
        """Return the same folder's path for the test, which does not see the mount."""
        return Path(f"/proc/{self.holder.pid}/root{self.path}")

    def fill(self) -> None:
        """Fill the disk to its last byte."""
        with (self.seen_from_here / "other data").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                return


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """Yield a disk in a mount namespace: no other process sees it, and no rights are needed."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = (
        f'mount -t tmpfs -o size={SIZE_MIB}m tmpfs "{path}" && echo mounted && exec sleep infinity'
    )
    if not shutil.which("unshare"):
        pytest.skip(
            "needs Linux mount namespaces; tests/journal/test_journal.py covers the refusal itself"
        )
    holder = subprocess.Popen(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", mount],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("mount namespaces are not allowed here")
        yield Disk(holder, path)
    finally:
        holder.kill()
        holder.communicate()


@pytest.fixture
def admission(database_url: str) -> Iterator[PostgresGate]:
    """Yield a gate in front of this test's database."""
    admission = PostgresGate(database_url)
    yield admission
    admission.close()


def test_old_journals_are_written_before_a_new_one_is_created(
    small_disk: Disk,
    admission: PostgresGate,
    start_gateway: StartGateway,
    fake_upstream: FakeUpstreamProcess,
) -> None:
    """Without Postgres the start names the next step, and warns that no file there may be
    deleted.
    """
    gateway = start_gateway(
        small(fake_upstream.url),
        database_url=admission.url,
        enter=small_disk.enter,
        journal_dir=small_disk.path,
    )
    admission.shut()
    asked = [ask(gateway, model="vllm", fake="out=40").headers["x-request-id"] for _ in range(5)]
    small_disk.fill()
    ready = plain_http.get(f"http://127.0.0.1:{gateway.port}/readyz", timeout=10).json()
    (journal,) = [check for check in ready["checks"] if check["check"] == "journal"]
    assert journal["status"] == "warn", journal
    assert "its disk has room for" in journal["finding"], journal
    gateway.stop(signal.SIGKILL)

    with pytest.raises(AssertionError, match="Delete nothing below"):
        gateway.start()
    admission.open()
    gateway.start()
    for request_id in asked:
        (event,) = gateway.events(request_id)
        assert (event["outcome"], event["usage_source"]) == ("ok", "provider")
    assert len(list(small_disk.seen_from_here.glob("*-*"))) == 1
