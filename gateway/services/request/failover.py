"""Chooses a request's next attempt: another candidate, the best one again after a pause, or the
error for the caller; it runs no attempt.

All rules of failover are here.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from gateway.domain.routing.decide import Choice
from gateway.errors import (
    ContextLengthExceeded,
    Overloaded,
    RateLimited,
    RequestError,
    ResidencyDenied,
    Unbounded,
    Untranslatable,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth, DeploymentState, full_error
from gateway.services.ports import Upstream

ANOTHER_MAY_DO_BETTER = (
    UpstreamUnreachable,
    UpstreamTimeout,
    UpstreamError,
    UpstreamAuth,
    RateLimited,
    Overloaded,
    ContextLengthExceeded,
)
# Reasons at one deployment that another one may not have.
ANOTHER_MAY_TAKE = (Untranslatable, Unbounded)
MOST_TIMEOUTS = 2  # each costs its caller a minute
ENGINE_BACK_S = 5.0  # an engine that is down is probed again after this time, at the earliest
PAUSE_BASE_S, LONGEST_PAUSE_S = 0.1, 2.0
# Seconds of an upstream's `retry-after`; with a longer one the caller gets the error.
LONGEST_ASKED_PAUSE_S = 10.0


class _FailedCandidate(Struct):
    """A failed candidate with its last error and its number of tries."""

    choice: Choice
    error: RequestError
    times: int = 1


class Failover(Struct, kw_only=True):
    """The way of one request through its candidates.

    `pause_s` is the wait before the next try, `upstream` the exchange of the last one; `draw`
    returns a number below 1.
    """

    choices: tuple[Choice, ...]
    team: str
    deadline_s: float
    max_attempts: int
    health: DeploymentHealth
    ejections: Ejections
    draw: Callable[[], float]
    made: int = 0
    pause_s: float = 0.0
    failure: RequestError | None = None
    upstream: Upstream | None = None
    _standing: DeploymentState | None = None
    _last: Choice | None = None
    _at: int = 0
    _tried: list[_FailedCandidate] = []  # in the order of their first attempts
    _excluded: set[str] = set()  # candidates that would fail again, or whose retries are used up
    _is_final: bool = False
    _timeouts: int = 0

    @property
    def chosen_state(self) -> DeploymentState:
        """Return the state of the deployment that was chosen last."""
        assert self._standing is not None, "a choice was made"
        return self._standing

    def next(self, now_s: float) -> Choice:
        """Return the candidate to try now, after a wait of `pause_s`.

        Raises the error for the caller if none is left.
        """
        if self._is_final or self.made == self.max_attempts or now_s >= self.deadline_s:
            raise self.error()
        self.pause_s = 0.0
        choice = (
            self._next_untried(now_s)
            or (self._next_retry(now_s) if self.made else None)
            or self._with_open_breaker()
        )
        if choice is None:
            raise self.error()
        if self.made and not self.health.take_retry(self.chosen_state, self.team, now_s=now_s):
            error = self.error()
            # Without this, the caller's retries would cause the storm that ours avoid.
            error.is_retry_useless = True
            raise error
        return choice

    def note_full(self, choice: Choice, error: RequestError) -> None:
        """Exclude a deployment that cannot take the request (its own limit has no room, its dialect
        no place for a field, or its cost no bound); the next candidate may take it.
        """
        error.attempts = self.made
        self._excluded.add(choice.candidate.deployment.name)
        self.failure = self.first_reason(error)

    def first_reason(self, error: RequestError) -> RequestError:
        """Return the first of the request's errors: of two reasons, it is the one to fix.

        A field without a place, or a cost without a bound, is no reason if another deployment
        carries it: a 400 would hide that deployment's 402, 429 or 503, and keep the caller from
        coming back.
        """
        first = self.failure
        is_hidden = isinstance(first, ANOTHER_MAY_TAKE) and not isinstance(error, ANOTHER_MAY_TAKE)
        return error if first is None or is_hidden else first

    def note_started(self, choice: Choice) -> None:
        """Record that an attempt at this candidate begins."""
        self.made += 1
        self._last = choice

    def note_failed(self, error: RequestError) -> None:
        """Record that the last attempt failed, before anything reached the caller."""
        assert self._last is not None, "what failed was tried"
        choice = self._last
        self._note_failed_try(choice, error)
        error.attempts = self.made
        if isinstance(error, UpstreamUnreachable) and choice.candidate.deployment.is_self_hosted:
            error.retry_after_s = ENGINE_BACK_S
        # it is kept here, and its frames keep this object
        self.failure = error.with_traceback(None)
        self._timeouts += isinstance(error, UpstreamTimeout)
        is_useless = error.is_final or not isinstance(error, ANOTHER_MAY_DO_BETTER)
        self._is_final = is_useless or self._timeouts == MOST_TIMEOUTS
        # A timed-out attempt may have been generated and billed: not twice at one place.
        if error.is_same_again or isinstance(error, (ContextLengthExceeded, UpstreamTimeout)):
            self._excluded.add(choice.candidate.deployment.name)
        if isinstance(error, ContextLengthExceeded):
            self._exclude_up_to(choice)

    def _note_failed_try(self, choice: Choice, error: RequestError) -> None:
        """Record a candidate's failed try with its error."""
        for tried in self._tried:
            if tried.choice is choice:
                tried.times, tried.error = tried.times + 1, error
                return
        self._tried.append(_FailedCandidate(choice, error))

    def leave(self, now_s: float) -> None:
        """End the attempt in flight, at an engine that hangs, if another candidate would take the
        request now.
        """
        if self.upstream is not None and self._may_leave(now_s):
            self.upstream.give_up()

    def _may_leave(self, now_s: float) -> bool:
        """Return True if the attempt in flight may end as timed out, because another candidate
        would take the request now.
        """
        is_last = self.made >= self.max_attempts or self._timeouts + 1 >= MOST_TIMEOUTS
        return not is_last and any(
            self._would_take(choice, now_s)
            for choice in self._untried()
            if choice is not self._last
        )

    def _would_take(self, choice: Choice, now_s: float) -> bool:
        """Return True if an untried candidate has room, a closed breaker and a retry's budget."""
        deployment, health = choice.candidate.deployment, self.health
        if self.ejections.is_out(deployment.name) or deployment.name in self._excluded:
            return False
        standing = health.of(deployment)
        is_usable = not (health.is_full(standing, deployment) or health.is_open(standing, now_s))
        return is_usable and health.has_retry(standing, self.team, now_s=now_s)

    def error(self) -> RequestError:
        """Return the caller's error once no candidate is left to try."""
        if self.failure is not None:
            return self.failure
        if self._is_out_of_use():
            return ResidencyDenied(
                "The deployments for this request were just taken out of use. Try again."
            )
        return UpstreamTimeout(
            "The time of this request was over before it could be sent. Try again."
        )

    def _next_untried(self, now_s: float) -> Choice | None:
        """Return the next candidate in the ranking that may be tried and whose breaker is
        closed.
        """
        while self._at < len(self.choices):
            choice = self.choices[self._at]
            self._at += 1
            standing = self._usable_state(choice)
            if standing is not None and not self.health.is_open(standing, now_s):
                return choice
        return None

    def _next_retry(self, now_s: float) -> Choice | None:
        """Return the best tried candidate, if it may be repeated: once, while others remain
        untried.
        """
        is_other_left = any(self._usable_state(choice) is not None for choice in self._untried())
        for tried in self._tried:
            if tried.times > 1 and is_other_left:
                continue
            standing = self._usable_state(tried.choice)
            if standing is not None and not self.health.is_open(standing, now_s):
                pause_s = self._pause_s(tried.error)
                if now_s + pause_s < self.deadline_s and pause_s <= LONGEST_ASKED_PAUSE_S:
                    self.pause_s = pause_s
                    return tried.choice
        return None

    def _with_open_breaker(self) -> Choice | None:
        """Return a candidate with an open breaker if no other is left: it may work, an error is
        certain.
        """
        return next(
            (choice for choice in self._untried() if self._usable_state(choice) is not None), None
        )

    def _untried(self) -> list[Choice]:
        """Return the candidates without any attempt yet, in the order of the ranking."""
        return [
            one for one in self.choices if not any(one is tried.choice for tried in self._tried)
        ]

    def _usable_state(self, choice: Choice) -> DeploymentState | None:
        """Return a candidate's state, None if it may not be tried; a full one is recorded as a
        failure.
        """
        deployment = choice.candidate.deployment
        if self.ejections.is_out(deployment.name):  # ejected since this decision
            return None
        if self._excluded and deployment.name in self._excluded:
            return None
        standing = self._standing = self.health.of(deployment)
        if self.health.is_full(standing, deployment):
            self.note_full(choice, full_error(deployment))
            return None
        return standing

    def _pause_s(self, error: RequestError) -> float:
        """Return the wait before a retry: the upstream's `retry-after`, else a growing random
        time.
        """
        if error.asked_wait_s is not None:
            return error.asked_wait_s
        return self.draw() * min(PAUSE_BASE_S * 2.0 ** (self.made - 1), LONGEST_PAUSE_S)

    def _exclude_up_to(self, choice: Choice) -> None:
        """Exclude the candidates whose context window is not known to be larger than this one,
        which was too small.
        """
        window = choice.candidate.deployment.context_window
        for other in self.choices:
            deployment = other.candidate.deployment
            if deployment.context_window is None or (
                window is not None and deployment.context_window <= window
            ):
                self._excluded.add(deployment.name)

    def _is_out_of_use(self) -> bool:
        """Return True if this worker has ejected all candidates."""
        return all(
            self.ejections.is_out(choice.candidate.deployment.name) for choice in self.choices
        )
