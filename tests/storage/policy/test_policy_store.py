"""Applied policies: numbered, immutable and applied one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from gateway.errors import BadUsage
from gateway.storage.policy.policies import PolicyStore
from gateway.storage.postgres.database import Database


def _apply(
    store: PolicyStore, document: str, *, expected: int | None = None, is_demo: bool = False
) -> int:
    return store.apply(
        document,
        sha256=sha256(document.encode()).hexdigest(),
        author="ada",
        message="why",
        is_demo=is_demo,
        expected_version=expected,
    )


def test_before_the_first_apply_there_is_no_policy(database: Database) -> None:
    """A new gateway is not ready yet, but its database is not at fault."""
    store = PolicyStore(database)
    assert store.current() is None
    assert store.get(1) is None
    assert store.history() == []


def test_versions_count_up_and_keep_their_documents(database: Database) -> None:
    """An event refers to its policy version for years."""
    store = PolicyStore(database)
    first, second = _apply(store, "version: 1 # é\r\n"), _apply(store, "b")
    assert (first, second) == (1, 2)
    current, old = store.current(), store.get(1)
    assert current is not None
    assert old is not None
    assert (current.version, current.document) == (2, "b")
    assert (old.document, old.sha256) == (
        "version: 1 # é\r\n",
        sha256("version: 1 # é\r\n".encode()).hexdigest(),
    )
    assert (old.author, old.message, old.is_demo) == ("ada", "why", False)
    assert [policy.version for policy in store.history()] == [2, 1]


def test_applying_the_current_document_again_changes_nothing(database: Database) -> None:
    """A pipeline that runs twice must make no second version. It must not fail because the
    version has changed since.
    """
    store = PolicyStore(database)
    assert _apply(store, "a", expected=0) == 1
    assert _apply(store, "a", expected=0) == 1
    assert _apply(store, "b") == 2
    assert _apply(store, "a") == 3  # going back is a change
    assert _apply(store, "a", is_demo=True) == 4


def test_a_stale_apply_is_refused_by_name(database: Database) -> None:
    """The second of two admins must see the first one's change before overwriting it."""
    store = PolicyStore(database)
    _apply(store, "a")
    _apply(store, "b", expected=1)
    with pytest.raises(
        BadUsage,
        match=r"current policy is version 2, applied by ada at .*, not 1\. Nothing changed",
    ):
        _apply(store, "c", expected=1)
    assert len(store.history()) == 2


def test_of_applies_at_the_same_time_one_wins(database: Database) -> None:
    """Both started from version 1, but only one of them can replace it."""
    store = PolicyStore(database)
    _apply(store, "a")

    def apply(n: int) -> int | str:
        try:
            return _apply(store, f"document {n}", expected=1)
        except BadUsage as refused:
            return str(refused)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(apply, range(6)))
    assert [result for result in results if isinstance(result, int)] == [2]
    assert all("version 2" in result for result in results if isinstance(result, str))
    assert len(store.history()) == 2
