"""The finance guides are run as they stand, and print what they show.

`TOLLGATE_WRITE_GUIDES=1` writes the output of this run into the guides.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import build_app
from gateway.main import build_toolbox
from gateway.settings import Settings
from tests.guides.console import Run, blocks_of, rewritten, run_blocks
from tests.postgres import _Database

GUIDES = Path(__file__).parents[2] / "docs/guides"
CLOSE, RECONCILE = GUIDES / "month-close.md", GUIDES / "reconcile.md"
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)  # the demo organisation ends on the day before
SETUP = 2  # blocks of the first guide that make the ledger and apply its policy
IS_WRITING = "TOLLGATE_WRITE_GUIDES" in os.environ


@dataclass(frozen=True, slots=True)
class Practice:
    """A database with the demo ledger of the guides, and the folder of its files."""

    database: str
    folder: Path


def runner(home: Path, url: str) -> Run:
    """Return a function that runs a command on a database, as a terminal shows it."""
    plain = Settings(home=home, database_url=url)

    def run(words: Sequence[str], is_finances: bool) -> str:
        settings = plain
        if is_finances:
            login = run(["db", "url", "--as", "finance"], False).strip()
            settings = Settings(home=home, database_url=url, finance_database_url=login)
        toolbox = replace(build_toolbox(settings), now=lambda: NOW)
        return CliRunner().invoke(build_app(toolbox), list(words)).output

    run(["db", "upgrade"], False)
    return run


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Let the guide's commands find its files."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def practice(
    postgres_url: str, migrated_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Practice]:
    """Run the first blocks of the guide."""
    folder, name = tmp_path_factory.mktemp("practice"), f"tollgate_practice_{os.getpid()}"
    guide = CLOSE.read_text()
    with _Database(postgres_url, name, template=migrated_template) as url, inside(folder):
        run = runner(folder / "home", url)
        if IS_WRITING:
            CLOSE.write_text(rewritten(guide, run, blocks=range(SETUP)))
        else:
            run_blocks(blocks_of(guide)[:SETUP], run)
        yield Practice(name, folder)


@pytest.fixture
def on_a_copy(practice: Practice, postgres_url: str, tmp_path: Path) -> Iterator[Run]:
    """A copy of the ledger and of its files for one guide."""
    folder = tmp_path / "copy"
    shutil.copytree(practice.folder, folder, ignore=shutil.ignore_patterns("home"))
    name = f"{practice.database}_{tmp_path.name}"[:60]
    with _Database(postgres_url, name, template=practice.database) as url, inside(folder):
        yield runner(folder / "home", url)


@pytest.mark.parametrize(("guide", "first"), [(CLOSE, SETUP), (RECONCILE, 0)])
def test_a_guide_prints_what_it_shows(on_a_copy: Run, guide: Path, first: int) -> None:
    """A person who practises along sees each step as it is in the guide."""
    text = guide.read_text()
    if IS_WRITING:
        blocks = range(first, len(blocks_of(text)))
        guide.write_text(rewritten(text, on_a_copy, blocks=blocks))
        return
    blocks_here = blocks_of(text)
    assert all(step.printed for block in blocks_here for step in block), "an output is missing"
    run_blocks(blocks_here[first:], on_a_copy)
