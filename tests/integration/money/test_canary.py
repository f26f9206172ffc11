"""The search for secrets finds planted ones: a search that never finds anything proves nothing."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests import factories
from tests.canary import COMPLETION, PROMPT, UPSTREAM_SECRET, Findings, dump, search


def found(home: Path, log: Path, *, metrics: str = "", database_url: str | None = None) -> set[str]:
    findings = Findings()
    search(
        findings,
        home=home,
        log=log,
        database_url=database_url,
        metrics=metrics,
        keys=[factories.key()],
    )
    assert findings.places >= 2
    return set(findings.hits)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    made = tmp_path / "home"
    (made / "run").mkdir(parents=True)
    return made


def test_a_secret_planted_in_a_file_or_text_is_found(home: Path, tmp_path: Path) -> None:
    """Secrets may leak into a log line, a file of the home or a metric's label."""
    log = tmp_path / "log"
    log.write_text(f'{{"event":"oops","prompt":"{PROMPT}"}}\n')
    (home / "run" / "state.json").write_text(factories.key())
    hits = found(home, log, metrics=f'x{{key="{UPSTREAM_SECRET}"}} 1')
    assert hits == {
        "log: a prompt",
        "home/run/state.json: an API key",
        "home/run/state.json: the secret of an API key",
        "metrics: an upstream credential",
    }


def test_a_secret_planted_in_a_row_is_found(home: Path, tmp_path: Path, database_url: str) -> None:
    """Every table and view is searched, with any names of columns."""
    assert found(home, tmp_path / "none", database_url=database_url) == set()
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO tollgate.policies (sha256, document, author, message, is_demo) VALUES "
            "('', %s, '', '', false)",
            (COMPLETION,),
        )
    assert found(home, tmp_path / "none", database_url=database_url) == {
        "table tollgate.policies: a completion",
        "table finance.policy_versions: a completion",
    }


def test_the_search_reads_the_tables_there_are(database_url: str) -> None:
    """After a rename of the schema, the search would find nothing and still pass."""
    names = {name for name, _ in dump(database_url)}
    assert {"tollgate.usage_events", "tollgate.api_keys", "finance.usage_events"} <= names


def test_a_finding_gives_the_place_and_never_the_secret() -> None:
    """The finding itself is written to a log, so it must not contain the secret."""
    findings = Findings(hits=["log: a prompt"])
    assert findings.summary() == "LEAKED SECRETS: log: a prompt"
    assert PROMPT not in findings.summary()
