"""Looks for secrets that must never be kept: API keys in clear, upstream credentials, prompts and
completions.

Searched when a gateway of the tests has stopped, its database still there:

    log         everything the gateway printed, standard output and error
    home        every file below TOLLGATE_HOME, except `pepper` and `pg` (the database is searched as rows)
    database    every row of every table and view in the schemas `tollgate` and `finance`
    metrics     the last answer of `/metrics`

Searched for: every API key the tests made (whole, and its secret part alone), every upstream
credential they set, the canary that they put into prompts, and the one that the fake upstream puts
into its answers.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

PROMPT = "canary-prompt-5f0e9c41"
COMPLETION = "canary-completion-a7d20b3e"
UPSTREAM_SECRET = "canary-upstream-secret-91c3f0d8"
NOT_SEARCHED = ("pepper", "pg")


@dataclass
class Findings:
    """The searched places and the findings.

    A hit names the place and the kind of secret, never the secret.
    """

    places: int = 0
    searched_bytes: int = 0
    hits: list[str] = field(default_factory=list)

    def look(self, place: str, content: bytes, secrets: Iterable[tuple[str, str]]) -> None:
        """Search one place."""
        self.places += 1
        self.searched_bytes += len(content)
        self.hits += [f"{place}: {kind}" for kind, secret in secrets if secret.encode() in content]

    def add(self, other: Findings) -> None:
        """Add another process's search."""
        self.places += other.places
        self.searched_bytes += other.searched_bytes
        self.hits += other.hits

    def summary(self) -> str:
        """One line for the terminal."""
        if self.hits:
            return "LEAKED SECRETS: " + "; ".join(sorted(set(self.hits)))
        return f"canaries: 0 hits in {self.places} places ({self.searched_bytes:,} bytes)"


FINDINGS = pytest.StashKey[Findings]()  # of the whole run, in the configuration's stash


def secrets_of(keys: Iterable[str]) -> list[tuple[str, str]]:
    """Return the secrets to look for, with their kinds."""
    found = [
        ("a prompt", PROMPT),
        ("a completion", COMPLETION),
        ("an upstream credential", UPSTREAM_SECRET),
    ]
    for key in keys:
        found += [("an API key", key), ("the secret of an API key", key.rpartition("_")[2])]
    return found


def search(
    findings: Findings,
    *,
    home: Path,
    log: Path,
    database_url: str | None,
    metrics: str,
    keys: Iterable[str],
) -> None:
    """Search everything that one gateway left behind."""
    secrets = secrets_of(keys)
    findings.look("log", log.read_bytes() if log.exists() else b"", secrets)
    findings.look("metrics", metrics.encode(), secrets)
    for path in sorted(home.rglob("*")):
        if path.is_file() and path.relative_to(home).parts[0] not in NOT_SEARCHED:
            findings.look(f"home/{path.relative_to(home)}", path.read_bytes(), secrets)
    if database_url is not None:
        for table, content in dump(database_url):
            findings.look(f"table {table}", content, secrets)


def dump(database_url: str) -> Iterator[tuple[str, bytes]]:
    """Every table and view of ours as text."""
    with psycopg.connect(database_url) as connection:
        tables = connection.execute(
            "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.tables "
            "WHERE table_schema IN ('tollgate', 'finance') ORDER BY 1"
        ).fetchall()
        for (table,) in tables:
            rows = connection.execute(f"SELECT row::text FROM {table} AS row").fetchall()
            yield table, "\n".join(str(row) for (row,) in rows).encode()
