"""Fixtures of the journal's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.storage.journal import Journal
from tests.journal.factories import a_journal

MakeJournal = Callable[..., Journal]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def make_journal(root: Path) -> Iterator[MakeJournal]:
    """Make small journals below `root`; those a test leaves open are closed."""
    made = []

    def make(**changes: Any) -> Journal:
        made.append(a_journal(root, **changes))
        return made[-1]

    yield make
    for journal in made:
        if not journal.is_closed:
            journal.close(is_drained=False)
