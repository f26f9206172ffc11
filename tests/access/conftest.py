"""A database with foreign rows, as the readers of the own teams see it, and its twin without
them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.reports.reports import Reports, open_reports
from gateway.reports.scope import WHOLE_ORGANISATION, Scope
from gateway.storage.postgres.database import Database
from tests.access.planted import OWN, fill
from tests.postgres import _Database


@pytest.fixture(scope="package")
def planted_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """Yield the URL of a database with own and foreign rows."""
    with _Database(postgres_url, "tollgate_planted", template=migrated_template) as url:
        database = Database(url)
        fill(database, has_foreign=True)
        database.close()
        yield url


@pytest.fixture(scope="package")
def twin_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """Yield the URL of the same database, which never had the foreign rows."""
    with _Database(postgres_url, "tollgate_twin", template=migrated_template) as url:
        database = Database(url)
        fill(database, has_foreign=False)
        database.close()
        yield url


@pytest.fixture(scope="package")
def seen(planted_url: str) -> Iterator[Reports]:
    """Yield the reports as the readers of the own teams see them."""
    with open_reports(planted_url, scope=Scope.of_teams(OWN)) as opened:
        yield opened


@pytest.fixture(scope="package")
def twin(twin_url: str) -> Iterator[Reports]:
    """Yield the reports of the twin, of every row."""
    with open_reports(twin_url, scope=WHOLE_ORGANISATION) as opened:
        yield opened
