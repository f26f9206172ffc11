"""Runs a request: decides, ranks and admits it, and then for each attempt holds money, records the
intent, sends, relays the answer and settles.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from gateway.domain.ids import day_of
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.policy import Deployment, Route
from gateway.domain.providers.table import TextForms
from gateway.domain.request.request import Request
from gateway.domain.request.rounds import Rounds
from gateway.domain.request.stored_response import StoredResponse
from gateway.domain.request.unlisted import unlisted_of
from gateway.domain.routing.decide import Choice, Decision, Ranking, decide, find_route
from gateway.errors import (
    ConcurrencyLimited,
    InvalidRequest,
    JournalFull,
    RateLimited,
    RequestError,
    ResidencyDenied,
    Unbounded,
    Untranslatable,
    UpstreamError,
    UpstreamNotCalled,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.estimates import Estimates
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.ports import Clock, Provider, Transport
from gateway.services.request.abandoned import AbandonedAnswers
from gateway.services.request.admission import Admission
from gateway.services.request.attempt import AdmittedRequest, Attempt, Attempts
from gateway.services.request.failover import Failover
from gateway.services.request.refusals import Refusals
from gateway.services.request.stored_responses import none_stored, require_same
from gateway.services.request.upstream_answer import UpstreamAnswer
from gateway.services.snapshot.snapshot import MOST_REMEMBERED, RequestTerms, Snapshot
from gateway.wire.dialect import EventTooLarge, Translation
from gateway.wire.json_bounds import opens_in
from gateway.wire.observed import Observed
from gateway.wire.translation.left_out import without
from gateway.wire.translation.sent_rounds import with_rounds

LARGE_BYTES = 128 * 1024
# A smaller body is slow to translate too if it has many objects or members.
MAX_OPENS, MAX_MEMBERS = 1_000, 5_000
MOST_KEPT_LETTERS = 256  # of the names of unlisted members in a remembered decision
_NO_NAMES: frozenset[str] = frozenset()
RunLarge = Callable[..., Awaitable[Any]]
"""Runs slow work on a team's large body (`team`, function, arguments) elsewhere than on the event
loop, and returns its result or raises its error.
"""


async def _run_here(team: str, work: Callable[..., Any], *content: object) -> Any:
    """Run the work at once."""
    return work(*content)


FindResponse = Callable[[str, str], Awaitable[StoredResponse]]
"""Returns a team's stored response by its id, or raises the error for the caller."""

OUTCOMES: dict[type[RequestError], Outcome] = {
    UpstreamUnreachable: Outcome.UPSTREAM_UNREACHABLE,
    UpstreamNotCalled: Outcome.UPSTREAM_UNREACHABLE,
    UpstreamTimeout: Outcome.UPSTREAM_TIMEOUT,
    ResidencyDenied: Outcome.GATEWAY_ERROR,
}


@dataclass(frozen=True, slots=True)
class CallerAnswer:
    """The caller's answer: `body` is all of it or a stream's first piece, and `rest` yields the
    remainder.

    The owner of an answer closes `rest`, which settles the attempt. `budget_remaining_nusd` is the
    room of the tightest hard budget, None if there is none.
    """

    attempt: Attempt
    content_type: str
    body: bytes
    rest: AsyncGenerator[bytes, None] | None = None
    budget_remaining_nusd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """Dispatches requests to deployments, in the order that the policy allows.

    `region` is the gateway's own region. `find_response` finds the stored response that a request
    continues. `run_large` translates large bodies. `text_forms` are the forms in which tokenizers
    read a text, by the upstream's model, as far as files state them.

    `draw` returns numbers below 1 that vary the pauses before a retry, and `pause` waits for them.
    """

    transport: Transport
    providers: Mapping[str, Provider]
    admission: Admission
    attempts: Attempts
    abandoned: AbandonedAnswers
    clock: Clock
    max_attempts: int
    refusals: Refusals
    ejections: Ejections
    estimates: Estimates
    health: DeploymentHealth
    region: str = UNKNOWN
    text_forms: Mapping[str, TextForms] = field(default_factory=dict)
    find_response: FindResponse = none_stored
    run_large: RunLarge = _run_here
    draw: Callable[[], float] = random.random
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def answer(
        self, request: Request, snapshot: Snapshot, *, terms: RequestTerms, received_s: float
    ) -> CallerAnswer:
        """Admit a request, and return the answer of the first deployment that gives one.

        Raises the `RequestError` for the caller.

        `terms` are those of the request's team, project and key.
        """
        is_hard = terms.has_hard_budget
        decision = self.decide(request, snapshot, is_hard=is_hard)
        if refusal := decision.refusal(request.body.facts):
            raise refusal
        if request.body.facts.previous_response is None:
            ranking = self._rank(request, decision, snapshot, is_hard=is_hard)
        else:
            request, ranking = await self._at_its_response(request, snapshot, is_hard=is_hard)
            decision = ranking.decision
        admitted = AdmittedRequest(
            request,
            ranking,
            terms.accounts,
            terms.needs_bound,
            received_s,
            received_s + decision.route.timeout_s,
            terms.has_hard_budget,
            self.text_forms,
        )
        if not (terms.limits or terms.shadow_limits or request.idempotency_key is not None):
            return await self._dispatch(admitted)
        most_tokens = admitted.bound_at(ranking.choices[0]).tokens
        totals = await self.admission.admit(
            request, terms, decision=decision, most_tokens=most_tokens
        )
        try:
            admitted.totals = totals
            return await self._dispatch(admitted)
        finally:
            totals.close()

    async def _dispatch(self, admitted: AdmittedRequest) -> CallerAnswer:
        """Try one deployment after the other until one answers; `Failover` chooses, and decides
        when to stop.
        """
        failover = Failover(
            choices=admitted.ranking.choices,
            team=admitted.request.caller.team,
            deadline_s=admitted.deadline_s,
            max_attempts=self.max_attempts,
            health=self.health,
            ejections=self.ejections,
            draw=self.draw,
        )
        while True:
            wanted_s = self.clock.monotonic()
            choice = failover.next(wanted_s)
            if failover.pause_s:
                await self.pause(failover.pause_s)
            try:
                attempt = await self._begin(admitted, choice, failover, wanted_s=wanted_s)
            except (RateLimited, ConcurrencyLimited, Untranslatable, Unbounded) as error:
                failover.note_full(choice, error)
                continue
            except RequestError as error:
                raise failover.first_reason(error) from None
            try:
                return await self._attempt(attempt, admitted.deadline_s, failover)
            except JournalFull:
                raise  # no other deployment has more room on this machine
            except RequestError as error:
                # Nothing reached the caller yet, so another attempt may answer.
                failover.note_failed(error)

    def decide(self, request: Request, snapshot: Snapshot, *, is_hard: bool = False) -> Decision:
        """Return the decision on which deployments may serve this request. `is_hard` is True if a
        hard budget relies on the bound of its cost.

        Raises `ModelNotFound`, `RouteNotAllowed` or `InvalidRequest`.
        """
        policy = snapshot.policy.policy
        route = find_route(policy, policy.teams[request.caller.team], request.body.facts.model)
        return self._decided(request, snapshot, route, is_hard=is_hard)

    async def _at_its_response(
        self, request: Request, snapshot: Snapshot, *, is_hard: bool
    ) -> tuple[Request, Ranking]:
        """Return a request that continues a stored response, and its ranking: the deployment that
        has the response, and no other.

        The request gets at least the class and the tags of the response: its prompt has that text.
        Raises the error for the caller.
        """
        facts, team = request.body.facts, request.caller.team
        assert facts.previous_response is not None, "it continues one"
        stored = await self.find_response(team, facts.previous_response)
        policy = snapshot.policy.policy
        raised = stored.data_class > request.data_class
        request = replace(
            request,
            data_class=max(request.data_class, stored.data_class),
            data_class_source="response" if raised else request.data_class_source,
            data_tags=request.data_tags | stored.data_tags,
        )
        whole = self.decide(request, snapshot, is_hard=is_hard)
        decision = whole.only(stored.deployment)
        if decision is None and (below := whole.route.degrade_to) is not None:
            route = policy.routes[below]
            decision = self._decided(request, snapshot, route, is_hard=is_hard).only(
                stored.deployment
            )
        if decision is None:
            raise InvalidRequest(
                f"Response {stored.response_id} is kept by deployment {stored.deployment}, which "
                f"route '{whole.route.name}' does not have. It was given by route "
                f"'{stored.route}'. Nothing was sent.",
                param="previous_response_id",
            )
        require_same(stored, decision.candidates[0].deployment)
        if refusal := decision.refusal(facts):
            raise refusal
        if decision.route is whole.route:
            return request, decision.as_listed
        return request, Ranking(decision=whole, choices=decision.as_listed.choices)

    def _rank(
        self, request: Request, decision: Decision, snapshot: Snapshot, *, is_hard: bool
    ) -> Ranking:
        """Return the order in which to try the deployments; the route that it degrades to is
        decided only when needed.
        """
        below = decision.route.degrade_to
        if below is None:
            ranking = self.estimates.rank(request, decision)
        else:
            route = snapshot.policy.policy.routes[below]
            ranking = self.estimates.rank(
                request,
                decision,
                degrade=lambda: self._decided(request, snapshot, route, is_hard=is_hard),
            )
        return ranking.whole_first() if is_hard else ranking

    def _decided(
        self, request: Request, snapshot: Snapshot, route: Route, *, is_hard: bool
    ) -> Decision:
        """Return the decision about a request on a route; similar requests share it."""
        policy, facts = snapshot.policy.policy, request.body.facts
        team = policy.teams[request.caller.team]
        ejected = self.ejections.out(snapshot.ejected)
        # Most decisions do not depend on the day: facts do not expire and cost centres do not move.
        is_dated = policy.facts_valid_days is not None or team.has_dated_cost_centre
        day = day_of(request.request_id) if is_dated else None
        unlisted = _NO_NAMES
        if is_hard:
            unlisted = unlisted_of((policy.deployments[one] for one in route.members), request.body)
        depends_on = (
            team.name,
            route.name,
            request.data_class,
            request.data_tags,
            facts.operation,
            facts.capabilities,
            facts.features,
            day,
            self.ejections.noted,
            unlisted,
        )
        decision = snapshot.decisions.get(depends_on)
        if decision is None:
            if len(snapshot.decisions) >= MOST_REMEMBERED:
                # callers name tags in any combination, so their number must not fill the memory
                snapshot.decisions.clear()
            decision = decide(
                snapshot.policy,
                team=team,
                route=route,
                data_class=request.data_class,
                data_tags=request.data_tags,
                facts=facts,
                prices=snapshot.prices,
                gateway_region=self.region,
                day=day or day_of(request.request_id),
                ejected=ejected,
                unlisted=unlisted,
            )
            if sum(map(len, unlisted)) <= MOST_KEPT_LETTERS:  # callers choose these names
                snapshot.decisions[depends_on] = decision
        return decision

    async def _begin(
        self, admitted: AdmittedRequest, choice: Choice, failover: Failover, *, wanted_s: float
    ) -> Attempt:
        """Begin an attempt with a slot at the deployment and a hold on every budget.

        Raises the error for the caller, `Untranslatable` too; then nothing is taken.
        """
        deployment = choice.candidate.deployment
        request, translation = admitted.request, None
        if choice.candidate.left_out:
            request = without(request, choice.candidate.left_out)
        if deployment.may_adapt(request.body.facts.operation):
            translation = await self._translated(deployment, request)
        # Before any wait, so that requests that arrive meanwhile see it.
        slot = self.health.take_slot(failover.chosen_state)
        try:
            grant = await self.admission.take(
                admitted.accounts, admitted.bound_at(choice), deployment, decision=choice.decision
            )
        except BaseException:
            slot.release()
            raise
        number = failover.made + 1
        attempt = self.attempts.begin(
            admitted,
            choice,
            grant,
            slot,
            number=number,
            wanted_s=wanted_s,
            sent=request,
            translation=translation,
        )
        team = request.caller.team
        self.health.note_started(slot, team=team, number=number, now_s=attempt.started_s)
        if deployment.group is not None:
            self.estimates.began(deployment.name)
            attempt.on_settled.append(lambda _: self.estimates.ended(deployment.name))
        if not deployment.is_self_hosted and request.session is not None:
            attempt.on_settled.append(lambda event: self.estimates.note_session(request, event))
        failover.note_started(choice)
        return attempt

    async def _attempt(
        self, attempt: Attempt, deadline_s: float, failover: Failover
    ) -> CallerAnswer:
        """Send one attempt and return its answer, of a stream the first piece and the rest; every
        failure settles the attempt.

        Until the caller receives something, the attempt may leave an engine that hangs.
        """
        durable = attempt.intend()  # an attempt that cannot be recorded is neither sent nor settled
        exchange: UpstreamAnswer | None = None
        try:
            await durable
            exchange = await self._send(attempt, deadline_s)
            failover.upstream, attempt.slot.leave = exchange.upstream, failover.leave
            await exchange.head()
            if exchange.reported_load is not None:
                self.estimates.note_load(attempt.candidate.deployment.name, exchange.reported_load)
            if attempt.request.body.facts.is_stream:
                relay = self._relay(exchange)
                # Wait for the first piece: a stream that dies before it can still be tried
                # elsewhere.
                body, content_type, rest = await anext(relay, b""), exchange.content_type, relay
            else:
                body, content_type, rest = await exchange.body(), exchange.content_type, None
                exchange.upstream.close()
                final = attempt.observed.final
                has_both = final is not None and not final.lacks_prompt
                counted = None if has_both else await self.abandoned.count(exchange)
                attempt.settle(
                    _ended(attempt.observed),
                    counted=counted,
                )
            attempt.slot.leave = None
            assert attempt.headers_s is not None, "an answer has a head"
            self.health.note_answer(attempt.slot, at_s=attempt.headers_s)
            return CallerAnswer(attempt, content_type, body, rest, self._remaining(attempt))
        except asyncio.CancelledError:
            self.abandoned.settle_or_drain(attempt, exchange)
            raise
        except (RequestError, EventTooLarge) as problem:
            error = _as_error(problem, exchange)
            # Before it is settled; otherwise a probe would end without a result.
            self._note_failure(attempt, error)
            self._settle_failed(attempt, exchange, _outcome(error, exchange))
            raise error from None
        except Exception:  # settled here; the edge logs it and answers
            self._settle_failed(attempt, exchange, Outcome.GATEWAY_ERROR)
            raise

    async def _translated(self, deployment: Deployment, request: Request) -> Translation | None:
        """Return a request as the deployment's dialect has it, None if that is the caller's.

        Raises `Untranslatable` and `InvalidRequest`.
        """
        body, translate = request.body, self.providers[deployment.provider].translate
        facts = deployment.provider_facts
        is_read_again = (
            deployment.translates(body.facts.operation)
            or facts.refuses
            or facts.may_lack_role(body.body)
            or facts.may_shorten_ids(body.body)
        )
        if is_read_again and _is_slow(body.body):
            found: Translation | None = await self.run_large(
                request.caller.team, translate, deployment, body
            )
            return found
        return translate(deployment, body)

    async def _send(self, attempt: Attempt, deadline_s: float) -> UpstreamAnswer:
        """Translate an attempt for its provider and hand it to the transport."""
        deployment = attempt.candidate.deployment
        provider = self.providers[deployment.provider]
        permit = attempt.decision.permit(attempt.candidate, attempt=attempt.number)
        request, translation, rounds = attempt.request, attempt.translation, attempt.bound.rounds
        if rounds is not None and rounds.changes_body:
            request, translation = _with_rounds(request, translation, rounds)
        call = await provider.call(
            deployment,
            request,
            output_cap_tokens=attempt.bound.output_cap_tokens,
            translation=translation,
        )
        upstream = await self.transport.send(permit, call, within_s=deadline_s - attempt.started_s)
        return UpstreamAnswer(
            attempt=attempt,
            request=attempt.request,
            provider=provider,
            call=call,
            upstream=upstream,
        )

    def _note_failure(self, attempt: Attempt, error: RequestError) -> None:
        """Report a failed attempt to the state of its deployment, for the breaker."""
        team, now_s = attempt.request.caller.team, self.clock.monotonic()
        self.health.note_failure(attempt.slot, error, team=team, now_s=now_s)

    def _settle_failed(
        self, attempt: Attempt, exchange: UpstreamAnswer | None, outcome: Outcome
    ) -> None:
        """Settle a failed attempt: at zero if the upstream certainly generated nothing, else by its
        usage, a count or its hold.
        """
        if exchange is None:
            attempt.settle(outcome, was_served=False)
        elif exchange.is_refused or not exchange.was_served:
            exchange.upstream.close()
            attempt.settle(outcome, was_served=exchange.was_served)
        else:
            self.abandoned.done(exchange, outcome)

    def _remaining(self, attempt: Attempt) -> int | None:
        """Return the last known room of the attempt's tightest hard budget, for the caller; None
        without a hold.
        """
        holds = attempt.begun.holds
        return self.admission.remaining_nusd(holds) if holds else None

    async def _relay(self, exchange: UpstreamAnswer) -> AsyncGenerator[bytes, None]:
        """Yield the upstream's stream as it arrives, and settle the attempt however it ends.

        Raises the caller's error, also after the answer began.
        """
        attempt, has_begun = exchange.attempt, False
        try:
            piece = await exchange.piece()
            if exchange.is_only_an_error:
                await exchange.read_behind_error()
                failed = UpstreamError(
                    f"{attempt.candidate.deployment.name} failed before its first token."
                )
                failed.is_final = exchange.is_paid or attempt.observed.has_content
                raise failed
            while piece:
                has_begun = True
                yield piece
                piece = await exchange.piece()
            self.abandoned.done(exchange, _ended(attempt.observed))
        except (RequestError, EventTooLarge) as problem:
            # Completion and failure are two facts: `response.failed` is both.
            # Only its connection ended badly.
            is_whole = attempt.observed.is_done and not attempt.observed.is_error
            if is_whole and has_begun:
                self.abandoned.done(exchange, _ended(attempt.observed))
                return
            error = _as_error(problem, exchange)
            if not has_begun:
                # A usage may be lost behind an event that is too large. A success that cannot be
                # read was generated: another attempt would buy it again.
                error.is_final = error.is_final or is_whole or attempt.observed.has_unread
                raise error from None
            self._note_failure(attempt, error)
            self.abandoned.done(exchange, _outcome(error, exchange))
            raise error from None
        except (asyncio.CancelledError, GeneratorExit):
            # SDKs hang up after `[DONE]` or an error, so this caller received the whole answer.
            if attempt.observed.is_error:
                self.abandoned.settle_or_drain(attempt, exchange, ended=Outcome.UPSTREAM_ERROR)
            elif attempt.observed.is_done:
                self.abandoned.done(exchange, _ended(attempt.observed))
            else:
                self.abandoned.settle_or_drain(attempt, exchange)
            raise
        except Exception:  # settled here; the edge logs it
            self.abandoned.done(exchange, Outcome.GATEWAY_ERROR)
            raise


def _with_rounds(
    request: Request, translation: Translation | None, rounds: Rounds
) -> tuple[Request, Translation | None]:
    """Return a request of the upstream's own dialect with the bounds of its rounds, as it is sent
    or as it was adapted.
    """
    if translation is None:
        return replace(request, body=with_rounds(request.body, rounds)), None
    return request, replace(translation, body=with_rounds(translation.body, rounds))


def _is_slow(body: bytes) -> bool:
    """Return True for a body that could take more than about 20 ms to translate."""
    return len(body) >= LARGE_BYTES or opens_in(body) > MAX_OPENS or body.count(b'":') > MAX_MEMBERS


def _ended(observed: Observed) -> Outcome:
    """Return the outcome of an answer that came to its end."""
    has_failed = observed.is_error or observed.has_failed
    return Outcome.UPSTREAM_ERROR if has_failed else Outcome.OK


def _outcome(error: RequestError, exchange: UpstreamAnswer | None) -> Outcome:
    """Return a failed attempt's outcome: cut after its answer began, unless the upstream sent an
    error.
    """
    observed = None if exchange is None or not exchange.has_begun else exchange.attempt.observed
    is_cut = observed is not None and not (observed.is_error or observed.is_whole)
    return OUTCOMES.get(type(error), Outcome.UPSTREAM_CUT if is_cut else Outcome.UPSTREAM_ERROR)


def _as_error(
    problem: RequestError | EventTooLarge, exchange: UpstreamAnswer | None
) -> RequestError:
    """Return the caller's error for a failed attempt, without a traceback.

    It has no traceback: its frames would keep the request and form a reference cycle. Events that
    are too large or broken come after a success, so the answer is bought once, as any other that
    cannot be read.
    """
    if isinstance(problem, RequestError):
        return problem.with_traceback(None)
    assert exchange is not None, "only an answer has events"
    error = UpstreamError(exchange.cut_message)
    error.is_final = True
    return error
