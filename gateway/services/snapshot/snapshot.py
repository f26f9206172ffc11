"""Declares the snapshot that requests read (policy, prices, keys) and its holder, which knows its
age, and the readiness checks on it; `refresh.py` replaces it.

A snapshot serves for a fixed time without Postgres, and then no longer: a key may have been
revoked since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from math import inf
from typing import Protocol

from gateway.domain.budgets.budgets import EACH, Account
from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.checks import Check, Status
from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot
from gateway.domain.policy.policy import PolicyVersion, Team
from gateway.domain.pricing.pricing import Price
from gateway.domain.routing.decide import Decision
from gateway.errors import Unavailable
from gateway.services.budgets.postgres_time import PostgresTime
from gateway.services.ports import Clock

# With an older snapshot, an unknown key may be a new one, even if the last look succeeded: a look
# may be hanging.
STALE_AFTER_S = 15.0
MOST_REMEMBERED = 10_000  # callers choose project names, so their number must not fill the memory
MOST_PROJECTS = 1000  # undeclared projects of a team, each with accounts and limits of its own
_REMEDY = "bring Postgres back, or fix TOLLGATE_DATABASE_URL; this replica goes on by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """The budgets and limits of one request.

    `accounts` are in the order of their names.

    `needs_bound` is True if one of them can refuse a request by its maximum cost, and
    `has_hard_budget` if that is a budget.
    """

    accounts: tuple[Account, ...]
    limits: tuple[LimitedBy, ...]
    shadow_limits: tuple[LimitedBy, ...] = ()
    needs_bound: bool = False
    has_hard_budget: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state that a request reads once, so that it keeps the version it began with.

    `prices` is by deployment, `peppers` by fingerprint, `keys` by key id. `document` is the
    policy's source text; `behind` explains why it is not the newest version. `ejected` are
    deployments out of use, with the place that their upstreams reported.

    Caches that live as long as this snapshot: `checked` has keys that were verified, by their hash.
    `decisions` has decisions, by all their inputs. `terms` has the budgets and limits of a request,
    by team, project, key and, if the team's cost centre depends on it, day. `projects` has the
    undeclared projects that a team's requests named.
    """

    policy: PolicyVersion
    prices: Mapping[str, Price]
    keys: Mapping[str, KeyRecord]
    peppers: Mapping[str, Pepper]
    document: str = field(default="", repr=False)
    behind: str | None = None
    ejected: Mapping[str, str] = field(default_factory=dict)
    checked: dict[bytes, KeyRecord] = field(default_factory=dict, compare=False, repr=False)
    decisions: dict[tuple[object, ...], Decision] = field(
        default_factory=dict, compare=False, repr=False
    )
    terms: dict[tuple[str, str | None, str, date | None], RequestTerms] = field(
        default_factory=dict, compare=False, repr=False
    )
    projects: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)

    def terms_of(
        self, team: Team, *, project: str | None, key_id: str, day: date | None
    ) -> RequestTerms:
        """Return the budgets that a request of this team on a UTC day is charged to, and its
        limits; the day may be None for a team whose cost centre does not depend on it.
        """
        place = (team.name, project, key_id, day if team.has_dated_cost_centre else None)
        found = self.terms.get(place)
        if found is None:
            if len(self.terms) >= MOST_REMEMBERED:
                self.terms.clear()
            counted = self._countable_project(team, project)
            limits = team.limits_for(project=counted, key_id=key_id)
            accounts = self.policy.policy.accounts(team, project=counted, key_id=key_id, day=day)
            has_hard_budget = any(account.rule.is_hard for account in accounts)
            found = self.terms[place] = RequestTerms(
                accounts=accounts,
                limits=tuple(one for one in limits if not one[1].is_shadow),
                shadow_limits=tuple(one for one in limits if one[1].is_shadow),
                needs_bound=has_hard_budget
                or any(declared.refuses_tokens for _, declared in limits),
                has_hard_budget=has_hard_budget,
            )
        return found

    def _countable_project(self, team: Team, project: str | None) -> str | None:
        """Return the project to count under; `*` after `MOST_PROJECTS` names, because each makes
        accounts.
        """
        if project is None or project in team.projects:
            return project
        named = self.projects.setdefault(team.name, set())
        if project not in named and len(named) >= MOST_PROJECTS:
            return EACH
        named.add(project)
        return project


class SnapshotShelf(Protocol):
    """Keeps the last good snapshot on disk across restarts; runs in threads.

    `storage.policy.last_snapshot` implements it.
    """

    def write(self, last: LastSnapshot) -> bool:
        """Replace the stored snapshot; return False if that should be retried soon.

        Raises `OSError`.
        """

    def read(self) -> LastSnapshot:
        """Return the stored snapshot of any age. Raises `NotUsable`."""


async def _no_confirmation() -> bool:
    """Return False: the default of a holder without a refresher."""
    return False


@dataclass(slots=True)
class SnapshotHolder:
    """The current snapshot and its age.

    `refreshed_s` is the monotonic time when Postgres was asked for it, `refreshed_at` the same as a
    date. `problem` is the error of the latest look. `confirm` asks Postgres once more, now, and
    returns False without an answer. Without a clock, as in tests that ignore time, the snapshot
    does not age. `postgres_time` is what a load read of Postgres's clock.
    """

    current: Snapshot | None = None
    refreshed_at: datetime | None = None
    problem: str | None = field(default="the first snapshot has not been loaded yet")
    clock: Clock | None = None
    outage_s: float = inf
    refreshed_s: float | None = None
    confirm: Callable[[], Awaitable[bool]] = _no_confirmation
    postgres_time: PostgresTime | None = None

    def now(self, own: Callable[[], datetime]) -> datetime:
        """Return the present by Postgres's clock, by which keys expire on every replica; by `own`
        until Postgres has stated its time.
        """
        if self.clock is None or self.postgres_time is None:
            return own()
        there_s = self.postgres_time.at_s(self.clock.monotonic())
        return own() if there_s is None else datetime.fromtimestamp(there_s, UTC)

    def require(self) -> Snapshot:
        """Return the current snapshot. Raises `Unavailable` with the operator's next step."""
        if self.current is None:
            raise Unavailable(
                f"The gateway is not ready: {self.problem}. Try again shortly.", retry_after_s=2
            )
        if self.age_s() > self.outage_s:
            raise Unavailable(
                f"{self.too_old_message()} GET /readyz names the problem. Try again later.",
                retry_after_s=5,
            )
        return self.current

    def take(self, snapshot: Snapshot, *, good_at: datetime, good_s: float) -> bool:
        """Serve another snapshot, read at the given time by both clocks; return True if it differs
        from the current one.
        """
        is_new = snapshot is not self.current
        self.current, self.refreshed_at, self.refreshed_s = snapshot, good_at, good_s
        return is_new

    def age_s(self) -> float:
        """Return the seconds since Postgres was asked for the snapshot; infinite if it never
        answered.

        Also a metric.
        """
        if self.clock is None:
            return inf if self.refreshed_at is None else 0.0
        return inf if self.refreshed_s is None else self.clock.monotonic() - self.refreshed_s

    @property
    def is_stale(self) -> bool:
        """Return True if Postgres may have keys that this worker does not have yet."""
        return self.problem is not None or self.age_s() > STALE_AFTER_S

    @property
    def is_over(self) -> bool:
        """Return True if the snapshot is too old to serve from."""
        return self.current is not None and self.age_s() > self.outage_s

    def too_old_message(self) -> str:
        """Return the message for a snapshot that is too old."""
        return (
            "Policy and keys were last read from Postgres at "
            f"{self.refreshed_at:%Y-%m-%d %H:%M:%S} UTC, and serve for {self.outage_s:,.0f} s "
            "without it: a key may have been revoked since. An operator must bring Postgres back; "
            "no restart is needed."
        )


def problems(
    holder: SnapshotHolder, *, is_full: bool, is_gone: bool, is_draining: bool
) -> list[str]:
    """Return the reasons, each with its remedy, why this replica should not take traffic.

    An absent Postgres is no reason while the journal takes events and the snapshot is not too old.
    Then it is a warning, by `domain.ledger.health` and `snapshot_checks`.
    """
    found = []
    if holder.current is None:
        found.append(f"No policy is loaded: {holder.problem}.")
    elif holder.is_over:
        found.append(f"{holder.too_old_message()} The latest look: {_latest(holder)}.")
    if is_gone:
        found.append(
            "The journal's folder was removed or moved away: put it back, or restart this replica "
            "(docs/runbooks/journal-gone.md)."
        )
    elif is_full:
        found.append(
            "The journal takes nothing new: bring Postgres back or make room on its disk "
            "(docs/runbooks/journal-filling.md), unless the check `journal` names another cause."
        )
    if is_draining:
        found.append("This replica is shutting down: send traffic to another one.")
    return found


def snapshot_checks(holder: SnapshotHolder) -> tuple[Check, ...]:
    """Return the checks on the age of policy and keys, for readiness."""
    return (_freshness(holder), _version(holder))


def _freshness(holder: SnapshotHolder) -> Check:
    """Return the readiness check on policy and keys: it fails if none is loaded or they are too old
    to serve from, and warns if the latest look failed or is overdue.
    """
    name, age_s = "policy and keys", holder.age_s()
    if holder.current is None:
        return Check(name, Status.FAIL, f"not loaded: {_latest(holder)}", _REMEDY)
    finding = f"read from Postgres {age_s:,.0f} s ago"
    if holder.is_over:
        return Check(
            name, Status.FAIL, f"{finding}, too old to serve from: {_latest(holder)}", _REMEDY
        )
    if holder.is_stale:
        left_s = max(0.0, holder.outage_s - age_s)
        stale = (
            f"{finding}; known keys serve for another {left_s:,.0f} s, unknown ones get "
            f"503: {_latest(holder)}"
        )
        return Check(name, Status.WARN, stale, _REMEDY)
    return Check(name, Status.OK, finding)


def _version(holder: SnapshotHolder) -> Check:
    """Return the readiness check on the policy version: loaded, and the newest one."""
    if holder.current is None:
        return Check("policy version", Status.UNKNOWN, "none is loaded")
    if holder.current.behind is not None:
        remedy = "upgrade this replica, or apply a policy that it can read"
        return Check("policy version", Status.WARN, holder.current.behind, remedy)
    return Check("policy version", Status.OK, f"{holder.current.policy.version} is in force")


def _latest(holder: SnapshotHolder) -> str:
    """Return the problem of the latest look at Postgres for a message, without its full stop."""
    return (holder.problem or "Postgres has not answered yet").rstrip(".")
