"""The thread that syncs: a note wakes it, whether it has just begun to wait or sleeps."""

from __future__ import annotations

import pytest

from gateway.storage.journal.group_commit import GroupCommit
from tests.waiting import soon


@pytest.mark.parametrize("is_asleep", [False, True])
async def test_a_note_is_committed_however_long_nothing_was_asked_before(is_asleep: bool) -> None:
    """A settlement is noted without a waiter: on a quiet night it must not wait for the next
    request.
    """
    commits: list[int] = []
    looks: list[int] = []
    group = GroupCommit(
        lambda: commits.append(1), on_failure=lambda error: None, on_idle=lambda: looks.append(1)
    )
    if is_asleep:
        await soon(lambda: bool(looks), "the thread's first look at rest")
    group.request_commit()
    await soon(lambda: bool(commits), "the commit")
    assert group.stop(10)
