"""Exchanges workers' budget leases with Postgres, stores the policy's budget rules and operators'
grants (raises of a limit for one period), and checks the stored sums.

`ledger` charges an event's cost to its budgets, and `journals_table` ends a journal's leases. The
rules come with the policy (`policies`). The baseline defines the order of the locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from typing import Any
from uuid import UUID

import msgspec
import psycopg
from sqlalchemy import Connection, Row, text

from gateway.domain.budgets.budgets import (
    EACH,
    AsksRefused,
    BudgetKind,
    BudgetPeriod,
    BudgetRule,
    BudgetScope,
    LeasesLost,
    PeriodSpan,
    SliceAsk,
    SliceGranted,
)
from gateway.domain.budgets.grants import Granted, WorkerLease
from gateway.errors import BadUsage, DatabaseUnavailable, NothingFound
from gateway.storage.budgets.lease_list import leases_of
from gateway.storage.postgres.database import Database
from gateway.storage.postgres.sessions import Sessions, is_about_data

# The SQLSTATE of `exchange_slices`; its detail counts how often the journal was lost.
LEASES_ENDED = "TGL01"
MOST_NEAR = 3
LIMIT_S = 5.0  # if Postgres neither answers nor breaks the connection

# Its own time after the exchange, also if there is no ask and so no row.
_EXCHANGE = """
SELECT clock_timestamp(), slice.* FROM (SELECT) AS one
LEFT JOIN tollgate.exchange_slices(%s, %s, %s) AS slice ON true
"""
_WRITE_RULE = """
INSERT INTO tollgate.budgets AS budget (rule_id, scope, team, owner, period, time_zone, limit_nusd,
  kind, alert_at,
                                        overdraft_nusd, policy_version, is_current)
VALUES (:rule_id, :scope, :team, :owner, :period, :time_zone, :limit_nusd, :kind, :alert_at,
  :overdraft_nusd,
        :policy_version, true)
ON CONFLICT (rule_id) DO UPDATE SET
    scope = excluded.scope, team = excluded.team, owner = excluded.owner, period = excluded.period,
    time_zone = excluded.time_zone, limit_nusd = excluded.limit_nusd, kind = excluded.kind,
    alert_at = excluded.alert_at, overdraft_nusd = excluded.overdraft_nusd, policy_version =
      excluded.policy_version,
    is_current = true
"""
_RETIRE = (
    "UPDATE tollgate.budgets SET is_current = false WHERE is_current AND rule_id <> ALL(:rule_ids)"
)
_RULE = """
SELECT rule.rule_id, rule.scope, rule.team, rule.owner, rule.period, rule.time_zone,
       rule.limit_nusd, rule.kind, rule.alert_at, rule.overdraft_nusd, rule.is_current
FROM tollgate.budgets AS rule WHERE rule.rule_id = tollgate.budget_rule(:account_id)
    AND (rule.owner <> :each OR EXISTS (
        SELECT FROM tollgate.budget_periods AS used WHERE used.account_id = :account_id))
"""
_NAMES = """
SELECT rule_id FROM tollgate.budgets WHERE is_current AND owner <> :each
UNION SELECT account_id FROM tollgate.budget_periods ORDER BY 1
"""
_OPEN_WINDOWS = "SELECT tollgate.open_budget_windows(CAST(:windows AS jsonb))"
_RUNNING = "SELECT * FROM tollgate.budgets WHERE is_current AND rule_id = ANY(:rule_ids)"
_ACCOUNTS = """
SELECT account_id FROM tollgate.budget_periods WHERE rule_id = :rule_id AND starts_at = :starts_at
"""
_GRANT = """
INSERT INTO tollgate.budget_grants (account_id, starts_at, amount_nusd, expires_at, reason)
VALUES (:account_id, :starts_at, :amount_nusd, :expires_at, :reason)
RETURNING grant_id, author
"""


class BudgetLeaseTable:
    """A table of budget leases, used through one private connection that stays open between
    calls.
    """

    def __init__(self, database: Database, *, limit_s: float = LIMIT_S) -> None:
        """Take the database and the time limit of one exchange; the first exchange opens the
        connection.
        """
        self._sessions = Sessions(database, limit_s=limit_s)
        self._losses: dict[UUID, int] = {}
        self.last_stated: datetime | None = None  # Postgres's time after the last exchange

    def exchange(self, journal_id: UUID, asks: Sequence[SliceAsk]) -> tuple[SliceGranted, ...]:
        """Give back and take budget leases for one worker in one statement; a turn that was
        answered before moves nothing again.

        Only one call may run at a time. Raises `DatabaseUnavailable` if the outcome is unknown:
        then repeat the same asks. Raises `AsksRefused` if Postgres would refuse them again: nothing
        was moved. Raises `LeasesLost` if the journal is lost or drained, and once after it was
        lost: its leases have ended.
        """
        rows = msgspec.json.encode([_to_row(ask) for ask in asks]).decode()
        try:
            found = self._sessions.rows(
                _EXCHANGE, (journal_id, rows, self._losses.get(journal_id, 0))
            )
        except psycopg.Error as refused:
            if is_about_data(refused):
                raise AsksRefused(f"{refused.diag.message_primary} ({refused.sqlstate})") from None
            if refused.sqlstate != LEASES_ENDED:
                raise DatabaseUnavailable(
                    f"Postgres leases nothing now: {refused} ({refused.sqlstate})."
                ) from refused
            self._losses[journal_id] = int(refused.diag.message_detail or 0)
            raise LeasesLost(refused.diag.message_primary) from None
        self.last_stated = found[0][0]
        return tuple(_granted_from_row(row) for _, *row in found if row[0] is not None)

    def close(self) -> None:
        """Close the connection. A later exchange opens it again."""
        self._sessions.close()


class BudgetStore:
    """A store of the budget changes that people make outside the policy."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def leases(self, account_id: str, starts_at: datetime) -> tuple[WorkerLease, ...]:
        """Return the workers' leases of one account's period, the largest first."""
        return leases_of(self._database, account_id, starts_at)

    def grant(
        self,
        account_id: str,
        amount_nusd: int,
        *,
        expires_at: datetime | None,
        reason: str,
        now: datetime,
    ) -> Granted:
        """Add to an account's limit in its current period, until `expires_at` or the period's end.

        Raises `NothingFound` if the account is unknown, or `BadUsage` if the grant would have no
        effect; then nothing was granted.
        """
        if amount_nusd <= 0:
            raise BadUsage("A grant must be more than nothing. Nothing was granted.")
        with self._database.begin(reason=reason) as connection:
            rule = _declared_rule(connection, account_id)
            span = rule.period_at(now)
            until = _grant_ends_at(expires_at, span, now)
            values = {
                "account_id": account_id,
                "starts_at": span.starts_at,
                "amount_nusd": amount_nusd,
                "expires_at": until,
                "reason": reason,
            }
            _open_windows(connection, [account_id], rule, span)
            booked = connection.execute(text(_GRANT), values).one()
        return Granted(
            grant_id=booked.grant_id,
            account_id=account_id,
            starts_at=span.starts_at,
            ends_at=span.ends_at,
            amount_nusd=amount_nusd,
            expires_at=until,
            author=booked.author,
        )


@dataclass(frozen=True, slots=True)
class BudgetMistake:
    """A period whose stored sums differ from the events, adjustments and leases."""

    account_id: str
    starts_at: datetime
    what: str


def budget_mistakes(database: Database) -> tuple[BudgetMistake, ...]:
    """Recompute the spent and leased sums of every period from events, adjustments and leases;
    return the differences, and correct none.

    Reads every event that was charged to a budget. Raises `DatabaseUnavailable`.
    """
    with database.begin() as connection:
        rows = connection.execute(
            text("SELECT account_id, starts_at, what FROM tollgate.budget_mistakes()")
        )
        return tuple(BudgetMistake(*row) for row in rows)


def write_rules(
    connection: Connection, rules: Sequence[BudgetRule], *, policy_version: int
) -> None:
    """Store these budget rules as the declared ones, inside the policy's transaction; retire all
    others.

    A removed rule keeps its last limit. A rule whose period begins at another moment from now on
    opens the new windows at once: they take over the spending and leases of the running ones.
    """
    # Sorted by name: two writers of the same rows in different orders would deadlock.
    ordered = sorted(rules, key=lambda rule: rule.rule_id)
    now = connection.execute(text("SELECT now()")).scalar_one()
    before = {
        row.rule_id: rule_from_row(row).period_at(now)
        for row in connection.execute(
            text(_RUNNING), {"rule_ids": [rule.rule_id for rule in ordered]}
        )
    }
    for rule in ordered:
        connection.execute(
            text(_WRITE_RULE), _rule_to_row(rule) | {"policy_version": policy_version}
        )
    connection.execute(text(_RETIRE), {"rule_ids": [rule.rule_id for rule in ordered]})
    for rule in ordered:
        old, span = before.get(rule.rule_id), rule.period_at(now)
        if old is not None and old.starts_at != span.starts_at:
            values = {"rule_id": rule.rule_id, "starts_at": old.starts_at}
            accounts = connection.execute(text(_ACCOUNTS), values).scalars().all()
            _open_windows(connection, accounts, rule, span)


def _open_windows(
    connection: Connection, accounts: Sequence[str], rule: BudgetRule, span: PeriodSpan
) -> None:
    """Open the windows of accounts for one period of their rule, as far as they are not open."""
    windows = [
        {
            "account_id": account_id,
            "rule_id": rule.rule_id,
            "starts_s": span.starts_s,
            "ends_s": None if span.ends_at is None else int(span.ends_at.timestamp()),
        }
        for account_id in accounts
    ]
    connection.execute(text(_OPEN_WINDOWS), {"windows": msgspec.json.encode(windows).decode()})


def rule_from_row(row: Row[*tuple[object, ...]]) -> BudgetRule:
    """Return the declared budget rule of a row."""
    return BudgetRule(
        rule_id=row.rule_id,
        scope=BudgetScope(row.scope),
        team=row.team,
        owner=row.owner,
        period=BudgetPeriod(row.period),
        limit_nusd=row.limit_nusd,
        kind=BudgetKind(row.kind),
        alert_at=tuple(row.alert_at),
        time_zone=row.time_zone,
        overdraft_nusd=row.overdraft_nusd,
    )


def _rule_to_row(rule: BudgetRule) -> dict[str, Any]:
    """Return the row of a declared budget rule."""
    return {
        "rule_id": rule.rule_id,
        "scope": str(rule.scope),
        "team": rule.team,
        "owner": rule.owner,
        "period": str(rule.period),
        "time_zone": rule.time_zone,
        "limit_nusd": rule.limit_nusd,
        "kind": str(rule.kind),
        "alert_at": list(rule.alert_at),
        "overdraft_nusd": rule.overdraft_nusd,
    }


def _to_row(ask: SliceAsk) -> dict[str, Any]:
    """Return the SQL parameters of a worker's ask for money of one budget period."""
    return {
        "account_id": ask.account_id,
        "rule_id": ask.rule_id,
        "starts_s": int(ask.starts_at.timestamp()),
        "ends_s": None if ask.ends_at is None else int(ask.ends_at.timestamp()),
        "turn": ask.turn,
        "returned_nusd": ask.returned_nusd,
        "least_nusd": ask.least_nusd,
        "needed_nusd": ask.needed_nusd,
        "most_nusd": ask.most_nusd,
        "held_nusd": ask.held_nusd,
    }


def _granted_from_row(row: Sequence[Any]) -> SliceGranted:
    """Return the granted budget lease that a row states."""
    account_id, starts_s, granted, limit, spent, leased, outstanding = row
    return SliceGranted(
        account_id=account_id,
        starts_s=starts_s,
        granted_nusd=granted,
        limit_nusd=limit,
        spent_nusd=spent,
        leased_nusd=leased,
        outstanding_nusd=outstanding,
    )


def _declared_rule(connection: Connection, account_id: str) -> BudgetRule:
    """Return the declared rule of a budget account. Raises `NothingFound` if it is unknown,
    `BadUsage` if it is not declared any more.
    """
    values = {"account_id": account_id, "each": EACH}
    row = connection.execute(text(_RULE), values).one_or_none()
    if row is None:
        names = [str(name) for name in connection.execute(text(_NAMES), {"each": EACH}).scalars()]
        near = get_close_matches(account_id, names, n=MOST_NEAR, cutoff=0.5)
        there = f"Near: {', '.join(near)}. " if near else ""
        raise NothingFound(
            f"No budget account '{account_id}'. {there}finance.budgets has all of them; one that a "
            "rule for each project or key keeps is there from its first request on. Nothing was "
            "granted."
        )
    if not row.is_current:
        raise BadUsage(
            f"Budget '{account_id}' is not declared in the current policy any more, so nothing is "
            "held from it. Nothing was granted."
        )
    return rule_from_row(row)


def _grant_ends_at(expires_at: datetime | None, span: PeriodSpan, now: datetime) -> datetime | None:
    """Return the moment when a grant ends, the period's end by default. Raises `BadUsage` if it is
    over or after the period.
    """
    if expires_at is None:
        return span.ends_at
    if expires_at <= now:
        raise BadUsage(
            "The grant would have expired already. Give a later moment. Nothing was granted."
        )
    if span.ends_at is not None and expires_at > span.ends_at:
        raise BadUsage(
            f"A grant belongs to one period, and this one ends {span.ends_at:%Y-%m-%d %H:%M} UTC. "
            "For more in each period raise limit_usd in the policy instead. Nothing was granted."
        )
    return expires_at
