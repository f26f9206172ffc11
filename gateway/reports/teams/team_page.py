"""Reads the facts of a team's own page: its keys with their last use, its limits and budgets, this
month's spending and its last errors and refusals; changes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from gateway.domain.budgets.limits import Limits
from gateway.domain.policy.api_keys import KeyRecord, StoredKey
from gateway.domain.reports.comparison import Compared
from gateway.reports.budgets.budgets import BudgetStanding, running_budgets
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.questions import spend
from gateway.reports.report import Report
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.notes import read_now

LOOK_BACK = timedelta(days=7)
MOST_ERRORS = 20
MOST_REFUSALS = 100
# The index of a key's events has them by time: the newest one is found at once.
_KEYS = """
SELECT own.key_id, own.team, own.project, own.created_at, own.expires_at, own.revoked_at,
       own.paused_at, used.last_used_at
FROM finance.api_keys AS own
LEFT JOIN LATERAL (
    SELECT occurred_at AS last_used_at FROM finance.usage_events
    WHERE key_id = own.key_id AND team = :team ORDER BY occurred_at DESC LIMIT 1
) AS used ON true
WHERE own.team = :team AND NOT own.is_demo
ORDER BY own.revoked_at IS NOT NULL, own.created_at DESC, own.key_id
"""
_LIMITS = """
SELECT requests_per_minute, tokens_per_minute, concurrent, is_shadow FROM finance.team_limits
WHERE team = :team
"""
_ERRORS = """
SELECT occurred_at, request_id, attempt, key_id, route, model, deployment, outcome, http_status
FROM finance.usage_events
WHERE team = :team AND occurred_at >= :since AND outcome <> 'ok'
ORDER BY occurred_at DESC, request_id, attempt LIMIT :most
"""
_REFUSALS = """
SELECT code, rule, route, max(hour) AS last_hour, sum(requests)::bigint AS requests
FROM finance.refusals WHERE team = :team AND hour >= :since AND code NOT LIKE 'shadow:%'
GROUP BY code, rule, route ORDER BY max(hour) DESC, sum(requests) DESC, code, rule, route
LIMIT :most
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOfTeam:
    """A key of a team; `last_used_at` is None if no request came with it."""

    key_id: str
    project: str | None
    state: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorsOfTeam:
    """One attempt that did not end well."""

    occurred_at: datetime
    request_id: UUID
    attempt: int
    key_id: str
    route: str
    model: str
    deployment: str
    outcome: str
    http_status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalsOfTeam:
    """The refused requests of one code by one budget, limit or rule on one route; `last_hour` is
    the newest hour with one.
    """

    code: str
    rule: str | None
    route: str | None
    last_hour: datetime
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamPage:
    """The facts of a team's page.

    `limits` are None if the policy in force was applied by a release that did not store them.
    `spent` is the report on this month so far, compared with the month before.
    """

    team: str
    keys: tuple[KeyOfTeam, ...]
    limits: Limits | None
    budgets: tuple[BudgetStanding, ...]
    spent: Report
    errors: tuple[ErrorsOfTeam, ...]
    refusals: tuple[RefusalsOfTeam, ...]

    @property
    def is_empty(self) -> bool:
        """Return True if the team has neither a key nor a request nor a budget."""
        return not (self.keys or self.budgets or self.refusals or self.spent.total["attempts"])


def team_page(snapshot: ReadSnapshot, team: str, now: datetime) -> TeamPage:
    """Return the facts of a team's page at a moment. Errors and refusals are of the last seven
    days.
    """
    month = read_now(snapshot).astimezone(UTC).date().replace(day=1)
    asked = Question(
        month=month, by=(), where=((Dimension.TEAM, team),), compared=Compared.PREVIOUS
    )
    limits = snapshot.rows(_LIMITS, team=team)
    since = now - LOOK_BACK
    errors = snapshot.rows(_ERRORS, team=team, since=since, most=MOST_ERRORS)
    refused = snapshot.rows(_REFUSALS, team=team, since=since, most=MOST_REFUSALS)
    return TeamPage(
        team=team,
        keys=tuple(_key(row, now) for row in snapshot.rows(_KEYS, team=team)),
        limits=Limits(**limits[0]) if limits else None,
        budgets=tuple(one for one in running_budgets(snapshot, now) if one.team == team),
        spent=spend.REPORT.run(snapshot, asked),
        errors=tuple(ErrorsOfTeam(**row) for row in errors),
        refusals=tuple(RefusalsOfTeam(**row) for row in refused),
    )


def _key(row: Row, now: datetime) -> KeyOfTeam:
    """Return a team's key with its state at a moment."""
    record = KeyRecord(
        key_id=row["key_id"],
        team=row["team"],
        project=row["project"],
        digest=b"",
        pepper_id="",
        expires_at=row["expires_at"],
        is_paused=row["paused_at"] is not None,
    )
    stored = StoredKey(
        record=record,
        created_at=row["created_at"],
        created_by="",
        revoked_at=row["revoked_at"],
        revoked_by=None,
    )
    return KeyOfTeam(
        key_id=row["key_id"],
        project=row["project"],
        state=stored.state(now),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
    )
