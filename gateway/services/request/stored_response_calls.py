"""Asks the deployment that keeps a response for it, to read, delete or cancel it, under the
residency rules of now. It stores nothing of the answer and charges nothing for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from msgspec.structs import replace

from gateway.domain.ids import day_of
from gateway.domain.money import plain_usd
from gateway.domain.operation import Operation
from gateway.domain.places.regions import UNKNOWN
from gateway.domain.policy.policy import DataClass, Deployment, Policy, Route, Team
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Caller, RequestBody, RequestFacts, unsent
from gateway.domain.request.stored_response import StoredResponse, StoredResponseAction
from gateway.domain.routing.decide import Candidate, Decision, decide
from gateway.errors import NotSupported, RouteNotAllowed, UpstreamError
from gateway.services.codings import CODING, opened
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth, full_error
from gateway.services.ports import (
    KeepsResponses,
    Provider,
    Transport,
    Upstream,
)
from gateway.services.request.stored_responses import StoredResponses, require_same
from gateway.services.request.upstream_answer import (
    LARGE_BYTES,
    MAX_ANSWER_BYTES,
    in_own_thread,
)
from gateway.services.snapshot.snapshot import RequestTerms, Snapshot
from gateway.services.upstream_error import caller_error, error_body
from gateway.wire.dialect import UnreadableAnswer, UpstreamRequest, written
from gateway.wire.hidden_cache.answers import Written, without_cache
from gateway.wire.observed import Observed

NEEDED = "stored_state"  # the permission that a deployment must give
_NAMED = ((NEEDED, "the id of a stored response"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponseRequest:
    """One request for a stored response. `query` is the part that goes upstream, with its `?`, or
    empty.
    """

    request_id: UUID
    action: StoredResponseAction
    response_id: str
    query: str
    caller: Caller
    data_class: DataClass
    data_tags: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponseAnswer:
    """The caller's answer, with the deployment that gave it and the decision that allowed it."""

    content_type: str
    body: bytes
    deployment: Deployment
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponseCalls:
    """Asks upstreams for the responses that they keep. `region` is the gateway's own region."""

    responses: StoredResponses
    transport: Transport
    providers: Mapping[str, Provider]
    ejections: Ejections
    health: DeploymentHealth
    region: str = UNKNOWN

    async def ask(
        self, request: StoredResponseRequest, snapshot: Snapshot, *, terms: RequestTerms
    ) -> StoredResponseAnswer:
        """Return the answer of the deployment that keeps the response.

        Raises the `RequestError` for the caller.
        """
        team = request.caller.team
        stored = await self.responses.find(team, request.response_id, terms.limits)
        decision = self._decision(request, stored, snapshot)
        (candidate,) = decision.eligible
        deployment = candidate.deployment
        provider = self.providers[deployment.provider]
        if not isinstance(provider, KeepsResponses):
            raise NotSupported(
                f"{deployment.name} keeps no responses: its provider {deployment.provider} has no "
                "such endpoint."
            )
        call = await provider.stored_response(
            deployment,
            request.request_id,
            action=request.action,
            response_id=stored.response_id,
            query=request.query,
        )
        content_type, body = await self._exchange(
            decision, candidate, provider, call, stored=stored, request_id=request.request_id
        )
        if request.action is not StoredResponseAction.DELETE:
            body = await _for_caller(body, provider, call, stored, deployment)
        return StoredResponseAnswer(
            content_type=content_type, body=body, deployment=deployment, decision=decision
        )

    async def _exchange(
        self,
        decision: Decision,
        candidate: Candidate,
        provider: Provider,
        call: UpstreamRequest,
        *,
        stored: StoredResponse,
        request_id: UUID,
    ) -> tuple[str, bytes]:
        """Return content type and body of the deployment's answer, in one of its slots in flight.

        Raises the caller's error. The breaker learns nothing: an answer about an id does not say
        whether the deployment can generate, and an open one leaves no other deployment to ask.
        """
        deployment = candidate.deployment
        standing = self.health.of(deployment)
        if self.health.is_full(standing, deployment):
            raise full_error(deployment)
        slot = self.health.take_slot(standing)
        try:
            permit = decision.permit(candidate, attempt=1)
            upstream = await self.transport.send(permit, call, within_s=decision.route.timeout_s)
            try:
                head = await upstream.head()
                self.ejections.note_head(head[1], decision, deployment, request_id=request_id)
                return await _read(upstream, head, provider, call, deployment, stored=stored)
            finally:
                upstream.close()
        finally:
            slot.release()

    def _decision(
        self, request: StoredResponseRequest, stored: StoredResponse, snapshot: Snapshot
    ) -> Decision:
        """Return the decision that allows the response's deployment, and no other.

        Raises the caller's error if there is none: the response has at least the class and tags of
        the request that it answered.
        """
        policy = snapshot.policy.policy
        team = policy.teams[request.caller.team]
        route = _route_to(stored, team, policy)
        require_same(stored, policy.deployments[stored.deployment])
        facts = _facts(route)
        decision = decide(
            snapshot.policy,
            team=team,
            route=route,
            data_class=max(request.data_class, stored.data_class),
            data_tags=request.data_tags | stored.data_tags,
            facts=facts,
            prices=snapshot.prices,
            gateway_region=self.region,
            day=day_of(request.request_id),
            ejected=self.ejections.out(snapshot.ejected),
        ).only(stored.deployment)
        assert decision is not None, "the route has the deployment"
        if refusal := decision.refusal(facts):
            raise refusal
        return decision


def _route_to(stored: StoredResponse, team: Team, policy: Policy) -> Route:
    """Return a route of the team that leads to the response's deployment, its own first. Raises
    `RouteNotAllowed` if there is none any more.
    """
    names = [name for name in (stored.route, *team.routes) if name in team.routes]
    routes = [policy.routes[name] for name in names]
    lower = [policy.routes[route.degrade_to] for route in routes if route.degrade_to is not None]
    for route in (*routes, *lower):
        if stored.deployment in route.deployments:
            return route
    raise RouteNotAllowed(
        f"Response {stored.response_id} is kept by deployment {stored.deployment}, which none of "
        f"team {team.name}'s routes has any more. Nothing was sent. Ask an admin, or send the "
        "conversation itself."
    )


def _facts(route: Route) -> RequestFacts:
    """Return the facts of a request for a stored response, for its decision."""
    facts = unsent(Operation.RESPONSES, route.name, features=frozenset({NEEDED}))
    return replace(facts, named=_NAMED)


async def _read(
    upstream: Upstream,
    head: tuple[int, Mapping[str, str]],
    provider: Provider,
    call: UpstreamRequest,
    deployment: Deployment,
    *,
    stored: StoredResponse,
) -> tuple[str, bytes]:
    """Return the content type and the body of the upstream's answer. Raises the caller's error for
    an error answer.
    """
    status, headers = head
    if 200 <= status < 300:
        content_type = headers.get("content-type", "application/json")
        body = await upstream.read(MAX_ANSWER_BYTES)
        return content_type, opened(body, headers.get(CODING), most_bytes=MAX_ANSWER_BYTES)
    body, is_whole = await error_body(upstream)
    if status == 404:
        raise NotSupported(
            f"{deployment.name} does not have response {stored.response_id} (HTTP 404): it was not "
            "stored, was deleted, or has expired."
        )
    raise caller_error(provider, deployment, call, head, body=body if is_whole else b"")


async def _for_caller(
    body: bytes,
    provider: Provider,
    call: UpstreamRequest,
    stored: StoredResponse,
    deployment: Deployment,
) -> bytes:
    """Return a response object with the route's name as its model, and the cost that was booked for
    it. Raises `UpstreamError` if it is no JSON.
    """
    write: Written = written
    if deployment.hides_cache:
        write = without_cache(Operation.RESPONSES, is_stream=False)
    read = RequestBody(unsent(Operation.RESPONSES, stored.route), b"", {})
    cost = None if stored.cost_nusd is None else plain_usd(stored.cost_nusd)

    def cost_text(_: TokenUsage) -> str | None:
        return cost

    def rewritten() -> bytes:
        return write(provider.rewrite(read, call, body, Observed()), cost_text)

    try:
        return rewritten() if len(body) < LARGE_BYTES else await in_own_thread(rewritten)
    except UnreadableAnswer as problem:
        name = deployment.name
        raise UpstreamError(f"{name} answered with something that is {problem}.") from None
