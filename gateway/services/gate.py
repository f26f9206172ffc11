"""What a request must pass before anything is sent: its limits, its key, and for each attempt room and budgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.domain import budget_words
from gateway.domain.bound import Bound
from gateway.domain.budgets import Account, Hold
from gateway.domain.idempotency import Claim
from gateway.domain.limits import LimitedBy, limits_of_deployment
from gateway.domain.policy import Deployment
from gateway.domain.refusals import SHADOW
from gateway.domain.request import Request
from gateway.domain.routing import Decision
from gateway.errors import ConcurrencyLimited, InvalidRequest, RateLimited
from gateway.services.idempotency import Claims
from gateway.services.limiter import Admission, Limiter
from gateway.services.ports import Clock
from gateway.services.purses import Purses
from gateway.services.refusals import Refusals
from gateway.services.snapshot import Terms
from gateway.services.tab import OnEnd, Tab
from gateway.wire.openai_request import ReadBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Lets requests and attempts through. What it took goes back with the tab that it hands out."""

    purses: Purses
    limiter: Limiter
    claims: Claims
    refusals: Refusals
    clock: Clock

    async def admit(
        self, request: Request, read: ReadBody, terms: Terms, *, decision: Decision, most_tokens: int
    ) -> Tab:
        """Take a request under its limits and claim its key. A limit in shadow refuses nothing, but counts.

        Raises `RateLimited`, `ConcurrencyLimited`, `IdempotencyConflict`, `IdempotencyMismatch` or `Unavailable`; then
        nothing is taken.
        """
        tab = Tab()
        try:
            if terms.limits:
                tab.tell(_returning(await self.limiter.admit(terms.limits, most_tokens)))
            for limited in terms.shadow_limits:
                if (admission := await self._in_shadow(limited, most_tokens, decision)) is not None:
                    tab.tell(_returning(admission))
            if request.idempotency_key is not None:
                claim = await self.claims.claim(
                    request.caller.team, request.idempotency_key, endpoint=request.ask.operation, body=read.body,
                    request_id=request.request_id,
                )  # fmt: skip
                tab.tell(_ending(self.claims, claim))
        except BaseException:
            tab.close()  # nothing was sent
            raise
        return tab

    async def take(
        self, accounts: Sequence[Account], bound: Bound, deployment: Deployment, *, decision: Decision
    ) -> tuple[tuple[Hold, ...], Tab | None]:
        """Take room for an attempt at its deployment, and hold the most that it can cost, on every budget.

        Raises the error for the caller; then nothing is taken and nothing held.
        """
        room = await self._room(deployment, bound, decision) if deployment.limits.is_limited else None
        try:
            return await self._hold(accounts, bound, deployment) if accounts else (), room
        except BaseException:
            if room is not None:
                room.close()
            raise

    def remaining_nusd(self, holds: Iterable[Hold]) -> int | None:
        """What the tightest hard budget of an attempt has room for; None where it has none."""
        return self.purses.remaining_nusd(holds)

    async def _room(self, deployment: Deployment, bound: Bound, decision: Decision) -> Tab | None:
        limits = limits_of_deployment(deployment.name, deployment.limits)
        if not deployment.limits.is_shadow:
            return Tab(_returning(await self.limiter.admit(limits, bound.tokens)))
        admission = await self._in_shadow(limits[0], bound.tokens, decision)
        return None if admission is None else Tab(_returning(admission))

    async def _in_shadow(self, limited: LimitedBy, tokens: int, decision: Decision) -> Admission | None:
        """What the limit gives, None where it would have refused."""
        try:
            return await self.limiter.admit((limited,), tokens)
        except (RateLimited, ConcurrencyLimited) as refused:
            self.refusals.note(decision, f"{SHADOW}{refused.code}", rules=(limited[0],))
            return None

    async def _hold(self, accounts: Sequence[Account], bound: Bound, deployment: Deployment) -> tuple[Hold, ...]:
        if not bound.is_certain and (hard := [account for account in accounts if account.rule.is_hard]):
            raise InvalidRequest(budget_words.unbounded(hard[0], deployment.name), param="max_tokens")
        return await self.purses.hold(accounts, bound.nusd, moment=self.clock.now())


def _returning(admission: Admission) -> OnEnd:
    """Correct what was taken under limits to what was used, when the request is over."""

    def hear(*, used_tokens: int | None, was_charged: bool) -> None:
        admission.settle(used_tokens)

    return hear


def _ending(claims: Claims, claim: Claim) -> OnEnd:
    """End the claim on a key: for good if the request was charged, else for a new try."""

    def hear(*, used_tokens: int | None, was_charged: bool) -> None:
        claims.finish(claim, was_charged=was_charged)

    return hear
