"""The story of a request: decide, admit, then for each attempt hold, intend, send, relay and settle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct

from gateway.domain.bound import Bound, bound_of
from gateway.domain.budgets import Account
from gateway.domain.identity import day_of
from gateway.domain.regions import UNKNOWN
from gateway.domain.request import Request
from gateway.domain.routing import Choice, Decision, Ranking, decide, find_route
from gateway.domain.usage_event import Outcome
from gateway.errors import (
    ConcurrencyLimited,
    JournalFull,
    Overloaded,
    RateLimited,
    RequestError,
    ResidencyDenied,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.services.attempt import Attempt, begin
from gateway.services.ejections import Ejections
from gateway.services.endings import Endings
from gateway.services.exchange import Exchange
from gateway.services.gate import Gate
from gateway.services.meter import Meter
from gateway.services.outlook import Outlook
from gateway.services.ports import Clock, Provider, Transport
from gateway.services.refusals import Refusals
from gateway.services.snapshot import MOST_REMEMBERED, Snapshot, Terms
from gateway.services.tab import Tab
from gateway.wire.openai_request import ReadBody
from gateway.wire.sse import EventTooLarge

ANOTHER_MAY_DO_BETTER = (UpstreamUnreachable, UpstreamTimeout, UpstreamError, UpstreamAuth, RateLimited, Overloaded)
OUTCOMES: dict[type[RequestError], Outcome] = {
    UpstreamUnreachable: Outcome.UPSTREAM_UNREACHABLE,
    UpstreamTimeout: Outcome.UPSTREAM_TIMEOUT,
    ResidencyDenied: Outcome.GATEWAY_ERROR,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back to the caller: `body`, the whole of it or a stream's first piece, and the `rest`.

    Whoever takes an answer closes `rest`: that settles the attempt. `budget_remaining_nusd` is what the tightest hard
    budget has room for, None where there is none.
    """

    attempt: Attempt
    content_type: str
    body: bytes
    rest: AsyncGenerator[bytes, None] | None = None
    budget_remaining_nusd: int | None = None


class _Going(Struct, frozen=True, gc=False):
    """A request on its way through its attempts."""

    request: Request
    ranking: Ranking
    accounts: Sequence[Account]
    received_s: float
    tab: Tab | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """Carries requests to deployments, in the order the policy allows. `region` is where this gateway runs."""

    transport: Transport
    providers: Mapping[str, Provider]
    gate: Gate
    meter: Meter
    endings: Endings
    clock: Clock
    max_attempts: int
    refusals: Refusals
    ejections: Ejections
    outlook: Outlook
    region: str = UNKNOWN

    async def answer(
        self, request: Request, read: ReadBody, snapshot: Snapshot, *, terms: Terms, received_s: float
    ) -> Answer:
        """Return the first answer that a deployment gives. Raises the `RequestError` the caller must hear.

        `terms` are those of the request's team, project and key.
        """
        decision = self.decide(request, snapshot)
        if refusal := decision.refusal():
            self.refusals.note(decision, refusal.code)
            raise refusal
        ranking = self.outlook.rank(request, decision)
        tab = None
        if terms.limits or terms.shadow_limits or request.idempotency_key is not None:
            most_tokens = _bound(request, ranking.choices[0]).tokens
            tab = await self.gate.admit(request, read, terms, decision=decision, most_tokens=most_tokens)
        try:
            return await self._dispatch(_Going(request, ranking, terms.accounts, received_s, tab), read)
        finally:
            if tab is not None:
                tab.close()

    async def _dispatch(self, going: _Going, read: ReadBody) -> Answer:
        """Try the deployments in order until one answers."""
        failure: RequestError | None = None
        made = 0
        for choice in going.ranking.choices:
            if made == self.max_attempts:
                break
            if self.ejections.is_out(choice.candidate.deployment.name):
                continue  # since this was decided
            try:
                attempt = await self._begin(going, choice, number=made + 1)
            except (RateLimited, ConcurrencyLimited) as error:
                error.attempts = made
                failure = failure or error  # this deployment is full: the next one may not be
                continue
            except RequestError as error:
                raise failure or error from None  # of two reasons the first is the one to mend
            made += 1
            try:
                return await self._attempt(attempt, read)
            except JournalFull:
                raise  # no other deployment has more room on this machine
            except RequestError as error:
                error.attempts = made
                if not isinstance(error, ANOTHER_MAY_DO_BETTER):
                    raise
                failure = error  # nothing reached the caller yet: the next deployment may answer
        # A decision without a refusal ranks at least one deployment: without a failure it was taken out meanwhile.
        raise failure or ResidencyDenied("What this request could be sent to was just taken out of use. Try again.")

    def decide(self, request: Request, snapshot: Snapshot) -> Decision:
        """Decide where this request may go. Raises `ModelNotFound`, `RouteNotAllowed` or `InvalidRequest`."""
        policy, ask = snapshot.policy.policy, request.ask
        team = policy.teams[request.caller.team]
        route = find_route(policy, team, ask.model)
        ejected = self.ejections.out(snapshot.ejected)
        # Where facts do not expire, a day is as good as any other.
        day = None if policy.facts_valid_days is None else day_of(request.request_id)
        depends_on = (
            team.name, route.name, request.data_class, request.data_tags, ask.operation, ask.capabilities, ask.features,
            day, self.ejections.noted,
        )  # fmt: skip
        decision = snapshot.decisions.get(depends_on)
        if decision is None:
            if len(snapshot.decisions) >= MOST_REMEMBERED:
                snapshot.decisions.clear()  # a caller names tags in any mixture: no number of them may fill the memory
            decision = snapshot.decisions[depends_on] = decide(
                snapshot.policy, team=team, route=route, data_class=request.data_class, data_tags=request.data_tags,
                ask=ask, prices=snapshot.prices, gateway_region=self.region, day=day or day_of(request.request_id),
                ejected=ejected,
            )  # fmt: skip
        return decision

    async def _begin(self, going: _Going, choice: Choice, *, number: int) -> Attempt:
        """Begin an attempt that has room and is held for. Raises the error for the caller; then nothing is taken."""
        bound = _bound(going.request, choice)
        holds, room = await self.gate.take(going.accounts, bound, choice.candidate.deployment, decision=choice.decision)
        return begin(
            going.request, choice, record=going.ranking.record, bound=bound, holds=holds, tab=going.tab, room=room,
            number=number, received_s=going.received_s, clock=self.clock, meter=self.meter,
        )  # fmt: skip

    async def _attempt(self, attempt: Attempt, read: ReadBody) -> Answer:
        """Send one attempt and return its answer; every other way out of here settles it."""
        durable = attempt.intend()  # what cannot be written down is neither sent nor settled
        exchange: Exchange | None = None
        try:
            await durable
            exchange = await self._send(attempt, read)
            await exchange.head()
            if read.ask.is_stream:
                return await self._streamed(exchange)
            body = await exchange.body()
            exchange.upstream.close()
            attempt.settle(Outcome.UPSTREAM_ERROR if attempt.seen.is_error else Outcome.OK)
            return Answer(attempt, exchange.content_type, body, budget_remaining_nusd=self._remaining(attempt))
        except asyncio.CancelledError:
            self.endings.left(attempt, exchange)
            raise
        except (RequestError, EventTooLarge) as problem:
            error = _as_error(problem, exchange)
            self._failed(attempt, exchange, _outcome(error, exchange))
            raise error from None
        except Exception:  # settled here; the edge logs it and answers
            self._failed(attempt, exchange, Outcome.GATEWAY_ERROR)
            raise

    async def _send(self, attempt: Attempt, read: ReadBody) -> Exchange:
        deployment = attempt.candidate.deployment
        provider = self.providers[deployment.provider]
        permit = attempt.decision.permit(attempt.candidate, attempt=attempt.number)
        call = provider.call(deployment, read, request=attempt.request, output_cap_tokens=attempt.output_cap_tokens)
        upstream = await self.transport.send(permit, call)
        return Exchange(attempt=attempt, provider=provider, read=read, call=call, upstream=upstream)

    def _failed(self, attempt: Attempt, exchange: Exchange | None, outcome: Outcome) -> None:
        if exchange is None:
            attempt.settle(outcome, was_served=False)
        elif exchange.is_refused:
            exchange.upstream.close()
            attempt.settle(outcome, was_served=False)
        else:
            self.endings.done(exchange, outcome)

    async def _streamed(self, exchange: Exchange) -> Answer:
        """Wait for the first piece, so that a stream which dies before it can still be tried elsewhere."""
        relay = self._relay(exchange)
        first = await anext(relay)
        return Answer(
            exchange.attempt, "text/event-stream; charset=utf-8", first, relay, self._remaining(exchange.attempt)
        )

    def _remaining(self, attempt: Attempt) -> int | None:
        holds = attempt.begun.holds
        return self.gate.remaining_nusd(holds) if holds else None

    async def _relay(self, exchange: Exchange) -> AsyncGenerator[bytes, None]:
        """Pass the stream on as it comes. However it ends, it is settled here."""
        attempt, has_begun = exchange.attempt, False
        try:
            while piece := await exchange.piece():
                has_begun = True
                yield piece
            self.endings.done(exchange, Outcome.UPSTREAM_ERROR if attempt.seen.is_error else Outcome.OK)
        except (RequestError, EventTooLarge) as problem:
            if attempt.seen.is_done:  # the answer was whole; only its connection ended badly
                self.endings.done(exchange, Outcome.OK)
                return
            error = _as_error(problem, exchange)
            if not has_begun:
                raise error from None
            self.endings.done(exchange, _outcome(error, exchange))
            # Official SDKs take a clean close for success, so a cut stream ends with an error event.
            yield exchange.provider.error_event(exchange.read, error)
        except (asyncio.CancelledError, GeneratorExit):
            # SDKs hang up as soon as they have read `[DONE]`: that caller got all of its answer.
            if attempt.seen.is_done:
                self.endings.done(exchange, Outcome.OK)
            else:
                self.endings.left(attempt, exchange)
            raise
        except Exception:  # settled here; the edge logs it
            self.endings.done(exchange, Outcome.GATEWAY_ERROR)
            raise


def _bound(request: Request, choice: Choice) -> Bound:
    candidate = choice.candidate
    assert candidate.price is not None, "an unpriced deployment is never eligible"
    return bound_of(request.ask, route=choice.decision.route, deployment=candidate.deployment, price=candidate.price)


def _outcome(error: RequestError, exchange: Exchange | None) -> Outcome:
    """How a failed attempt ended: an answer that had begun was cut, unless its upstream said what was wrong."""
    is_cut = exchange is not None and exchange.has_begun and not exchange.attempt.seen.is_error
    return OUTCOMES.get(type(error), Outcome.UPSTREAM_CUT if is_cut else Outcome.UPSTREAM_ERROR)


def _as_error(problem: RequestError | EventTooLarge, exchange: Exchange | None) -> RequestError:
    if isinstance(problem, RequestError):
        return problem
    assert exchange is not None, "only an answer has events"
    return UpstreamError(exchange.cut_message)
