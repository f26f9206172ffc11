"""A ledger of September and October for the tests of statements: two cost centres, a shared team,
adjustments with reasons, and a policy with titles and owners.
"""

from __future__ import annotations

from datetime import UTC, date, datetime

from sqlalchemy import text

from gateway.domain.policy.allocation import PolicyAllocation
from gateway.domain.policy.cost_centres import CostCentreShare
from gateway.storage.allocation.policy_allocation import write_allocation
from gateway.storage.ledger.ledger import Ledger
from gateway.storage.postgres.database import Database
from tests.allocation.applied_policies import centre as share_of
from tests.policy.documents import EXAMPLE
from tests.storage.factories import event

SEPTEMBER, OCTOBER = date(2026, 9, 1), date(2026, 10, 1)
FIRST = datetime(2026, 8, 1, tzinfo=UTC)
SHARES = {"payments": (share_of("CC-1207", "0.75"), share_of("CC-0042", "0.25"))}
REASON = 'invoice <b>4711</b> & "more"'
_POLICY = """
INSERT INTO tollgate.policies (sha256, document, author, message, is_demo, applied_at)
VALUES (:title, :document, 'ada', '', false, :at) RETURNING version
"""
_ADJUST = """
INSERT INTO tollgate.adjustments (adjustment_id, team, cost_centre, posted_period, occurred_at,
  amount_nusd, kind, reason, author)
VALUES (gen_random_uuid(), 'payments', 'CC-1207', :month, :month, :amount, :kind, :reason, 'ada')
"""


def declare(
    database: Database,
    title: str,
    *,
    at: datetime = FIRST,
    shares: dict[str, tuple[CostCentreShare, ...]] = SHARES,
) -> None:
    """Apply a policy in which CC-0042 has a title and an owner."""
    centre = f'{{name: CC-0042, title: "{title}", owner: ana@example.com}}'
    document = f"{EXAMPLE}cost_centres:\n  - {centre}\n"
    with database.begin() as connection:
        values = {"title": title, "document": document, "at": at}
        version = connection.execute(text(_POLICY), values).scalar_one()
        allocation = PolicyAllocation(cost_centres=shares, idle={})
        write_allocation(connection, allocation, policy_version=version)


def adjust(
    database: Database, month: date, amount: int, *, kind: str = "resolution", reason: str = REASON
) -> None:
    """Book an adjustment of team payments."""
    values = {"month": month, "amount": amount, "kind": kind, "reason": reason}
    with database.begin() as connection:
        connection.execute(text(_ADJUST), values)


def moment(month: date, day: int = 5) -> datetime:
    """Return noon of a day of a month."""
    return datetime(month.year, month.month, day, 12, tzinfo=UTC)


def fill(database: Database) -> None:
    """Write the facts of both months."""
    declare(database, "Поиск и данные")
    teams = ("payments", "search", "search", "支払い")
    Ledger(database).write(
        [
            event(
                10 * number + place,
                at=moment(month),
                team=team,
                cost_centre="CC-1207" if team == "payments" else "CC-0042",
                model=f"model-{place % 2}",
                cost_nusd=1_000_000_000 * (place + 1) * number,
            )
            for number, month in ((1, SEPTEMBER), (2, OCTOBER))
            for place, team in enumerate(teams)
        ]
    )
    adjust(database, OCTOBER, -400_000_000)
