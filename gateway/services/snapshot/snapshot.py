"""What a worker knows: the current policy, its prices and the live keys, as one value swapped at
once.

It serves for a stated time without Postgres, and not a moment longer: a key may have been revoked
since.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf
from typing import Protocol

from gateway.domain.budgets.budgets import EACH, Account
from gateway.domain.budgets.limits import LimitedBy, limits_of
from gateway.domain.checks import Check, Status
from gateway.domain.policy.api_keys import KeyRecord, Pepper
from gateway.domain.policy.last_snapshot import LastSnapshot
from gateway.domain.policy.policy import PolicyVersion, Team
from gateway.domain.pricing.pricing import Price
from gateway.domain.routing.decide import Decision
from gateway.errors import Unavailable
from gateway.services.ports import Clock

# Older than this, a key we do not know may be a new one, whatever the last look said: it may be
# hanging.
STALE_AFTER_S = 15.0
# Asked so shortly ago, Postgres has named all keys there are: under a flood of made-up ones it is
# not asked more often.
CONFIRMED_S = 0.2
MOST_REMEMBERED = 10_000  # a caller names the project: no number of them may fill the memory
MOST_PROJECTS = 1000  # undeclared ones of a team, each with accounts and limits of its own
_MEND = "bring Postgres back, or fix TOLLGATE_DATABASE_URL; this replica goes on by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTerms:
    """What a request may cost and how fast its like may come.

    `accounts` are in the order of their names.

    `needs_bound` is True if one of them can refuse a request for what it may come to.
    """

    accounts: tuple[Account, ...]
    limits: tuple[LimitedBy, ...]
    shadow_limits: tuple[LimitedBy, ...] = ()
    needs_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Read once per request, so that a request keeps the version it began with.

    `prices` is by deployment, `peppers` by fingerprint, `keys` by key id. `document` is the policy
    as it was written; `behind` says why it is not the newest one. `ejected` are deployments out of
    use, by what their upstreams said of their place. Remembered under this snapshot: in `checked`
    keys that were found right, by a hash of theirs; in `decisions` what was decided, by all it
    depends on; in `terms` the budgets and limits of a request, by team, project and key; in
    `projects` the undeclared ones that requests of a team named.
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
    terms: dict[tuple[str, str | None, str], RequestTerms] = field(
        default_factory=dict, compare=False, repr=False
    )
    projects: dict[str, set[str]] = field(default_factory=dict, compare=False, repr=False)

    def terms_of(self, team: Team, *, project: str | None, key_id: str) -> RequestTerms:
        """The budgets that a request of this team is charged to, and the limits it is under."""
        place = (team.name, project, key_id)
        found = self.terms.get(place)
        if found is None:
            if len(self.terms) >= MOST_REMEMBERED:
                self.terms.clear()
            counted = self._counted(team, project)
            limits = limits_of(team, project=counted, key_id=key_id)
            accounts = self.policy.policy.accounts(team, project=counted, key_id=key_id)
            found = self.terms[place] = RequestTerms(
                accounts=accounts,
                limits=tuple(one for one in limits if not one[1].is_shadow),
                shadow_limits=tuple(one for one in limits if one[1].is_shadow),
                needs_bound=any(account.rule.is_hard for account in accounts)
                or any(declared.refuses_tokens for _, declared in limits),
            )
        return found

    def _counted(self, team: Team, project: str | None) -> str | None:
        """The project that a request counts under: `*` for more names than `MOST_PROJECTS`, as each
        makes accounts.
        """
        if project is None or project in team.projects:
            return project
        named = self.projects.setdefault(team.name, set())
        if project not in named and len(named) >= MOST_PROJECTS:
            return EACH
        named.add(project)
        return project


class SnapshotSource(Protocol):
    """Loads what changed from the database; runs in threads."""

    def load(self, before: Snapshot | None) -> Snapshot | None:
        """Return the snapshot now, None where no policy was applied yet.

        Raises `DatabaseUnavailable`.
        """

    def rebuilt(self, last: LastSnapshot) -> Snapshot:
        """Return the snapshot that was kept.

        Raises `PolicyRejected` where this Tollgate reads it no more.
        """

    def wait(self, timeout_s: float) -> bool:
        """True as soon as something changed, False when the time is over.

        Raises `DatabaseUnavailable`.
        """


class SnapshotShelf(Protocol):
    """Where the last good snapshot outlives this process; runs in threads.

    `storage.policy.last_snapshot` has one.
    """

    def write(self, last: LastSnapshot) -> bool:
        """Keep a snapshot in place of the one before; False: not now, try again soon.

        Raises `OSError`.
        """

    def read(self) -> LastSnapshot:
        """What was kept last, however old. Raises `NotUsable`."""


async def _nobody_asks() -> bool:
    return False


@dataclass(slots=True)
class SnapshotHolder:
    """The current snapshot and how old it is.

    `refreshed_s` is when Postgres was asked for it, by the monotonic clock, `refreshed_at` the same
    moment in words. `problem` is why the latest look failed. `confirm` has Postgres asked once
    more, now: False where it did not answer. Without a clock, as in tests that are not about time,
    it does not age.
    """

    current: Snapshot | None = None
    refreshed_at: datetime | None = None
    problem: str | None = field(default="the first snapshot has not been loaded yet")
    clock: Clock | None = None
    outage_s: float = inf
    refreshed_s: float | None = None
    confirm: Callable[[], Awaitable[bool]] = _nobody_asks

    def require(self) -> Snapshot:
        """The current snapshot. Raises `Unavailable` saying what an operator does about it."""
        if self.current is None:
            raise Unavailable(
                f"The gateway is not ready: {self.problem}. Try again shortly.", retry_after_s=2
            )
        if self.age_s() > self.outage_s:
            raise Unavailable(
                f"{self.over()} GET /readyz says what is wrong. Try again later.", retry_after_s=5
            )
        return self.current

    def take(self, snapshot: Snapshot, *, good_at: datetime, good_s: float) -> bool:
        """Serve from a snapshot that Postgres was asked for at a moment, by both clocks; True if it
        is another one.
        """
        is_new = snapshot is not self.current
        self.current, self.refreshed_at, self.refreshed_s = snapshot, good_at, good_s
        return is_new

    def age_s(self) -> float:
        """How long ago Postgres was asked for what is here; infinite where it never answered.

        For metrics too.
        """
        if self.clock is None:
            return inf if self.refreshed_at is None else 0.0
        return inf if self.refreshed_s is None else self.clock.monotonic() - self.refreshed_s

    @property
    def is_stale(self) -> bool:
        """True where there may be keys that we have not heard of."""
        return self.problem is not None or self.age_s() > STALE_AFTER_S

    @property
    def is_confirmed(self) -> bool:
        """True where a key that we have not heard of is none."""
        return self.age_s() <= CONFIRMED_S

    @property
    def is_over(self) -> bool:
        """True where what is here is too old to serve from."""
        return self.current is not None and self.age_s() > self.outage_s

    def over(self) -> str:
        """What is said then."""
        return (
            "Policy and keys were last read from Postgres at "
            f"{self.refreshed_at:%Y-%m-%d %H:%M:%S} UTC, and serve for "
            f"{self.outage_s:,.0f} s without it: a key may have been revoked since. An "
            "operator must bring Postgres "
            "back; no restart is needed."
        )


def problems(
    holder: SnapshotHolder, *, is_full: bool, is_gone: bool, is_draining: bool
) -> list[str]:
    """Why this replica should not take traffic, each with its remedy; empty when it may.

    Postgres being away is no reason while the journal takes events and what is known is not too
    old: that is a warning, of `domain.ledger.health` and of `snapshot_checks`.
    """
    found = []
    if holder.current is None:
        found.append(f"No policy is loaded: {holder.problem}.")
    elif holder.is_over:
        found.append(f"{holder.over()} The latest look: {_latest(holder)}.")
    if is_gone:
        found.append(
            "The journal's folder was removed or moved away: put it back, or start this "
            "replica anew "
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
    """How fresh policy and keys are, for readiness."""
    return (_freshness(holder), _version(holder))


def _freshness(holder: SnapshotHolder) -> Check:
    name, age_s = "policy and keys", holder.age_s()
    if holder.current is None:
        return Check(name, Status.FAIL, f"not loaded: {_latest(holder)}", _MEND)
    finding = f"read from Postgres {age_s:,.0f} s ago"
    if holder.is_over:
        return Check(
            name, Status.FAIL, f"{finding}, too old to serve from: {_latest(holder)}", _MEND
        )
    if holder.is_stale:
        left_s = max(0.0, holder.outage_s - age_s)
        stale = (
            f"{finding}; known keys serve for another {left_s:,.0f} s, unknown ones get "
            f"503: {_latest(holder)}"
        )
        return Check(name, Status.WARN, stale, _MEND)
    return Check(name, Status.OK, finding)


def _version(holder: SnapshotHolder) -> Check:
    if holder.current is None:
        return Check("policy version", Status.UNKNOWN, "none is loaded")
    if holder.current.behind is not None:
        remedy = "upgrade this replica, or apply a policy that it can read"
        return Check("policy version", Status.WARN, holder.current.behind, remedy)
    return Check("policy version", Status.OK, f"{holder.current.policy.version} is in force")


def _latest(holder: SnapshotHolder) -> str:
    return (holder.problem or "Postgres has not answered yet").rstrip(".")
