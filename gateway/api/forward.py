"""Serves each request to a forwarding endpoint: authenticates it, reads the body, calls the request
service, writes the answer and logs the canonical line.

A FastAPI route costs about twice the CPU of this (docs/decisions/0002). A streaming response class
would also hide that the caller left. Here each step of a request is one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from uuid import UUID

import structlog
from msgspec.structs import replace

from gateway.api import attribution, body, dialect_headers
from gateway.api.allocator import Trimmer
from gateway.api.authenticate import caller_of
from gateway.api.errors import Headers, error_answer
from gateway.api.http.caller_exchange import CallerExchange, ClientGone
from gateway.api.large_bodies import LargeBodies, is_large
from gateway.api.limit_headers import anthropic_limit_headers, limit_headers
from gateway.api.request_slots import RequestSlots
from gateway.api.routes import ANTHROPIC
from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.ids import day_of, text_of
from gateway.domain.money import plain_usd
from gateway.domain.request.end_user import recorded_end_user
from gateway.domain.request.request import Caller, Request, RequestBody
from gateway.errors import InvalidApiKey, JournalFull, RequestError, UpstreamError
from gateway.services.limits.limiter import Limiter
from gateway.services.ports import Clock
from gateway.services.request.attempt import Attempt
from gateway.services.request.service import CallerAnswer, RequestService
from gateway.services.request.shedding import Shedding
from gateway.services.snapshot.snapshot import Snapshot, SnapshotHolder
from gateway.telemetry.logs import RequestLine, RequestLog, line_of
from gateway.telemetry.metrics import Metrics

log = structlog.get_logger()
_READ_HEADERS = {name: name.decode() for name in (*body.HEADERS, *attribution.HEADERS)}
CLIENT_CLOSED = 499  # never sent, because the caller has left: for the log and the metrics
ENDS_CONNECTION = frozenset({408, 413, 415})  # the rest of the body is not read


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarder:
    """Serves forwarding requests: takes one apart, passes it to the service and writes the
    answer.
    """

    requests: RequestService
    limiter: Limiter
    holder: SnapshotHolder
    metrics: Metrics
    lines: RequestLog
    clock: Clock
    new_id: Callable[[], UUID]
    is_full: Callable[[], bool]
    max_body_bytes: int
    allows_demo_keys: bool
    end_user_key: bytes
    shedding: Shedding
    slots: RequestSlots
    large_bodies: LargeBodies
    trimmer: Trimmer = field(default_factory=Trimmer)

    async def __call__(self, exchange: CallerExchange, *, task: asyncio.Task[object]) -> None:
        """Serve one forwarding request from its first byte to its log line, in `task`."""
        call = _Call(
            exchange,
            self.clock.monotonic(),
            self.new_id(),
            self.metrics,
            task,
            self.limiter,
            self.trimmer,
        )
        try:
            await self._serve(call, exchange)
        except RequestError as error:
            self._count(call, error)
            # A deliberate error needs no frames, and they would hold the request or the holder of
            # the error.
            await call.refuse(error.with_traceback(None))
        except (ClientGone, asyncio.CancelledError) as gone:
            call.status = CLIENT_CLOSED
            if isinstance(gone, asyncio.CancelledError) and not call.client_left:
                raise  # the server is stopping; the caller did not cause it
            call.clear_cancellation()
        except Exception:
            log.exception("request_failed", request_id=str(call.request_id))
            await call.refuse(
                UpstreamError("The gateway failed on this request. Give an admin its x-request-id.")
            )
        finally:
            call.log(self.lines)

    async def _serve(self, call: _Call, exchange: CallerExchange) -> None:
        """Authenticate the caller, read the body, and relay the service's answer."""
        headers = attribution.read(exchange.fields, _READ_HEADERS)
        caller = await caller_of(
            exchange.fields, self.holder, now=self.clock.now, allows_demo=self.allows_demo_keys
        )
        # Keep this snapshot to the end, however long the body takes. There was no await since the
        # key was checked.
        call.caller, call.snapshot = caller, self.holder.require()
        policy = call.snapshot.policy.policy
        team = policy.teams[caller.team]
        self.shedding.check(team.priority)  # before the body is read
        if self.is_full():  # the journal raises it too; here the body need not be read first
            raise JournalFull(
                "The journal of this gateway takes nothing more, so nothing new is admitted.",
                retry_after_s=5,
            )
        body.check_declared(headers, limit_bytes=self.max_body_bytes)
        self.slots.take(caller.team, is_only_team=len(policy.teams) == 1)
        try:
            content = await exchange.body(limit_bytes=self.max_body_bytes)
            operation = exchange.endpoint.operation
            assert operation is not None
            read_request = exchange.endpoint.dialect.read_request
            exchange.on_leaving = call.cancel_work
            if is_large(content):
                read = await self.large_bodies.read(caller.team, read_request, operation, content)
            else:
                read = read_request(operation, content)
            is_anthropic = exchange.endpoint.dialect is ANTHROPIC
            if is_anthropic:
                own_headers = dialect_headers.read(exchange.fields)
                read = dialect_headers.with_needs(read, own_headers)
            request = self._new_request(call, caller, headers, read, call.snapshot)
            if is_anthropic:
                is_beta = dialect_headers.is_beta(exchange.target)
                request = replace(request, dialect_headers=own_headers, is_beta=is_beta)
            day = day_of(request.request_id) if team.has_dated_cost_centre else None
            terms = call.snapshot.terms_of(
                team, project=request.project, key_id=caller.key_id, day=day
            )
            call.limits = terms.limits
            call.request = request
            answer = await self.requests.answer(
                request, call.snapshot, terms=terms, received_s=call.received_s
            )
            await call.answer(answer)
        finally:
            exchange.on_leaving = None
            self.slots.release(caller.team)

    def _count(self, call: _Call, error: RequestError) -> None:
        """Count a refusal of a known key: nothing was sent, so no event tells of it."""
        request, caller = call.request, call.caller
        if error.attempts:
            return
        if caller is None:
            if isinstance(error, InvalidApiKey) and error.of_team:
                self.requests.refusals.note(
                    error.of_team, error.code, rules=(), key_id=error.of_key
                )
            return
        route = None
        if request is not None and call.snapshot is not None:
            route = call.snapshot.policy.policy.route_for(request.body.facts.model)
        self.requests.refusals.note(
            caller.team,
            error.code,
            rules=error.rules,
            route="" if route is None else route.name,
            data_class="" if request is None else request.data_class.label,
            project=(caller.project if request is None else request.project) or "",
            key_id=caller.key_id,
        )

    def _new_request(
        self,
        call: _Call,
        caller: Caller,
        headers: dict[str, str],
        read: RequestBody,
        snapshot: Snapshot,
    ) -> Request:
        """Return the service's request: the body with its attribution from the headers."""
        team = snapshot.policy.policy.teams[caller.team]
        data_class, source, data_tags = attribution.data_labels(
            headers, team, declared_tags=snapshot.policy.policy.data_tags
        )
        return Request(
            request_id=call.request_id,
            caller=caller,
            body=read,
            data_class=data_class,
            data_class_source=source,
            data_tags=data_tags,
            end_user=recorded_end_user(read.facts.end_user, team, key=self.end_user_key),
            project=attribution.project(headers, caller.project, team),
            tags=attribution.tags(headers),
            client_request_id=attribution.client_request_id(headers),
            traceparent=attribution.traceparent(headers),
            idempotency_key=attribution.idempotency_key(headers),
            session=attribution.session(headers, read.facts),
            priority=team.priority,
        )


class _Call:
    """One forwarded request of a caller: the state of its answer and the fields of its log line."""

    def __init__(
        self,
        exchange: CallerExchange,
        received_s: float,
        request_id: UUID,
        metrics: Metrics,
        task: asyncio.Task[object],
        limiter: Limiter,
        trimmer: Trimmer,
    ) -> None:
        """Begin a call for a received request, and count it as in flight in the metrics."""
        self._exchange, self.endpoint, self.received_s = exchange, exchange.endpoint, received_s
        self.request_id, self._metrics, self._task = request_id, metrics, task
        self.caller: Caller | None = None
        self.snapshot: Snapshot | None = None
        self.request: Request | None = None
        self.limits: tuple[LimitedBy, ...] = ()
        self._limiter, self._trimmer = limiter, trimmer
        self.status = 0
        self.client_left = False
        self._attempt: Attempt | None = None
        # Code and attempts; the error itself would refer back to this call.
        self._refusal: tuple[str, int] | None = None
        metrics.counts.in_flight += 1

    def clear_cancellation(self) -> None:
        """Clear a handled cancellation of the request's task, so that the task continues to its
        end.
        """
        if self._task.cancelling():
            self._task.uncancel()

    def cancel_work(self) -> None:
        """Cancel the request's task, because its caller left before the answer was complete."""
        self.client_left = True
        self._task.cancel()

    async def answer(self, answer: CallerAnswer) -> None:
        """Write the service's answer to the caller, piece by piece as the upstream sends it."""
        self._attempt = answer.attempt
        headers = self._answer_headers(answer)
        if answer.rest is None:
            headers.append((b"content-length", str(len(answer.body)).encode()))
            self._start_answer(200, headers)
            await self._exchange.send(answer.body, is_last=True)
            self._trimmer.note_answer(len(answer.body))
            return
        headers.append((b"cache-control", b"no-cache"))
        async with aclosing(answer.rest) as rest:
            try:
                self._start_answer(200, headers)
                await self._exchange.send(answer.body)
                async for piece in rest:
                    await self._exchange.send(piece)
            except RequestError as error:  # the upstream failed after the answer began
                await self._end_with(error.code, error.message)
                return
            except asyncio.CancelledError:
                if not self.client_left:
                    await self._end_with("unavailable", "This replica was stopped.")
                raise
        await self._exchange.send(b"", is_last=True)

    async def _end_with(self, code: str, message: str) -> None:
        """End a begun answer stream by an error event, because official SDKs treat a clean close as
        success.
        """
        endpoint = self.endpoint
        assert endpoint.operation is not None, "only forwarding endpoints stream"
        event = endpoint.dialect.error_event(
            endpoint.operation, code, message, request_id=str(self.request_id)
        )
        await self._exchange.send(event, is_last=True)

    async def refuse(self, error: RequestError) -> None:
        """Answer with an error; if the answer has begun, only record the error for the log line."""
        self._refusal = (error.code, error.attempts)
        if self._exchange.has_begun:
            return
        status, headers, body = error_answer(
            error, self.endpoint.dialect, request_id=str(self.request_id)
        )
        headers += [
            (b"x-request-id", str(self.request_id).encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        if self.snapshot is not None:
            headers.append((b"x-tollgate-policy", str(self.snapshot.policy.version).encode()))
            headers.append((b"x-tollgate-attempts", str(error.attempts).encode()))
        if status in ENDS_CONNECTION:
            headers.append((b"connection", b"close"))
        self._start_answer(status, headers)
        await self._exchange.send(body, is_last=True)

    def log(self, lines: RequestLog) -> None:
        """Write the canonical log line at the request's end, and count the request in metrics."""
        self._metrics.counts.in_flight -= 1
        self._metrics.count_request(self.endpoint.path, self.status)
        if not lines.is_on:
            return
        event = self._attempt.event if self._attempt is not None else None
        if event is not None:
            line = line_of(event, self.endpoint.path, self.status)
        elif self.caller is None:
            lines.count_stranger(
                self.endpoint.path,
                self.status,
                error=None if self._refusal is None else self._refusal[0],
                request_id=self.request_id,
            )
            return
        else:
            line = RequestLine(
                endpoint=self.endpoint.path,
                status=self.status,
                request_id=self.request_id,
                team=self.caller.team,
                key_id=self.caller.key_id,
                timestamp=datetime.now(UTC),
            )
        if self._refusal is not None:
            line.error, line.attempts = self._refusal
        lines.say(line)

    def _start_answer(self, status: int, headers: Headers) -> None:
        """Send the answer's status and headers to the caller, rate-limit headers included."""
        self.status = status
        is_anthropic = self.endpoint.dialect is ANTHROPIC
        if is_anthropic:
            headers.append((b"request-id", text_of(self.request_id).encode()))
        if self.limits:
            standings = self._limiter.standing(self.limits)
            headers += limit_headers(standings)
            if is_anthropic:
                headers += anthropic_limit_headers(standings, datetime.now(UTC))
        self._exchange.start(status, headers)

    def _answer_headers(self, answer: CallerAnswer) -> Headers:
        """Return the headers of a successful answer: ids, place, attempts, overhead, cost and
        budget.
        """
        attempt = answer.attempt
        decision, deployment = attempt.decision, attempt.candidate.deployment
        headers = [
            (b"content-type", answer.content_type.encode("latin-1", "replace")),
            (b"x-request-id", text_of(self.request_id).encode()),
            *place_headers(
                attempt.begun.route,
                deployment.name,
                deployment.provider,
                deployment.region,
                decision.policy.version,
            ),
            (b"x-tollgate-attempts", b"%d" % attempt.number),
            (b"x-tollgate-overhead-ms", b"%.2f" % ((attempt.overhead_s or 0) * 1000)),
        ]
        shows_cost = not deployment.hides_cache  # also by the money that is left
        if shows_cost and attempt.event is not None and attempt.event.cost_nusd is not None:
            headers.append((b"x-tollgate-cost-usd", plain_usd(attempt.event.cost_nusd).encode()))
        if dropped := attempt.dropped_fields:
            named = ", ".join(dropped)
            headers.append((b"x-tollgate-dropped-fields", named.encode("latin-1", "replace")))
        if attempt.begun.degraded is not None:
            headers.append(
                (b"x-tollgate-degraded", attempt.begun.degraded.encode("latin-1", "replace"))
            )
        if shows_cost and answer.budget_remaining_nusd is not None:
            headers.append(
                (
                    b"x-tollgate-budget-remaining-usd",
                    plain_usd(answer.budget_remaining_nusd).encode(),
                )
            )
        return headers


@lru_cache(maxsize=1024)  # a policy has a few routes and deployments
def place_headers(
    route: str, deployment: str, provider: str, region: str, policy_version: int
) -> Headers:
    """Return the `x-tollgate-*` headers that name an answer's route, deployment, provider, region
    and policy version.
    """
    values = {"route": route, "deployment": deployment, "provider": provider, "region": region}
    named = [
        (b"x-tollgate-" + name.encode(), value.encode("latin-1", "replace"))
        for name, value in values.items()
    ]
    return [*named, (b"x-tollgate-policy", str(policy_version).encode())]
