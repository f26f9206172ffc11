"""Admits a request by its limits and idempotency key, and each attempt by its deployment's limits
and its budgets; all of it is returned when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.domain.budgets import messages
from gateway.domain.budgets.budgets import Account, Hold
from gateway.domain.budgets.limits import LimitedBy, limits_of_deployment
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.policy import Deployment
from gateway.domain.request.bound import Bound
from gateway.domain.request.idempotency import Claim
from gateway.domain.request.request import Request
from gateway.domain.routing.decide import Decision
from gateway.domain.routing.refusal_count_key import SHADOW
from gateway.errors import ConcurrencyLimited, RateLimited, Unbounded
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.limits.limiter import Limiter, LimitGrant
from gateway.services.ports import Clock
from gateway.services.request.idempotency import Claims
from gateway.services.request.refusals import Refusals
from gateway.services.request.totals import OnSettled, RequestTotals
from gateway.services.snapshot.snapshot import RequestTerms


@dataclass(frozen=True, slots=True)
class AttemptGrant:
    """All that was reserved for one attempt: units of limits, a slot and holds.

    Its `on_settled` listeners return all of it when the attempt ends.
    """

    holds: tuple[Hold, ...]
    on_settled: tuple[OnSettled, ...]


NOTHING_TAKEN = AttemptGrant((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admits requests by limits and idempotency keys, and attempts by capacity and budgets.

    The listeners that it hands out return everything that it takes.
    """

    budget_leases: BudgetLeases
    limiter: Limiter
    claims: Claims
    refusals: Refusals
    clock: Clock

    async def admit(
        self, request: Request, terms: RequestTerms, *, decision: Decision, most_tokens: int
    ) -> RequestTotals:
        """Take a request under its limits and claim its idempotency key.

        A limit in shadow mode refuses nothing, but counts.

        Raises `RateLimited`, `ConcurrencyLimited`, `IdempotencyConflict`, `IdempotencyMismatch` or
        `Unavailable`; then nothing is taken.
        """
        totals = RequestTotals()
        try:
            if terms.limits:
                _settle_limits_at_end(totals, await self.limiter.admit(terms.limits, most_tokens))
            for limited in terms.shadow_limits:
                if (admission := await self._in_shadow(limited, most_tokens, decision)) is not None:
                    _settle_limits_at_end(totals, admission)
            if request.idempotency_key is not None:
                claim = await self.claims.claim(
                    request.caller.team,
                    request.idempotency_key,
                    endpoint=request.body.facts.operation,
                    body=request.body.body,
                    request_id=request.request_id,
                )
                _finish_claim_at_end(totals, self.claims, claim)
        except BaseException:
            totals.close()  # nothing was sent
            raise
        return totals

    async def take(
        self,
        accounts: Sequence[Account],
        bound: Bound,
        deployment: Deployment,
        *,
        decision: Decision,
    ) -> AttemptGrant:
        """Take capacity at a deployment and hold the attempt's maximum cost on every budget.

        Raises the error for the caller; then nothing is taken and nothing held.
        """
        is_limited = deployment.limits.is_limited
        if not is_limited and not accounts:
            return NOTHING_TAKEN
        admission = (
            await self._admit_under_limits(deployment, bound, decision) if is_limited else None
        )
        try:
            holds = await self._hold(accounts, bound, deployment) if accounts else ()
        except BaseException:
            if admission is not None:
                admission.settle(0)
            raise

        def give_back(event: UsageEvent | None) -> None:
            """Settle the attempt's holds and its deployment's limits by its event; None means that
            it was never sent.
            """
            if holds:
                self.budget_leases.settle(holds, 0 if event is None else event.cost_nusd)
            if admission is not None:
                admission.settle(0 if event is None else event.used_tokens)

        return AttemptGrant(holds, (give_back,))

    def remaining_nusd(self, holds: Iterable[Hold]) -> int | None:
        """Return the room of the attempt's tightest hard budget; None if it has none."""
        return self.budget_leases.remaining_nusd(holds)

    async def _admit_under_limits(
        self, deployment: Deployment, bound: Bound, decision: Decision
    ) -> LimitGrant | None:
        """Take an attempt's units of its deployment's limits; shadow limits refuse nothing."""
        limits = limits_of_deployment(deployment.name, deployment.limits)
        if not deployment.limits.is_shadow:
            return await self.limiter.admit(limits, bound.tokens)
        return await self._in_shadow(limits[0], bound.tokens, decision)

    async def _in_shadow(
        self, limited: LimitedBy, tokens: int, decision: Decision
    ) -> LimitGrant | None:
        """Return the grant of a limit in shadow mode; if the limit would have refused, count that
        and return None.
        """
        try:
            return await self.limiter.admit((limited,), tokens)
        except (RateLimited, ConcurrencyLimited) as refused:
            self.refusals.note(
                decision.team.name,
                f"{SHADOW}{refused.code}",
                rules=(limited[0],),
                route=decision.route.name,
                data_class=decision.class_label,
            )
            return None

    async def _hold(
        self, accounts: Sequence[Account], bound: Bound, deployment: Deployment
    ) -> tuple[Hold, ...]:
        """Hold an attempt's maximum cost on every budget; refuse an unbounded request if one of
        them is hard.
        """
        if not bound.is_certain and (
            hard := [account for account in accounts if account.rule.is_hard]
        ):
            unbounded = _unbounded(hard[0], bound, deployment)
            unbounded.rules = (hard[0].account_id,)
            raise unbounded
        return await self.budget_leases.hold(accounts, bound.nusd, moment=self.clock.now())


def _unbounded(account: Account, bound: Bound, deployment: Deployment) -> Unbounded:
    """Return the error for a request whose cost at a deployment has no bound."""
    rounds, missing, fee = bound.rounds, bound.unpriced, None
    if rounds is not None and rounds.unbounded is not None and bound.missing == rounds.missing:
        missing, fee = None, missing  # both are named
    needs = messages.all_needs(
        rates=[one.field for one in bound.missing if one.field and not one.is_argument],
        names=[one.listed_as for one in bound.missing if one.is_argument or not one.field],
    )
    if missing is not None and missing.is_unbounded:
        return Unbounded(
            messages.unbounded_member(
                account, deployment.name, where=missing.where, listed_as=missing.listed_as
            )
            + needs,
            param=missing.where.partition(":")[0],
        )
    if missing is not None:
        return Unbounded(
            messages.unpriced(
                account,
                deployment.name,
                where=missing.where,
                rate=missing.field,
                can_drop=missing.can_drop,
                listed_as=missing.listed_as,
                is_argument=missing.is_argument,
            )
            + needs,
            param=missing.where.partition(":")[0].partition("=")[0],
        )
    if rounds is None or (tool := rounds.unbounded) is None:
        return Unbounded(messages.unbounded(account, deployment.name), param="max_tokens")
    return Unbounded(
        messages.unbounded_rounds(
            account,
            deployment.name,
            tool=tool.where,
            can_drop=tool.can_leave_out,
            most_rounds=rounds.most_rounds,
            rate=None if fee is None else fee.field,
            listed_as=None if fee is None else fee.listed_as,
        )
        + needs,
        param="model" if tool.where.startswith("model: ") else tool.member or "tools",
    )


def _settle_limits_at_end(totals: RequestTotals, admission: LimitGrant) -> None:
    """Let the end of the request settle the units taken under its limits by the actual use."""
    totals.on_end.append(lambda ended: admission.settle(ended.used_tokens))


def _finish_claim_at_end(totals: RequestTotals, claims: Claims, claim: Claim) -> None:
    """Let the end of the request end its claim on an idempotency key: for ever if it was charged,
    else the key is free again.
    """
    totals.on_end.append(lambda ended: claims.finish(claim, was_charged=ended.was_charged))
