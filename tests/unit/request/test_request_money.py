"""Budgets, limits and keys of a request: everything taken is returned on every exit."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.domain.budgets.budgets import BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.budgets.limits import Limits
from gateway.domain.request.idempotency import Claim, Earlier
from gateway.errors import (
    BudgetExhausted,
    DatabaseUnavailable,
    IdempotencyConflict,
    InvalidRequest,
    JournalFull,
    RateLimited,
    RequestError,
    UpstreamError,
    UpstreamUnreachable,
)
from gateway.providers.registry import build_providers
from gateway.services.budgets.leases import BudgetLeases
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.limits.limiter import Limiter
from gateway.services.request.abandoned import AbandonedAnswers, DrainLimits
from gateway.services.request.admission import Admission
from gateway.services.request.attempt import Attempts
from gateway.services.request.idempotency import Claims
from gateway.services.request.meter import Meter
from gateway.services.request.refusals import Refusals
from gateway.services.request.service import CallerAnswer, RequestService
from tests import factories
from tests.fakes import (
    FakeClock,
    FakeCounter,
    FakeEjections,
    FakeJournal,
    FakeLeases,
    FakeRefusals,
    FakeTransport,
    FakeUpstreamAnswer,
)
from tests.waiting import soon

USD = 10**9
WHOLE = json.dumps(
    {
        "id": "c-1",
        "model": "m-1",
        "choices": [{"finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }
).encode()
COST_NUSD = 30_000  # of that answer


@dataclass
class ClaimsInMemory:
    """A store of claims that notes how each has ended."""

    claimed: dict[bytes, tuple[Claim, bool | None]] = field(default_factory=dict)

    def claim(self, claim: Claim, body_hash: bytes, *, journal_id: UUID) -> Earlier | None:
        held = self.claimed.get(claim.key_hash)
        if held is not None:
            return Earlier(
                request_id=held[0].request_id, is_same_body=True, is_finished=held[1] is True
            )
        self.claimed[claim.key_hash] = (claim, None)
        return None

    def end(self, ended: Any) -> None:
        for claim, was_charged in ended:
            if was_charged:
                self.claimed[claim.key_hash] = (claim, True)
            else:
                del self.claimed[claim.key_hash]

    def forget(self) -> int:
        return 0

    def close(self) -> None:
        return


class NoWindows:
    """A Postgres that is away: each worker goes on with its own part of a limit."""

    def exchange(self, worker: UUID, number: int, asks: Any) -> Any:
        raise DatabaseUnavailable("away")

    def close(self) -> None:
        return


@dataclass
class Stage:
    """A service over fakes; `limit_usd` is the team's budget by the month, None for none."""

    answers: list[FakeUpstreamAnswer | RequestError]
    limit_usd: int | None = 100
    limits: Limits = field(default_factory=Limits)
    max_attempts: int = 3
    clock: FakeClock = field(default_factory=FakeClock)
    journal: FakeJournal = field(default_factory=FakeJournal)
    leases: FakeLeases = field(default_factory=FakeLeases)
    store: ClaimsInMemory = field(default_factory=ClaimsInMemory)

    def __post_init__(self) -> None:
        self.transport = FakeTransport(self.answers)
        self.worker = uuid4()
        self.budget_leases = BudgetLeases(
            self.leases, self.clock, worker=self.worker, lease_s=900, wait_s=5.0
        )
        self.limiter = Limiter(NoWindows(), self.clock, worker=self.worker)
        self.claims = Claims(self.store, self.clock, secret=b"secret", journal_id=self.worker)
        self.counted = FakeRefusals()
        self.refusals = Refusals(self.counted, self.clock, journal_id=uuid4(), files=self.counted)
        self.admission = Admission(
            budget_leases=self.budget_leases,
            limiter=self.limiter,
            claims=self.claims,
            refusals=self.refusals,
            clock=self.clock,
        )
        self.ejection_store = FakeEjections()
        self.ejections = Ejections(self.ejection_store, self.clock, on_ejected=lambda _: None)
        self.meter = Meter(self.journal, on_settled=(), ejections=self.ejections)
        self.abandoned = AbandonedAnswers(
            FakeCounter(), DrainLimits(answers=0, seconds=1, events=1), is_stopping=lambda: False
        )
        self.leases.limits["payments/month"] = (self.limit_usd or 0) * USD

    async def answer(
        self, *deployments: Any, key: str | None = None, **members: Any
    ) -> CallerAnswer:
        body = json.dumps(
            {"model": "assistant", "messages": [], "max_tokens": 100} | members
        ).encode()
        read = factories.read(body)
        service = RequestService(
            transport=self.transport,
            providers=build_providers(salt_key=b"salt"),
            admission=self.admission,
            attempts=Attempts(self.meter, self.clock),
            abandoned=self.abandoned,
            clock=self.clock,
            max_attempts=self.max_attempts,
            refusals=self.refusals,
            ejections=self.ejections,
            estimates=Estimates(self.clock),
            health=DeploymentHealth(),
            draw=lambda: 0.0,
        )
        snapshot = factories.snapshot(
            document=factories.policy(
                *deployments,
                teams={"payments": factories.team(budgets=self.rules(), limits=self.limits)},
            )
        )
        task = asyncio.create_task(self.budget_leases.run())
        try:
            request = factories.request(read, idempotency_key=key, request_id=uuid4_as_7())
            terms = factories.terms(snapshot, request)
            return await service.answer(
                request, snapshot, terms=terms, received_s=self.clock.monotonic()
            )
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def rules(self) -> tuple[BudgetRule, ...]:
        if self.limit_usd is None:
            return ()
        return (
            BudgetRule(
                rule_id="payments/month",
                scope=BudgetScope.TEAM,
                team="payments",
                owner="payments",
                period=BudgetPeriod.MONTH,
                limit_nusd=self.limit_usd * USD,
            ),
        )

    @property
    def held_nusd(self) -> int:
        """Return the budget's current holds."""
        return sum(budget_lease.held_nusd for budget_lease in self.budget_leases._leases.values())


def uuid4_as_7() -> UUID:
    """An id of its own for each request, as of now."""
    return factories.request_id(random=uuid4().int & (2**70 - 1))


def two() -> tuple[Any, Any]:
    return factories.deployment("one"), factories.deployment("two")


async def test_a_hold_is_replaced_by_the_cost() -> None:
    """The event names its budget and its hold there; the rest is free again."""
    on = Stage([FakeUpstreamAnswer([WHOLE])])
    answer = await on.answer()
    (event,) = on.journal.events
    (hold,) = event.holds
    assert (hold.account_id, event.cost_nusd, on.held_nusd) == ("payments/month", COST_NUSD, 0)
    assert on.journal.intents[0].event.holds == event.holds
    assert hold.held_nusd == on.journal.intents[0].event.held_nusd
    assert answer.budget_remaining_nusd == 100 * USD - COST_NUSD


async def test_each_attempt_has_a_hold_of_its_own() -> None:
    """The first one failed and cost nothing: its hold is gone before the second is made."""
    on = Stage([UpstreamUnreachable("x"), FakeUpstreamAnswer([WHOLE])])
    await on.answer(*two())
    assert [event.cost_nusd for event in on.journal.events] == [0, COST_NUSD]
    assert all(event.holds for event in on.journal.events)
    assert on.held_nusd == 0


async def test_a_budget_without_room_ends_the_request_before_anything_is_sent() -> None:
    """No intent, no attempt, no event."""
    on = Stage([], limit_usd=0)
    with pytest.raises(BudgetExhausted):
        await on.answer()
    assert (on.journal.intents, on.journal.events, on.transport.sent) == ([], [], [])


async def test_of_two_reasons_the_first_is_reported() -> None:
    """The deployment failed; the missing room for a retry is not the problem to fix."""
    on = Stage([UpstreamError("the first one failed")], limit_usd=1)
    dear = factories.deployment("two", input_overhead_tokens=2_000_000)
    with pytest.raises(UpstreamError, match="the first one failed"):
        await on.answer(factories.deployment("one"), dear)


async def test_a_request_that_the_journal_refuses_holds_nothing() -> None:
    """A full journal sends nothing; a hold that stayed would block the budget for ever."""
    on = Stage([])
    on.journal.refuses = JournalFull("full")
    with pytest.raises(JournalFull):
        await on.answer()
    assert on.held_nusd == 0


async def test_an_unbounded_request_is_refused_under_a_hard_budget_alone() -> None:
    """Without a budget a guess does no harm."""
    on = Stage([])
    with pytest.raises(InvalidRequest, match="has no upper bound"):
        await on.answer(max_tokens=None)
    free = Stage([FakeUpstreamAnswer([WHOLE])], limit_usd=None)
    assert (await free.answer(max_tokens=None)).budget_remaining_nusd is None


async def test_a_request_without_a_bound_goes_to_a_deployment_that_bounds_it() -> None:
    """The refusal of the first one is no reason while another one takes the request."""
    on = Stage([FakeUpstreamAnswer([WHOLE])])
    one, two = factories.deployment("one"), factories.deployment("two", max_output_tokens=50)
    await on.answer(one, two, max_tokens=None)
    assert [event.deployment for event in on.journal.events] == ["two"]


async def test_recovery_does_not_charge_tokens_beside_an_uncounted_fee() -> None:
    """A running figure is not all that the provider bills, so the hold stands."""
    plain = Stage([FakeUpstreamAnswer([WHOLE])])
    searching = Stage([FakeUpstreamAnswer([WHOLE])], limit_usd=None)
    model = "gpt-4o-search-preview"
    found = await searching.answer(factories.deployment("one", provider="openai", model=model))
    assert found.attempt.observed.usage is not None
    assert found.attempt.running_usage() is None
    (event,) = searching.journal.events
    assert (event.cost_nusd, event.held_nusd) == (None, found.attempt.bound.nusd)
    usual = (await plain.answer()).attempt
    assert usual.running_usage() == usual.observed.usage


async def test_a_full_deployment_is_passed_over() -> None:
    """Its limit is no failure: the next one answers, and the attempt counts as the first."""
    on = Stage([FakeUpstreamAnswer([WHOLE]), FakeUpstreamAnswer([WHOLE])])
    one, two = (
        factories.deployment("one", limits=Limits(requests_per_minute=1)),
        factories.deployment("two"),
    )
    await on.answer(one, two)
    second = await on.answer(one, two)
    assert [event.deployment for event in on.journal.events] == ["one", "two"]
    assert second.attempt.number == 1


async def test_full_deployments_give_a_429_with_a_retry_time() -> None:
    """429 with a time, and nothing was sent."""
    on = Stage([FakeUpstreamAnswer([WHOLE])])
    one = factories.deployment("one", limits=Limits(requests_per_minute=1))
    await on.answer(one)
    with pytest.raises(RateLimited) as refused:
        await on.answer(one)
    assert refused.value.retry_after_s is not None
    assert refused.value.attempts == 0


async def test_a_slot_is_free_again_however_the_request_ended() -> None:
    """A leak would close the team out for ever: answered, failed, refused by its budget,
    cancelled.
    """
    on = Stage(
        [FakeUpstreamAnswer([WHOLE]), UpstreamError("x"), FakeUpstreamAnswer([WHOLE])],
        limits=Limits(concurrent=1),
        max_attempts=1,
    )
    await on.answer()
    with pytest.raises(UpstreamError):
        await on.answer()
    on.journal.refuses = JournalFull("full")
    with pytest.raises(JournalFull):
        await on.answer()
    on.journal.refuses = None
    on.journal.admission = asyncio.Event()
    waiting = asyncio.create_task(on.answer())
    await soon(lambda: len(on.journal.intents) == 3, "the intent of one that is then cancelled")
    waiting.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    on.journal.admission = None
    assert await on.answer()


async def test_a_key_is_used_up_by_a_charge_and_not_by_a_failure_that_cost_nothing() -> None:
    """The second try of a request that never reached anybody is a first one."""
    on = Stage([UpstreamUnreachable("x"), FakeUpstreamAnswer([WHOLE])], max_attempts=1)
    with pytest.raises(UpstreamUnreachable):
        await on.answer(key="k")
    await on.answer(key="k")
    with pytest.raises(IdempotencyConflict):
        await on.answer(key="k")
    assert [event.cost_nusd for event in on.journal.events] == [0, COST_NUSD]


async def test_a_request_that_is_refused_leaves_its_key_free() -> None:
    """A budget without room today may have some tomorrow: the key must not be burnt."""
    on = Stage([FakeUpstreamAnswer([WHOLE])], limit_usd=0)
    with pytest.raises(BudgetExhausted):
        await on.answer(key="k")
    on.leases.limits["payments/month"] = 100 * USD
    on.clock.advance(1)  # a word so new is not asked for again
    assert await on.answer(key="k")


async def test_a_limit_in_shadow_refuses_nothing_and_is_counted() -> None:
    """Whoever turns it on later knows beforehand whom it will hurt: the team's, and a
    deployment's.
    """
    shadow = Limits(requests_per_minute=1, is_shadow=True)
    on = Stage([FakeUpstreamAnswer([WHOLE]) for _ in range(3)], limits=shadow)
    for _ in range(3):
        await on.answer(factories.deployment("one", limits=shadow))
    assert len(on.journal.events) == 3
    await on.refusals.write()
    counted = {
        (refused.code, refused.rules): times for (_, refused), times in on.counted.counts.items()
    }
    assert counted == {
        ("shadow:rate_limited", ("payments",)): 2,
        ("shadow:rate_limited", ("deployment:one",)): 2,
    }


async def test_a_shadow_slot_is_returned() -> None:
    """A slot that is only counted must be free again, or the count would say that all is full for
    ever.
    """
    on = Stage(
        [FakeUpstreamAnswer([WHOLE]) for _ in range(3)], limits=Limits(concurrent=1, is_shadow=True)
    )
    for _ in range(3):
        await on.answer()
    await on.refusals.write()
    assert on.counted.counts == {}
