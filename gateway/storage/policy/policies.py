"""Stores applied policy documents in Postgres as immutable, numbered versions, of which the newest
is current, and the budget rules that they declare; parses none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Row, select, text

from gateway.domain.budgets.budgets import BudgetRule
from gateway.domain.budgets.limits import Limits
from gateway.domain.policy.allocation import NO_ALLOCATION, PolicyAllocation
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.errors import BadUsage
from gateway.storage.allocation.policy_allocation import write_allocation
from gateway.storage.budgets import budgets as budget_rules
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.locks import TableLock
from gateway.storage.postgres.schema.column_types import table

policies = table(
    "policies",
    "version integer, sha256 text, document text, author text, message text, is_demo boolean, "
    "applied_at timestamptz",
)
_STORED = select(policies)
_INSERT = """
INSERT INTO tollgate.policies (sha256, document, author, message, is_demo)
VALUES (:sha256, :document, :author, :message, :is_demo)
RETURNING version
"""


# Postgres reads no policy document.
_ADD_LIMITS = """
INSERT INTO tollgate.policy_team_limits
    (policy_version, team, requests_per_minute, tokens_per_minute, concurrent, is_shadow)
VALUES (:version, :team, :requests_per_minute, :tokens_per_minute, :concurrent, :is_shadow)
ON CONFLICT DO NOTHING
"""


class PolicyStore:
    """A store that applies and reads documents. The caller has validated them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def apply(
        self,
        document: str,
        *,
        sha256: str,
        author: str,
        message: str,
        is_demo: bool,
        expected_version: int | None,
        budgets: Sequence[BudgetRule] = (),
        allocation: PolicyAllocation = NO_ALLOCATION,
        limits: Mapping[str, Limits] | None = None,
    ) -> int:
        """Make a document the current one, and store the budget rules that it declares; return its
        version, or the present version if it is already current.

        `budgets` are all rules that it declares; they bind the next worker that takes a slice.
        `allocation` and the `limits` of each team are for reports. All three are written even if
        the document is already current.
        `expected_version` is the version that the author saw (0: none). Raises `BadUsage`, and
        changes nothing, if another version became current since.
        """
        with self._database.begin(reason=message) as connection:
            # A second apply waits here and then sees the first.
            connection.execute(text(TableLock.POLICIES.taken))
            current = _current(connection)
            if current is not None and (current.sha256, current.is_demo) == (sha256, is_demo):
                version = current.version
            else:
                _refuse_surprise(current, expected_version)
                row = {
                    "sha256": sha256,
                    "document": document,
                    "author": author,
                    "message": message,
                    "is_demo": is_demo,
                }
                version = int(connection.execute(text(_INSERT), row).scalar_one())
            budget_rules.write_rules(connection, budgets, policy_version=version)
            write_allocation(connection, allocation, policy_version=version)
            _write_limits(connection, limits or {}, policy_version=version)
            return version

    def author(self, operator: str) -> str:
        """Return the author for the history: the database login, and the person at the terminal
        if that differs.
        """
        with self._database.begin() as connection:
            login = str(connection.execute(text("SELECT session_user")).scalar_one())
        return login if login == operator else f"{login} ({operator})"

    def current(self) -> StoredPolicy | None:
        """Return the newest version, or None before the first apply."""
        with self._database.begin() as connection:
            return _current(connection)

    def get(self, version: int) -> StoredPolicy | None:
        """Return one version, or None."""
        with self._database.begin() as connection:
            row = connection.execute(_STORED.where(policies.c.version == version)).one_or_none()
            return policy_from_row(row) if row is not None else None

    def history(self) -> list[StoredPolicy]:
        """Return every version, newest first."""
        with self._database.begin() as connection:
            rows = connection.execute(_STORED.order_by(policies.c.version.desc()))
            return [policy_from_row(row) for row in rows]


def policy_from_row(row: Row[*tuple[object, ...]]) -> StoredPolicy:
    """Return the policy of a row."""
    return StoredPolicy(
        version=row.version,
        sha256=row.sha256,
        document=row.document,
        author=row.author,
        message=row.message,
        is_demo=row.is_demo,
        applied_at=row.applied_at,
    )


def _current(connection: Connection) -> StoredPolicy | None:
    """Return the newest version, or None before the first apply."""
    newest = _STORED.order_by(policies.c.version.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return policy_from_row(row) if row is not None else None


def _write_limits(
    connection: Connection, limits: Mapping[str, Limits], *, policy_version: int
) -> None:
    """Store the limits of each team of a policy version; those that are there already stay."""
    rows = [
        {
            "version": policy_version,
            "team": team,
            "requests_per_minute": one.requests_per_minute,
            "tokens_per_minute": one.tokens_per_minute,
            "concurrent": one.concurrent,
            "is_shadow": one.is_shadow,
        }
        for team, one in limits.items()
    ]
    if rows:
        connection.execute(text(_ADD_LIMITS), rows)


def _refuse_surprise(current: StoredPolicy | None, expected_version: int | None) -> None:
    """Raise `BadUsage` if the current policy is not the version that the author expects."""
    found = current.version if current is not None else 0
    if expected_version is None or expected_version == found:
        return
    by = (
        f", applied by {current.author} at {current.applied_at:%Y-%m-%d %H:%M} UTC"
        if current is not None
        else ""
    )
    raise BadUsage(
        f"The current policy is version {found}{by}, not {expected_version}. Nothing changed. "
        f"Look at it with: tollgate policy show; then apply again: it shows what would change."
    )
