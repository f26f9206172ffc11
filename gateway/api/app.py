"""Builds the FastAPI application with every endpoint except forwarding: models, receipts, own
usage, route explanation, health and readiness.

On FastAPI, because this path is not hot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import structlog
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.api import attribution, body, dialect_headers
from gateway.api.authenticate import caller_of
from gateway.api.errors import error_answer
from gateway.api.http.caller_exchange import ClientGone
from gateway.api.large_bodies import LargeBodies, is_large
from gateway.api.plain.anthropic_models import anthropic_list, anthropic_model
from gateway.api.plain.count_tokens import count_answer, counting_request
from gateway.api.plain.description import complete
from gateway.api.plain.listed_models import listed_model
from gateway.api.plain.route_explain import explained, read_question
from gateway.api.plain.stored_responses import answer_stored
from gateway.api.request_slots import RequestSlots
from gateway.api.routes import ANTHROPIC, COUNT_TOKENS, DEFAULT_DIALECT, ENDPOINTS, OFFERED
from gateway.domain.budgets.limits import LimitedBy, Limits
from gateway.domain.checks import Check, Status
from gateway.domain.ids import occurred_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Route
from gateway.domain.request.request import Caller
from gateway.domain.request.stored_response import StoredResponseAction
from gateway.domain.routing.decide import find_route
from gateway.domain.routing.replay import Place
from gateway.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    NotSupported,
    RequestError,
    Unavailable,
    UpstreamError,
)
from gateway.reports import (
    PriceFact,
    Receipt,
    Reports,
    receipt_of_events,
    receipt_to_json,
    usage_me_to_json,
)
from gateway.services.deployments.estimates import Estimates
from gateway.services.limits.limiter import LimitStatus, LimitUsage
from gateway.services.limits.own_reads import OwnReads
from gateway.services.ports import Clock
from gateway.services.request.prompt_counts import PromptCounts
from gateway.services.request.stored_response_calls import StoredResponseCalls
from gateway.services.snapshot.snapshot import SnapshotHolder

log = structlog.get_logger()
T = TypeVar("T")

_READ_HEADERS = {name: name.decode() for name in (*body.HEADERS, *attribution.HEADERS)}
PENDING_FOR = timedelta(seconds=60)  # a receipt may still be on its way for this long
DOCS_URL = "https://tollgate.example/docs"  # as in pyproject.toml
ANTHROPIC_VERSION = "anthropic-version"  # Anthropic's clients send it with each request
SKEW = timedelta(seconds=5)  # another replica's clock may be ahead by this much


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainEndpoints:
    """The dependencies of the endpoints that FastAPI serves: all except forwarding.

    `standing` returns the use of limits from this worker's memory. `not_ready` returns the reasons
    to send traffic elsewhere, each with its remedy. `reads` runs the reads of callers; `checks`
    returns readiness's other checks. `recent` finds events settled here that may not be in Postgres
    yet. `is_lagging` is True while any worker's journal may hold events older than a minute. It
    runs in a thread and may raise `DatabaseUnavailable`. `region` is the gateway's own region,
    `estimates` this worker's observations. `counts` counts prompts that are not answered.
    """

    holder: SnapshotHolder
    reports: Reports
    reads: OwnReads
    clock: Clock
    standing: Callable[[Sequence[LimitedBy]], Sequence[LimitStatus]]
    allows_demo_keys: bool
    not_ready: Callable[[], list[str]]
    checks: Callable[[], Sequence[Check]]
    recent: Callable[[UUID], Sequence[UsageEvent]]
    is_lagging: Callable[[], bool]
    region: str
    max_body_bytes: int
    slots: RequestSlots
    large_bodies: LargeBodies
    estimates: Estimates
    stored_responses: StoredResponseCalls
    counts: PromptCounts

    async def read(self, caller: Caller, work: Callable[[], T]) -> T:
        """Run `work`, one read of the caller's own data, in a thread and under its team's request
        limit; return its result.

        Raises the errors of `OwnReads`.
        """
        snapshot = self.holder.require()
        team = snapshot.policy.policy.teams[caller.team]
        terms = snapshot.terms_of(team, project=caller.project, key_id=caller.key_id)
        return await self.reads.read(caller.team, terms.limits, work)

    async def caller(self, request: Request) -> Caller:
        """Return the authenticated caller of a request. Raises the errors of `caller_of`."""
        return await caller_of(
            request.scope["headers"],
            self.holder,
            now=self.clock.now,
            allows_demo=self.allows_demo_keys,
        )


def build_app(endpoints: PlainEndpoints) -> FastAPI:
    """Return the FastAPI application; its OpenAPI description also covers the forwarding
    endpoints.
    """
    app = FastAPI(
        title="Tollgate",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        summary="An OpenAI-compatible inference gateway whose meter can be believed.",
    )
    handlers: dict[str, Callable[..., Any]] = {
        "/v1/messages/count_tokens": _count_tokens,
        "/v1/models": _models,
        "/v1/models/{model}": _one_model,
        "/v1/responses/{response_id}": _stored_response,
        "/v1/responses/{response_id}/cancel": _cancel_response,
        "/v1/requests/{request_id}": _receipt,
        "/v1/usage/me": _usage,
        "/v1/route/explain": _route_explain,
        "/": _root,
        "/healthz": _healthz,
        "/readyz": _readyz,
    }
    app.state.endpoints = endpoints
    for endpoint in ENDPOINTS:
        if not endpoint.is_metered:
            app.add_api_route(
                endpoint.path,
                handlers[endpoint.path],
                methods=[endpoint.method],
                summary=endpoint.summary,
                response_model=None,
            )
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(DatabaseUnavailable, _on_database)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(Exception, _on_failure)
    _complete_description(app)
    return app


async def _models(request: Request) -> Response:
    """Return the routes that the caller's team may use, as OpenAI's list of models, or Anthropic's
    for its clients.
    """
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    policy = endpoints.holder.require().policy.policy
    team = policy.teams[caller.team]
    listed = [_listed(endpoints, caller, policy.routes[name]) for name in team.routes]
    if ANTHROPIC_VERSION in request.headers:
        return JSONResponse(anthropic_list(listed))
    return JSONResponse({"object": "list", "data": listed})


async def _one_model(request: Request, model: str) -> Response:
    """Return one route of the caller's team, as OpenAI's model object, or Anthropic's."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    policy = endpoints.holder.require().policy.policy
    route = find_route(policy, policy.teams[caller.team], model)
    listed = _listed(endpoints, caller, route)
    is_anthropic = ANTHROPIC_VERSION in request.headers
    return JSONResponse(anthropic_model(listed) if is_anthropic else listed)


def _listed(endpoints: PlainEndpoints, caller: Caller, route: Route) -> dict[str, Any]:
    """Return one route of the caller's team as an object of `/v1/models`."""
    place = Place(gateway_region=endpoints.region, day=endpoints.clock.now().date())
    return listed_model(
        route,
        caller=caller,
        snapshot=endpoints.holder.require(),
        place=place,
        estimates=endpoints.estimates,
    )


async def _stored_response(request: Request, response_id: str) -> Response:
    """Return or delete a response that the team's deployment keeps."""
    is_read = request.method == "GET"
    action = StoredResponseAction.READ if is_read else StoredResponseAction.DELETE
    return await _ask_for_response(request, action, response_id)


async def _cancel_response(request: Request, response_id: str) -> Response:
    """Cancel a response that the team's deployment keeps."""
    return await _ask_for_response(request, StoredResponseAction.CANCEL, response_id)


async def _ask_for_response(
    request: Request, action: StoredResponseAction, response_id: str
) -> Response:
    """Answer a request for a stored response, in one of its team's places for requests in
    flight.
    """
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    headers = attribution.read(request.scope["headers"], _READ_HEADERS)
    endpoints.slots.take(caller.team, is_only_team=len(snapshot.policy.policy.teams) == 1)
    try:
        return await answer_stored(
            action,
            response_id,
            query=request.scope["query_string"],
            headers=headers,
            caller=caller,
            snapshot=snapshot,
            calls=endpoints.stored_responses,
            request_id=request.state.request_id,
        )
    finally:
        endpoints.slots.release(caller.team)


async def _count_tokens(request: Request) -> Response:
    """Return the tokens of a prompt of messages; it counts as one request of the team."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    fields = request.scope["headers"]
    headers = dict(request.headers) | attribution.read(fields, _READ_HEADERS)
    body.check_declared(headers, limit_bytes=endpoints.max_body_bytes)
    await endpoints.read(caller, lambda: None)
    endpoints.slots.take(caller.team, is_only_team=len(snapshot.policy.policy.teams) == 1)
    try:
        content = await body.read_body(request.receive, limit_bytes=endpoints.max_body_bytes)
        read_request, operation = ANTHROPIC.read_request, Operation.MESSAGES
        if is_large(content):
            large = endpoints.large_bodies
            read = await large.read(caller.team, read_request, operation, content)
        else:
            read = read_request(operation, content)
        asked = counting_request(
            read,
            caller=caller,
            request_id=request.state.request_id,
            headers=headers,
            fields=fields,
            is_beta=dialect_headers.is_beta(b"?" + request.scope["query_string"]),
            snapshot=snapshot,
        )
        answer, named = count_answer(await endpoints.counts.count(asked, snapshot))
    finally:
        endpoints.slots.release(caller.team)
    return Response(answer, headers=named, media_type="application/json")


async def _receipt(request: Request, request_id: str) -> Response:
    """Return the receipt of a request of the caller's team; 202 while it may still arrive."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    wanted = _request_id(request_id)
    try:
        recent = endpoints.recent(wanted)
        found, may_come = await endpoints.read(
            caller, lambda: _receipt_or_pending(endpoints, wanted, caller.team, recent)
        )
    except (DatabaseUnavailable, Unavailable):
        found = _receipt_from_memory(endpoints, wanted, team=caller.team)
        may_come = _may_be_pending(endpoints, wanted)
        if found is None and not may_come:
            raise
    if found is not None:
        return Response(receipt_to_json(found), media_type="application/json")
    if may_come:
        return JSONResponse(
            {"request_id": str(wanted), "status": "pending"}, 202, {"retry-after": "1"}
        )
    raise NotSupported(
        f"Team {caller.team} has no request {wanted}. Receipts are for a team's own requests."
    )


def _request_id(text: str) -> UUID:
    """Parse the text of a request id that the gateway made. Raises `InvalidRequest` otherwise."""
    try:
        wanted = UUID(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.version != 7:
        raise InvalidRequest(
            "The request id is not one of ours: use the x-request-id of an answer.",
            param="request_id",
        )
    return wanted


def _receipt_or_pending(
    endpoints: PlainEndpoints, wanted: UUID, team: str, recent: Sequence[UsageEvent]
) -> tuple[Receipt | None, bool]:
    """Return the team's receipt of a request, or None and whether it may still come. Runs in a
    thread.
    """
    found = endpoints.reports.receipt(wanted, team=team, recent=recent)
    return found, found is None and _may_still_arrive(endpoints, wanted)


def _may_still_arrive(endpoints: PlainEndpoints, wanted: UUID) -> bool:
    """Return True if a missing receipt may still come. Uses the id alone, so other teams learn
    nothing.
    """
    if occurred_at(wanted) > endpoints.clock.now() + SKEW:
        return False
    return _may_be_pending(endpoints, wanted) or endpoints.is_lagging()


def _may_be_pending(endpoints: PlainEndpoints, wanted: UUID) -> bool:
    """Return True if a request is so recent that the ledger may not have its event yet."""
    return -SKEW <= endpoints.clock.now() - occurred_at(wanted) < PENDING_FOR


def _receipt_from_memory(endpoints: PlainEndpoints, wanted: UUID, *, team: str) -> Receipt | None:
    """Return the receipt from the events that this worker settled, while Postgres cannot be asked;
    None if it settled none.
    """
    prices = endpoints.holder.require().prices.values()
    facts = {price.price_id: PriceFact(source=price.source) for price in prices}
    return receipt_of_events(endpoints.recent(wanted), team=team, prices=facts)


async def _usage(request: Request) -> Response:
    """Return the spend, budgets and limits of the calling key and its team."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    now = endpoints.clock.now()
    snapshot = endpoints.holder.require()
    team = snapshot.policy.policy.teams[caller.team]
    terms = snapshot.terms_of(team, project=caller.project, key_id=caller.key_id)
    usage = await endpoints.read(
        caller,
        lambda: endpoints.reports.usage_me(
            team=caller.team, key_id=caller.key_id, now=now, accounts=terms.accounts
        ),
    )
    standings = endpoints.standing(terms.limits)
    limits = [
        _limit_json(one, limits) for one, (_, limits) in zip(standings, terms.limits, strict=True)
    ]
    return Response(usage_me_to_json(usage, limits=limits), media_type="application/json")


async def _route_explain(request: Request) -> Response:
    """Return the deployments that a request would use, with the reasons against the others."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    fields = request.scope["headers"]
    headers = dict(request.headers) | attribution.read(fields, _READ_HEADERS)
    body.check_declared(headers, limit_bytes=endpoints.max_body_bytes)
    endpoints.slots.take(caller.team, is_only_team=len(snapshot.policy.policy.teams) == 1)
    try:
        content = await body.read_body(request.receive, limit_bytes=endpoints.max_body_bytes)
        if is_large(content):
            question = await endpoints.large_bodies.read(caller.team, read_question, content)
        else:
            question = read_question(content)
    finally:
        endpoints.slots.release(caller.team)
    place = Place(gateway_region=endpoints.region, day=endpoints.clock.now().date())
    explanation = explained(
        question,
        headers,
        caller=caller,
        snapshot=snapshot,
        place=place,
        estimates=endpoints.estimates,
    )
    return Response(explanation, media_type="application/json")


def _limit_json(standing: LimitStatus, limits: Limits) -> dict[str, Any]:
    """Return one limit with its last known use, for `/v1/usage/me`.

    The concurrency of other workers is not included.
    """
    return {
        "limit": standing.limit_id,
        "requests_per_minute": _limit_usage_json(standing.requests),
        "tokens_per_minute": _limit_usage_json(standing.tokens),
        "concurrent": None if limits.concurrent is None else {"limit": limits.concurrent},
    }


def _limit_usage_json(figures: LimitUsage | None) -> dict[str, Any] | None:
    """Return one measure's limit, remainder and reset time for `/v1/usage/me`; None without a
    limit.
    """
    if figures is None:
        return None
    return {
        "limit": figures.limit,
        "remaining": max(figures.remaining, 0),
        "reset_s": figures.reset_s,
    }


async def _root(request: Request) -> Response:
    """Return what answers here, without any state: clients and probes ask before they have a
    key.
    """
    return JSONResponse({"name": "tollgate", "version": __version__, "docs": DOCS_URL})


async def _healthz(request: Request) -> Response:
    return JSONResponse({"status": "alive", "version": __version__})


async def _readyz(request: Request) -> Response:
    """Return 200 if this replica may take traffic, else 503; both list the readiness checks."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    try:
        checks = endpoints.checks()
    except (
        Exception
    ) as broken:  # the caller of readiness must see the failure, and is not a model's caller
        log.exception("checks_failed")
        checks = (Check("checks", Status.FAIL, f"failed: {broken!r}", "look at the gateway's log"),)
    warnings = [
        f"{check.name}: {check.finding}" for check in checks if check.status is not Status.OK
    ]
    details = {"warnings": warnings, "checks": [_check_json(check) for check in checks]}
    problems = endpoints.not_ready()
    if problems:
        return JSONResponse(
            {"status": "not ready", "problems": problems, **details}, 503, {"retry-after": "2"}
        )
    version = endpoints.holder.require().policy.version
    return JSONResponse({"status": "ready", "policy_version": version, **details})


def _check_json(check: Check) -> dict[str, str]:
    """Return one readiness check as a JSON object."""
    return {
        "check": check.name,
        "status": check.status,
        "finding": check.finding,
        "what_to_do": check.remedy,
    }


async def _on_request_error(request: Request, error: Exception) -> Response:
    """Return the error answer to a request that is not forwarded: status, headers and body."""
    assert isinstance(error, RequestError)
    path, request_id = request.scope["path"], str(request.state.request_id)
    dialect = ANTHROPIC if path == COUNT_TOKENS else DEFAULT_DIALECT
    status, headers, content = error_answer(error, dialect, request_id=request_id)
    return Response(content, status, {name.decode(): value.decode() for name, value in headers})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer Starlette's own 404 and 405 with an error body in the caller's dialect."""
    return await _on_request_error(
        request,
        NotSupported(f"{request.method} {request.url.path} is not offered. Offered: {OFFERED}."),
    )


async def _on_database(request: Request, error: Exception) -> Response:
    """Answer 503 with `retry-after` if Postgres cannot be read."""
    return await _on_request_error(
        request,
        Unavailable("The ledger cannot be read just now. Try again shortly.", retry_after_s=5),
    )


async def _on_client_gone(request: Request, error: Exception) -> Response:
    """Return an answer that is never sent, because the caller left before its body was read."""
    return Response(status_code=499)  # the caller has left; not sent


async def _on_failure(request: Request, error: Exception) -> Response:
    """Answer an internal error. Starlette raises it again after this answer, so that the server
    logs it.
    """
    return await _on_request_error(
        request, UpstreamError("The gateway failed on this request. Ask an admin.")
    )


def _complete_description(app: FastAPI) -> None:
    """Have the application's OpenAPI description cover the forwarding endpoints, which bypass
    FastAPI, keys and errors.
    """
    original = app.openapi
    app.openapi = lambda: complete(original())  # type: ignore[method-assign]  # the documented way
