"""Small things that a process leaves behind: core files, exports that all may read, an author who
is somebody else, and amounts that were rounded away line by line.
"""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from dashboard.access import ANYONE, _name_of
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.domain.alerts.delivery import AlertMessage, AttachedFile
from gateway.domain.reconciliation.bills import BillFileKind
from gateway.providers.alerts.folder import write_files
from gateway.wire.bills.exports.readers import parse_export

HEADER = b"day,account,model,token_kind,quantity,amount,currency\n"
# Prints the limit of core files of a process that started `tollgate`, and of its child.
LIMITS = """
import resource, subprocess, sys
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
from gateway import main
sys.argv = ["tollgate", "--version"]
try:
    main.run()
except SystemExit:
    pass
print(resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
subprocess.run([sys.executable, "-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CORE)[0])"])
"""  # noqa: E501


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Set the mask of new files' modes for the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    """Return a file's mode."""
    return stat.S_IMODE(path.stat().st_mode)


def test_no_process_leaves_a_core_file() -> None:
    """A core has the pepper and provider keys; `ulimit -c unlimited` is a usual setting."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITS],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split()[-2:] == ["0", "0"]


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_new_export_is_its_owners_alone(tmp_path: Path, mask: int) -> None:
    """Under umask 000 every user could change the export that finance loads."""
    new, shared = tmp_path / "new.csv", tmp_path / "shared.csv"
    shared.touch()
    shared.chmod(0o644)
    with umask(mask):
        for path in (new, shared):
            with replaced_file(path) as out:
                out.write(b"x")
    assert (mode(new), mode(shared)) == (0o600, 0o644)


def test_a_scheduled_statement_is_for_no_other_user(tmp_path: Path) -> None:
    """A group may fetch it from the folder; the umask of a container is often 000."""
    file = AttachedFile(name="a.pdf", media_type="application/pdf", content=b"%PDF")
    with umask(0):
        asyncio.run(write_files(message_with(file), str(tmp_path)))
    assert mode(tmp_path / "a.pdf") == 0o640


def message_with(file: AttachedFile) -> AlertMessage:
    """Return a message that has a file."""
    raised_at = datetime(2026, 11, 28, tzinfo=UTC)
    return AlertMessage(
        alert_id=UUID(int=1), raised_at=raised_at, about="a", text="t", payload={}, files=(file,)
    )


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"email": "cfo@example.com", "sub": "7"}, "cfo@example.com"),
        ({"email": "cfo@example.com", "email_verified": True, "sub": "7"}, "cfo@example.com"),
        ({"email": "cfo@example.com", "email_verified": "true", "sub": "7"}, "cfo@example.com"),
        ({"email": "cfo@example.com", "email_verified": False, "sub": "7"}, "7"),
        ({"email": "cfo@example.com", "email_verified": "false", "sub": "7"}, "7"),
        ({"email": "cfo@example.com", "email_verified": None, "sub": "7"}, "7"),
        (
            {
                "email": "a@b.example",
                "preferred_username": "cfo@example.com",
                "email_verified": False,
                "sub": "7",
            },
            "7",
        ),
        ({"preferred_username": "ada", "sub": "7"}, "ada"),
        ({}, "unknown"),
    ],
)
def test_the_author_of_books_has_a_verified_address(claims: dict[str, object], name: str) -> None:
    """Whoever may write an address into an account could close a month as somebody else."""
    assert _name_of(claims) == name
    assert ANYONE.person is None


def lines(amounts: list[str]) -> Iterator[bytes]:
    """Yield an export with these amounts on one day."""
    yield HEADER
    for amount in amounts:
        yield f"2026-10-01,a,m,input,1,{amount},USD\n".encode()


@pytest.mark.parametrize(
    ("amounts", "nusd"),
    [
        (["0.0000000005"] * 100_000, 50_000),
        (["0.0000000004"] * 100_000, 40_000),
        (["-0.0000000005"] * 1_000 + ["1"], 10**9 - 500),
        (["0.000000000000000000000000000001"] * 10, 0),
        (["1000000000", "0.0000000005", "0.0000000005"], 10**18 + 1),
    ],
)
def test_the_lines_of_a_bill_are_added_before_they_are_rounded(
    amounts: list[str], nusd: int
) -> None:
    """A million lines of half a nano-dollar were 0."""
    found = parse_export(lines(amounts), kind=BillFileKind.CSV, name="f", account=None)
    assert found.amount_nusd == nusd
    exact = sum(map(Decimal, amounts))
    assert abs(Decimal(found.amount_nusd) - exact * 10**9) <= Decimal("0.5")


def test_tiny_costs_of_json_exports_are_no_empty_days() -> None:
    """An amount below half a nano-dollar looked like none, so its line was passed over."""
    bucket = (
        b'{"object":"page","has_more":false,"data":[{"object":"bucket","start_time":1790812800,'
        b'"end_time":1790899200,"results":[%b]}]}'
    )
    one = (
        b'{"object":"organization.costs.result","amount":{"value":4e-10,"currency":"usd"},'
        b'"line_item":"gpt-5.5, input","project_id":"p"}'
    )
    pages = [bucket % b",".join([one] * 1000)]
    found = parse_export(pages, kind=BillFileKind.OPENAI_COSTS, name="f", account="a")
    assert found.amount_nusd == 400
