"""Ejections and refusals in Postgres: one in force at a time, repeatable counts, and the rights
of each role.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import text

from gateway.domain.residency.stated_place import Contradiction
from gateway.domain.routing.refusal_count_key import RefusalCountKey
from gateway.errors import DatabaseUnavailable
from gateway.storage.budgets.refusals import RefusalStore
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.policy.audit import AuditLog
from gateway.storage.postgres.database import Database
from tests.factories import REQUEST_ID

FOUND = Contradiction(deployment="gpt-eu", promised="eu", stated="us")
HOUR = datetime(2026, 11, 22, 10, tzinfo=UTC)
REFUSED = RefusalCountKey(
    HOUR,
    "payments",
    "assistant",
    "confidential",
    "residency_denied",
    ("class:confidential", "tag:phi"),
)


@pytest.fixture
def gateway(database_url: str) -> Iterator[Database]:
    """Yield the database in the gateway's role."""
    opened = Database(database_url, role="tollgate_gateway")
    yield opened
    opened.close()


@pytest.fixture
def admin(database_url: str) -> Iterator[Database]:
    """Yield the database in the role of a command."""
    opened = Database(database_url, role_if_member="tollgate_admin", operator="ada")
    yield opened
    opened.close()


def test_one_is_in_force_until_a_person_readmits_it(gateway: Database, admin: Database) -> None:
    """Two replicas detect the same false region. The second report changes nothing, and neither
    replica can readmit the deployment.
    """
    for attempt in (1, 2):
        EjectionStore(gateway).eject(FOUND, request_id=REQUEST_ID, attempt=attempt)
    assert EjectionStore(gateway).stated_places() == {"gpt-eu": "us"}
    with pytest.raises(DatabaseUnavailable, match="permission"):
        EjectionStore(gateway).readmit("gpt-eu", by="the gateway", reason="it wants to")
    assert EjectionStore(admin).readmit("gpt-eu", by="ada", reason="a wrong header")
    assert not EjectionStore(admin).readmit("gpt-eu", by="ada", reason="again")
    assert EjectionStore(gateway).stated_places() == {}
    now = datetime.now(UTC)
    (kept,) = EjectionStore(admin).between(now - timedelta(hours=1), now + timedelta(hours=1))
    assert (kept.attempt, kept.readmitted_by, kept.reason) == (1, "ada", "a wrong header")
    assert EjectionStore(admin).between(now - timedelta(days=9), now - timedelta(days=8)) == []


def test_both_acts_are_in_the_audit_log(gateway: Database, admin: Database) -> None:
    """An ejection moves money and data, so a year later the log must still show who readmitted
    the deployment.
    """
    EjectionStore(gateway).eject(FOUND, request_id=REQUEST_ID, attempt=1)
    EjectionStore(admin).readmit("gpt-eu", by="ada", reason="a wrong header")
    acts = AuditLog(admin).acts(since=None, action="deployment.", subject="gpt-eu")
    assert [act.action for act in acts] == ["deployment.eject", "deployment.update"]
    assert (acts[1].operator, acts[1].reason) == ("ada", "a wrong header")


def test_a_count_that_is_written_twice_is_the_same(gateway: Database, database: Database) -> None:
    """A repeat after a lost answer must not double an hour's refusals."""
    mine, theirs = uuid4(), uuid4()
    for requests in (3, 3, 5, 4):
        RefusalStore(gateway).write(mine, {REFUSED: requests})
    RefusalStore(gateway).write(theirs, {REFUSED: 2})
    with database.begin() as connection:
        rows = connection.execute(text("SELECT team, rules, requests FROM finance.refusals")).all()
    assert [tuple(row) for row in rows] == [("payments", ["class:confidential", "tag:phi"], 7)]
