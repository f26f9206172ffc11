"""Answers `POST /v1/route/explain`: the deployments that a described request would use, and the
reasons against the others; it sends and meters nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request
from fastapi.responses import Response

from gateway.api import attribution
from gateway.api.plain.endpoints import PlainEndpoints, headers_of
from gateway.api.routes import DIALECTS
from gateway.domain.money import nusd_from_usd, plain_usd
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Route, Team
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Caller, RequestBody, RequestFacts, unsent
from gateway.domain.request.unlisted import unlisted_of
from gateway.domain.routing.affinity import named_session
from gateway.domain.routing.decide import Decision, decide, find_route
from gateway.domain.routing.replay import Place
from gateway.errors import InvalidRequest
from gateway.services.deployments.estimates import Estimates
from gateway.services.policy.explain import CandidateVerdict, Explanation, basis, explain
from gateway.services.policy.unsent_requests import PROMPT_TOKENS, imagined
from gateway.services.snapshot.snapshot import Snapshot
from gateway.wire import json_bounds

# Members that only a sendable body has, with its endpoint.
_SENT_TO = {
    "messages": Operation.CHAT,
    "prompt": Operation.COMPLETIONS,
    "input": Operation.RESPONSES,
    "query": Operation.RERANK,
    "text_1": Operation.SCORE,
    "queries": Operation.SCORE,
    "data_1": Operation.SCORE,
}


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The short form of a question to `/v1/route/explain`."""

    model: str
    data_class: str | None = None
    data_tags: list[str] = []
    operation: Operation = Operation.CHAT
    needs: list[str] = []
    tokens: int | None = None
    answer_tokens: int = 0


class _Sent(msgspec.Struct):
    """The members of a sendable body that are read besides those of every endpoint."""

    operation: Operation | None = None


class ImaginedRequest(msgspec.Struct, frozen=True):
    """The request that a question to `/v1/route/explain` describes; it is not sent.

    `tokens` is None for a sendable `body`: its bytes determine the prompt's length.
    """

    facts: RequestFacts
    labels: str | None
    usage: TokenUsage | None = None
    tokens: int | None = None
    answer_tokens: int = 0
    body: RequestBody | None = None


async def explain_route(request: Request) -> Response:
    """Return the deployments that a request would use, with the reasons against the others."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    snapshot = endpoints.holder.require()
    headers = headers_of(request)
    endpoints.check_declared(headers)
    with endpoints.slot(caller):
        question = await endpoints.read_body(request, caller, read_question)
    explanation = explained(
        question,
        headers,
        caller=caller,
        snapshot=snapshot,
        place=endpoints.place,
        estimates=endpoints.estimates,
    )
    return Response(explanation, media_type="application/json")


def explained(
    question: ImaginedRequest,
    headers: dict[str, str],
    *,
    caller: Caller,
    snapshot: Snapshot,
    place: Place,
    estimates: Estimates | None = None,
) -> bytes:
    """Return the decision on a request that the caller only asks about, as JSON.

    Raises the error that the request itself would get before the decision.

    `estimates` are this worker's observations; without them the policy's declarations are used.
    """
    policy = snapshot.policy.policy
    team = policy.teams[caller.team]
    labels = ",".join(
        part for part in (headers.get("x-tollgate-data-class"), question.labels) if part
    )
    data_class, data_tags = _labels(labels, team, snapshot)
    route = find_route(policy, team, question.facts.model)

    project = attribution.project(headers, caller.project, team)
    terms = snapshot.terms_of(team, project=project, key_id=caller.key_id, day=place.day)
    read = question.body if terms.has_hard_budget else None

    def decided(wanted: Route) -> Decision:
        members = (policy.deployments[name] for name in wanted.members)
        return decide(
            snapshot.policy,
            team=team,
            route=wanted,
            data_class=data_class,
            data_tags=data_tags,
            facts=question.facts,
            prices=snapshot.prices,
            gateway_region=place.gateway_region,
            day=place.day,
            ejected=snapshot.ejected,
            unlisted=() if read is None else unlisted_of(members, read),
        )

    decision, other = decided(route), route.degrade_to
    session = named_session(
        headers.get("x-session-id"), question.facts.cache_key, question.facts.end_user
    )
    ranking = imagined(
        decision,
        question.facts,
        session=session or caller.key_id,
        estimates=estimates,
        tokens=question.tokens,
        answer_tokens=question.answer_tokens,
        degrade=None if other is None else lambda: decided(policy.routes[other]),
    )
    stated_basis = basis(
        is_live=estimates is not None, tokens=question.tokens, answer_tokens=question.answer_tokens
    )
    explanation = explain(
        decision, usage=question.usage, ranking=ranking, basis=stated_basis, facts=question.facts
    )
    return msgspec.json.encode(_record(explanation))


def read_question(body: bytes) -> ImaginedRequest:
    """Parse the body of `/v1/route/explain` in either form. Raises `InvalidRequest`."""
    json_bounds.check_large(body)
    members = _decoded(body, dict[str, msgspec.Raw])
    member = next((name for name in _SENT_TO if name in members), None)
    if member is not None:
        operation = _decoded(body, _Sent).operation or _SENT_TO[member]
        read = DIALECTS[operation].read_request(operation, body)
        return ImaginedRequest(read.facts, None, body=read)
    asked = _decoded(body, _Asked)
    facts = unsent(asked.operation, asked.model, capabilities=frozenset(asked.needs))
    labels = ",".join((*([asked.data_class] if asked.data_class else []), *asked.data_tags))
    tokens = PROMPT_TOKENS if asked.tokens is None else asked.tokens
    return ImaginedRequest(facts, labels or None, _usage(asked), tokens, asked.answer_tokens)


def _decoded(body: bytes, kind: type[Any]) -> Any:
    """Parse a JSON body as the given type. Raises `InvalidRequest` with the accepted members."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as wrong:
        raise InvalidRequest(
            f"The body: {wrong}. Send a request's body as it is, or {{model, data_class, "
            "data_tags, operation, needs, tokens, answer_tokens}."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("The body is not a valid JSON object.") from None


def _usage(asked: _Asked) -> TokenUsage | None:
    """Return the question's numbers of tokens as usage, None if it names none. Raises
    `InvalidRequest`.
    """
    if asked.tokens is None:
        return None
    usage = TokenUsage(input_tokens=asked.tokens, output_tokens=asked.answer_tokens)
    if not usage.is_plausible:
        raise InvalidRequest(
            "'tokens' and 'answer_tokens' are numbers of tokens from 0.", param="tokens"
        )
    return usage


def _labels(sent: str, team: Team, snapshot: Snapshot) -> tuple[DataClass, frozenset[str]]:
    """Return the data class and tags of a label text, by the rules of `x-tollgate-data-class`."""
    headers = {"x-tollgate-data-class": sent} if sent else {}
    data_class, _, tags = attribution.data_labels(
        headers, team, declared_tags=snapshot.policy.policy.data_tags
    )
    return data_class, tags


def _record(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation with the same fields as `tollgate policy explain --format json`."""
    return explanation.record() | {
        "candidates": [_candidate(verdict) for verdict in explanation.verdicts]
    }


def _candidate(verdict: CandidateVerdict) -> dict[str, Any]:
    """Return one candidate's verdict as a JSON object: rank, reason, expected latency and cost."""
    entry: dict[str, Any] = {
        "rank": verdict.rank,
        "deployment": verdict.deployment,
        "region": verdict.region,
        "reason": verdict.reason,
    }
    if verdict.route is not None:
        entry["route"] = verdict.route
    if verdict.expected is not None:
        entry |= {"expected": verdict.expected, "arithmetic": verdict.arithmetic}
    if verdict.cost_usd is not None:
        entry["cost_usd"] = msgspec.Raw(plain_usd(nusd_from_usd(verdict.cost_usd)).encode())
    return entry
