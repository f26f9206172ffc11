"""The story of a request: decide, then for each attempt hold, send, relay and settle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass

from gateway.domain.request import Request
from gateway.domain.routing import Decision, decide, find_route
from gateway.domain.usage_event import Outcome
from gateway.errors import (
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
from gateway.services.ports import Clock, EventSink, Provider, Transport, Upstream
from gateway.services.snapshot import Snapshot
from gateway.wire.members import MalformedJson, decode_members
from gateway.wire.openai_answer import AnswerStream
from gateway.wire.openai_request import ReadBody
from gateway.wire.sse import EventTooLarge

MAX_ANSWER_BYTES = 64 * 2**20  # a plain answer is held whole: usage and model are spliced into it
ANOTHER_MAY_DO_BETTER = (UpstreamUnreachable, UpstreamTimeout, UpstreamError, UpstreamAuth, RateLimited, Overloaded)
OUTCOMES: dict[type[RequestError], Outcome] = {
    UpstreamUnreachable: Outcome.UPSTREAM_UNREACHABLE,
    UpstreamTimeout: Outcome.UPSTREAM_TIMEOUT,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back to the caller: `body`, the whole of it or a stream's first piece, and the `rest`.

    Whoever takes an answer closes `rest`: that settles the attempt.
    """

    attempt: Attempt
    content_type: str
    body: bytes
    rest: AsyncGenerator[bytes, None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """Carries requests to deployments, in the order the policy allows."""

    transport: Transport
    providers: Mapping[str, Provider]
    sink: EventSink
    clock: Clock
    max_attempts: int

    async def answer(self, request: Request, read: ReadBody, snapshot: Snapshot, *, received_s: float) -> Answer:
        """Return the first answer that a deployment gives. Raises the `RequestError` the caller must hear."""
        decision = self.decide(request, snapshot)
        if refusal := decision.refusal():
            raise refusal
        failure: RequestError | None = None
        for number, candidate in enumerate(decision.ranked[: self.max_attempts], start=1):
            attempt = begin(
                request, decision, candidate, number=number, received_s=received_s, clock=self.clock, sink=self.sink
            )
            try:
                return await self._attempt(attempt, read)
            except RequestError as error:
                error.attempts = number
                if not isinstance(error, ANOTHER_MAY_DO_BETTER):
                    raise
                failure = error  # nothing reached the caller yet: the next deployment may answer
        assert failure is not None, "a decision without a refusal ranks at least one deployment"
        raise failure

    def decide(self, request: Request, snapshot: Snapshot) -> Decision:
        """Decide where this request may go. Raises `ModelNotFound` or `RouteNotAllowed`."""
        policy, ask = snapshot.policy.policy, request.ask
        team = policy.teams[request.caller.team]
        route = find_route(policy, team, ask.model)
        depends_on = (team.name, route.name, request.data_class, ask.operation, ask.capabilities, ask.features)
        decision = snapshot.decisions.get(depends_on)
        if decision is None:
            rule_id = policy.classes[request.data_class].name
            decision = decide(snapshot.policy, team=team, route=route, rule_id=rule_id, ask=ask, prices=snapshot.prices)
            snapshot.decisions[depends_on] = decision
        return decision

    async def _attempt(self, attempt: Attempt, read: ReadBody) -> Answer:
        """Send one attempt and return its answer; every other way out of here settles it."""
        deployment = attempt.candidate.deployment
        provider = self.providers[deployment.provider]
        permit = attempt.decision.permit(attempt.candidate, attempt=attempt.number)
        was_sent = False
        try:
            call = provider.call(attempt.candidate.deployment, read, request=attempt.request)
            was_sent = True
            upstream = await self.transport.send(permit, call)
            attempt.note_status(upstream.status)
            if not _is_success(upstream.status):
                raise await self._upstream_error(attempt, provider, upstream)
            if not read.ask.is_stream:
                return await self._plain(attempt, provider, upstream, read)
            stream = provider.stream(read, cost=attempt.cost_text, asked_running_usage=call.asks_running_usage)
            attempt.seen = stream.seen
            return await self._streamed(attempt, provider, upstream, read, stream)
        except (ResidencyDenied, UpstreamUnreachable) as error:
            attempt.settle(OUTCOMES.get(type(error), Outcome.GATEWAY_ERROR), was_served=False)
            raise
        except RequestError as error:
            outcome = OUTCOMES.get(type(error), Outcome.UPSTREAM_ERROR)
            refused = attempt.http_status is not None and not _is_success(attempt.http_status)
            attempt.settle(outcome, was_served=was_sent and not refused)
            raise
        except asyncio.CancelledError:
            attempt.settle(Outcome.CLIENT_GONE)
            raise
        except Exception:
            attempt.settle(Outcome.GATEWAY_ERROR, was_served=was_sent)
            raise

    async def _upstream_error(self, attempt: Attempt, provider: Provider, upstream: Upstream) -> RequestError:
        try:
            body = await upstream.read(MAX_ANSWER_BYTES)
        except RequestError:
            body = b""
        finally:
            upstream.close()
        return provider.error(attempt.candidate.deployment, upstream.status, upstream.headers, body=body)

    async def _plain(self, attempt: Attempt, provider: Provider, upstream: Upstream, read: ReadBody) -> Answer:
        try:
            body = await upstream.read(MAX_ANSWER_BYTES)
        finally:
            upstream.close()
        rewritten = provider.rewrite(read, body, attempt.seen, cost=attempt.cost_text)
        if not attempt.seen.is_done and not attempt.seen.is_error:
            _require_json(attempt, body)
        attempt.settle(Outcome.UPSTREAM_ERROR if attempt.seen.is_error else Outcome.OK)
        return Answer(attempt, upstream.headers.get("content-type", "application/json"), rewritten)

    async def _streamed(
        self, attempt: Attempt, provider: Provider, upstream: Upstream, read: ReadBody, stream: AnswerStream
    ) -> Answer:
        """Wait for the first piece, so that a stream which dies before it can still be tried elsewhere."""
        relay = self._relay(attempt, provider, upstream, read, stream)
        return Answer(attempt, "text/event-stream; charset=utf-8", await anext(relay), relay)

    async def _relay(
        self, attempt: Attempt, provider: Provider, upstream: Upstream, read: ReadBody, stream: AnswerStream
    ) -> AsyncGenerator[bytes, None]:
        """Pass the stream on as it comes. However it ends, it is settled here."""
        outcome = Outcome.CLIENT_GONE
        has_begun = False
        try:
            async with aclosing(upstream.chunks()) as chunks:
                async for chunk in chunks:
                    piece = stream.feed(chunk)
                    attempt.note_progress()
                    if piece:
                        has_begun = True
                        yield piece
            outcome = Outcome.UPSTREAM_ERROR if stream.seen.is_error else Outcome.OK
            if not stream.seen.is_done and not stream.seen.is_error:
                raise UpstreamError(_cut_message(attempt))
        except (RequestError, EventTooLarge) as problem:
            if stream.seen.is_done:  # the answer was whole; only its connection ended badly
                outcome = Outcome.OK
                return
            error = problem if isinstance(problem, RequestError) else UpstreamError(_cut_message(attempt))
            outcome = Outcome.UPSTREAM_TIMEOUT if isinstance(error, UpstreamTimeout) else Outcome.UPSTREAM_CUT
            if not has_begun:
                raise error from None
            # Official SDKs take a clean close for success, so a cut stream ends with an error event.
            yield provider.error_event(read, error)
        finally:
            upstream.close()
            # SDKs hang up as soon as they have read `[DONE]`: that caller got all of its answer.
            has_all = outcome is Outcome.CLIENT_GONE and stream.seen.is_done
            attempt.settle(Outcome.OK if has_all else outcome)


def _is_success(status: int) -> bool:
    """A redirect is none: it is not followed, and where it points to was never decided on."""
    return 200 <= status < 300


def _require_json(attempt: Attempt, body: bytes) -> None:
    """Let an answer of a shape we do not know pass, but not a proxy's page or half an answer under status 200."""
    try:
        decode_members(body)
    except MalformedJson:
        raise UpstreamError(f"{attempt.candidate.deployment.name} answered with something that is no JSON.") from None


def _cut_message(attempt: Attempt) -> str:
    return (
        f"The answer of {attempt.candidate.deployment.name} stopped before its end. What was generated is "
        f"charged; see the receipt at GET /v1/requests/{attempt.request.request_id}."
    )
