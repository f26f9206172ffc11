"""Keeps each deployment's breaker, retry budget and attempts in flight in this worker, and tells
failover which deployments to pass over.

Workers share none of it, so no request waits for it. The policy's declarations bound its size.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import structlog
from msgspec import Struct

from gateway.domain.checks import Check, Status
from gateway.domain.deployments.breaker import Breaker
from gateway.domain.deployments.retry_budget import RetryBudget
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.policy import Deployment, Policy
from gateway.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelMissing,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RequestError,
    UpstreamAuth,
    UpstreamError,
    UpstreamNotCalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)

log = structlog.get_logger()

# The next attempt would fail in the same way.
OPENS_AT_ONCE = (UpstreamAuth, QuotaExhausted, ModelMissing)
MODEL_MISSING = "model_missing"  # the reason; its code is shared with other errors
SAYS_NOTHING = (UpstreamNotCalled,)
SILENT = (UpstreamUnreachable, UpstreamTimeout)
FAILED = (UpstreamUnreachable, UpstreamTimeout, UpstreamError, Overloaded, *OPENS_AT_ONCE)
FORBIDDEN_S = (
    # seconds; if two teams get 403 within this time, the deployment causes it, not their prompts
    60.0
)
# The deployment works; the request was at fault.
ANSWERED = (
    InvalidRequest,
    ContextLengthExceeded,
    ModelNotFound,
)

_REMEDY = "see docs/runbooks/deployment-passed-over.md"


def reason_of(error: RequestError) -> str:
    """Return the reason that an error gives for passing its deployment over, for metrics and
    readiness.
    """
    return MODEL_MISSING if isinstance(error, ModelMissing) else error.code


def full_error(deployment: Deployment) -> Overloaded:
    """Return the error while a deployment has its maximum of calls in flight in this worker."""
    return Overloaded(
        f"{deployment.name} has as many requests under way here as it may. Try again.",
        retry_after_s=1,
    )


class DeploymentState:
    """The state of one deployment. `under_way` are the slots of attempts that are not settled yet.

    `received_s` is the time of the last content that any attempt received. `forbidden` holds the
    last two teams that received HTTP 403 there, with the time.
    """

    __slots__ = (
        "breaker",
        "deployment",
        "forbidden",
        "opened_for",
        "received_s",
        "retries",
        "under_way",
    )

    def __init__(self, deployment: Deployment) -> None:
        """Start a deployment's state with a closed breaker, a full retry budget and no attempts in
        flight.
        """
        self.deployment = deployment
        self.breaker = Breaker()
        self.opened_for = ""  # the code of the error that opened it last
        self.retries = RetryBudget()
        self.under_way: set[Slot] = set()
        self.received_s = -inf
        self.forbidden: dict[str, float] = {}

    def note_forbidden(self, team: str, now_s: float) -> bool:
        """Record a team's HTTP 403; return True if another team received one within `FORBIDDEN_S`
        too.
        """
        self.forbidden.pop(team, None)
        others = any(now_s - forbidden_s <= FORBIDDEN_S for forbidden_s in self.forbidden.values())
        self.forbidden = dict([*self.forbidden.items(), (team, now_s)][-2:])
        return others


class Slot(Struct, eq=False):
    """An in-flight slot at one deployment: taken before any wait, and released when its attempt is
    settled.

    `started_s` is its attempt's start, None before it; `last_received_s` is the time of the last
    bytes from upstream. `leave(now_s)` ends the attempt, so that the request moves to another
    deployment; None before it was sent and once its caller received something.
    """

    standing: DeploymentState
    started_s: float | None = None
    last_received_s: float = inf
    leave: Callable[[float], None] | None = None

    def note_received(self, at_s: float) -> None:
        """Record content that the upstream sent at `at_s`."""
        self.last_received_s = self.standing.received_s = at_s

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the last bytes from upstream, or since the attempt's start."""
        return now_s - self.last_received_s

    def release(self, event: UsageEvent | None = None) -> None:
        """Free the slot in flight: called by the attempt's settlement, or directly if there is no
        attempt.

        A second call does nothing.
        """
        standing = self.standing
        if self not in standing.under_way:
            return
        standing.under_way.discard(self)
        self.leave = None
        if self.started_s is not None and standing.breaker.opened_s is not None:
            standing.breaker.give_up(self.started_s)


class DeploymentHealth:
    """The breakers, retry budgets and slots of all deployments in this worker.

    `max_in_flight` applies to a deployment that declares no bound.

    Callbacks: `on_open(deployment, reason)` and `on_close(deployment)` report breakers.
    `on_retry(deployment)` reports each attempt after a request's first,
    `on_retry_refused(deployment)` each one without retry budget. `on_begin(deployment)` reports
    every attempt at a self-hosted engine.
    """

    def __init__(
        self,
        *,
        max_in_flight: float = inf,
        on_open: Callable[[str, str], None] = lambda name, reason: None,
        on_close: Callable[[str], None] = lambda name: None,
        on_retry: Callable[[str], None] = lambda name: None,
        on_retry_refused: Callable[[str], None] = lambda name: None,
        on_begin: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Start without any deployment's state; each is made at its first use."""
        self._max_in_flight = max_in_flight
        self._on_open, self._on_close = on_open, on_close
        self._on_retry, self._on_retry_refused, self._on_begin = (
            on_retry,
            on_retry_refused,
            on_begin,
        )
        self._standings: dict[str, DeploymentState] = {}
        self._teams: dict[str, RetryBudget] = {}
        # True while a prober runs; then no caller's request serves as a probe
        self.probes_engines = False

    def of(self, deployment: Deployment) -> DeploymentState:
        """Return a deployment's state; a deployment at a new address gets a fresh one."""
        standing = self._standings.get(deployment.name)
        if standing is not None and standing.deployment is deployment:
            return standing
        if standing is None or standing.deployment.base_url != deployment.base_url:
            standing = self._standings[deployment.name] = DeploymentState(deployment)
        # A policy may make an engine of a provider, and the other way: that decides who probes it.
        standing.deployment = deployment
        return standing

    def is_open(self, standing: DeploymentState, now_s: float) -> bool:
        """Return True if the deployment must be passed over, because its breaker is open.

        If only a request can serve as its probe and one is due, it is not passed over.
        """
        breaker = standing.breaker
        if breaker.opened_s is None:
            return False
        return (self.probes_engines and standing.deployment.is_self_hosted) or not breaker.is_due(
            now_s
        )

    def is_full(self, standing: DeploymentState, deployment: Deployment) -> bool:
        """Return True if this worker has its maximum of attempts in flight there."""
        most = deployment.max_in_flight
        return len(standing.under_way) >= (self._max_in_flight if most is None else most)

    def take_slot(self, standing: DeploymentState) -> Slot:
        """Take an in-flight slot, even above the maximum: `is_full` is asked before. The caller
        starts its attempt in it or releases it.
        """
        slot = Slot(standing)
        standing.under_way.add(slot)
        return slot

    def note_started(self, slot: Slot, *, team: str, number: int, now_s: float) -> None:
        """Record that attempt `number` of a team's request starts in its slot."""
        slot.started_s, standing = now_s, slot.standing
        if standing.deployment.is_self_hosted:
            self._on_begin(standing.deployment.name)
        if number == 1:
            standing.retries.note_request(now_s)
            self._retry_budget_of(team).note_request(now_s)
        if standing.breaker.opened_s is not None:
            standing.breaker.began(now_s)

    def has_retry(self, standing: DeploymentState, team: str, *, now_s: float) -> bool:
        """Return True if the budgets of a deployment and a team cover one more retry."""
        return standing.retries.has_one(now_s) and self._retry_budget_of(team).has_one(now_s)

    def take_retry(self, standing: DeploymentState, team: str, *, now_s: float) -> bool:
        """Pay for one retry from the budgets of its deployment and its team; return False if one is
        empty.
        """
        of_team, name = self._retry_budget_of(team), standing.deployment.name
        if not self.has_retry(standing, team, now_s=now_s):
            self._on_retry_refused(name)
            return False
        standing.retries.take(now_s)
        of_team.take(now_s)
        self._on_retry(name)
        return True

    def note_answer(self, slot: Slot, *, at_s: float) -> None:
        """Record that a good answer to the slot's attempt began at `at_s`."""
        assert slot.started_s is not None, "only an attempt is answered"
        standing = slot.standing
        if at_s > standing.received_s:
            standing.received_s = at_s
        self._note_success(standing, slot.started_s, at_s)

    def note_failure(self, slot: Slot, error: RequestError, *, team: str, now_s: float) -> None:
        """Record the failed attempt of a slot. Our own errors do not count against the
        deployment.
        """
        assert slot.started_s is not None, "only an attempt fails"
        standing, began_s = slot.standing, slot.started_s
        if isinstance(error, UpstreamAuth) and error.may_be_this_request:
            # One team's flagged prompts must not send every other team to a dearer deployment.
            if not standing.note_forbidden(team, now_s):
                return
        elif isinstance(error, OPENS_AT_ONCE):
            reason = reason_of(error)
            self._open_breaker(standing, reason, now_s=now_s, problem=error.message)
        if isinstance(error, FAILED) and not isinstance(error, SAYS_NOTHING):
            self._note_failure(standing, error, began_s, now_s)
        elif isinstance(error, ANSWERED):
            self._note_success(standing, began_s, now_s)

    def note_probe(
        self, deployment: Deployment, error: RequestError | None, *, began_s: float, now_s: float
    ) -> None:
        """Record the end of an engine's probe: success, or `error`."""
        standing = self.of(deployment)
        if error is None:
            self._note_success(standing, began_s, now_s)
        else:
            # A probe's content is fixed, so a 403 is not about a prompt.
            if isinstance(error, OPENS_AT_ONCE):
                reason = reason_of(error)
                self._open_breaker(standing, reason, now_s=now_s, problem=error.message)
            self._note_failure(standing, error, began_s, now_s)

    def open_breaker(self, deployment: Deployment, reason: str, *, now_s: float) -> None:
        """Pass a deployment over from now on, until a probe succeeds."""
        self._open_breaker(self.of(deployment), reason, now_s=now_s)

    def _open_breaker(
        self, standing: DeploymentState, reason: str, *, now_s: float, problem: str | None = None
    ) -> None:
        """Open a deployment's breaker, and report it if it was closed."""
        if standing.breaker.open(now_s):
            self._opened(standing, reason, problem)

    def _opened(self, standing: DeploymentState, reason: str, problem: str | None) -> None:
        """Keep the reason why a deployment's breaker opened, report it, and log it with the last
        error's message, which names the provider's own type of error.
        """
        standing.opened_for, name = reason, standing.deployment.name
        log.warning("deployment_passed_over", deployment=name, reason=reason, problem=problem)
        self._on_open(name, reason)

    def _note_success(self, standing: DeploymentState, began_s: float, now_s: float) -> None:
        """Record a good attempt in the breaker, and report it if that closes it."""
        if standing.breaker.succeeded(began_s, now_s):
            log.info("deployment_used_again", deployment=standing.deployment.name)
            self._on_close(standing.deployment.name)

    def _note_failure(
        self, standing: DeploymentState, error: RequestError, began_s: float, now_s: float
    ) -> None:
        """Record a failed attempt in the breaker, and report it if that opens it."""
        if standing.breaker.failed(began_s, now_s, is_silent=isinstance(error, SILENT)):
            self._opened(standing, reason_of(error), error.message)

    def states(self) -> list[DeploymentState]:
        """Return every known deployment's state."""
        return list(self._standings.values())

    def checks(self) -> tuple[Check, ...]:
        """Return the check on breakers, for readiness. It warns: other deployments may serve."""
        opened = [
            f"{standing.deployment.name} ({standing.opened_for})"
            for standing in self._standings.values()
            if standing.breaker.opened_s is not None
        ]
        if not opened:
            return (Check("deployments", Status.OK, "none is passed over"),)
        finding = f"passed over because they failed: {', '.join(opened)}"
        return (Check("deployments", Status.WARN, finding, _REMEDY),)

    def forget_but(self, policy: Policy) -> None:
        """Drop the state of deployments and teams that are not in the policy; attempts in flight
        still end normally.
        """
        for name in self._standings.keys() - policy.deployments.keys():
            del self._standings[name]
        for team in self._teams.keys() - policy.teams.keys():
            del self._teams[team]

    def _retry_budget_of(self, name: str) -> RetryBudget:
        """Return a team's retry budget; make it at the team's first request."""
        budget = self._teams.get(name)
        if budget is None:
            budget = self._teams[name] = RetryBudget()
        return budget
