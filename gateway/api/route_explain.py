"""`POST /v1/route/explain`: where a request would go, and why nowhere else. Sends nothing and meters nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.api import attribution
from gateway.domain.affinity import named_session
from gateway.domain.money import nusd_from_usd, plain_usd
from gateway.domain.policy import DataClass, Operation, Route, Team
from gateway.domain.replay import Place
from gateway.domain.request import Ask, Caller, unsent
from gateway.domain.routing import Decision, decide, find_route
from gateway.domain.tokens import TokenUsage
from gateway.errors import InvalidRequest
from gateway.services.explanations import Explanation, Verdict, basis, explain
from gateway.services.outlook import Outlook
from gateway.services.snapshot import Snapshot
from gateway.services.unsent_requests import PROMPT_TOKENS, imagined
from gateway.wire import request_shape
from gateway.wire.openai_request import read_request

# What only a body that could be sent has, and the endpoint that it would be sent to.
_SENT_TO = {"messages": Operation.CHAT, "prompt": Operation.COMPLETIONS, "input": Operation.RESPONSES}


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The short form of a question."""

    model: str
    data_class: str | None = None
    data_tags: list[str] = []
    operation: Operation = Operation.CHAT
    needs: list[str] = []
    tokens: int | None = None
    answer_tokens: int = 0


class _Sent(msgspec.Struct):
    """What is looked at of a body that could be sent, besides what every endpoint reads of it."""

    operation: Operation | None = None


class Question(msgspec.Struct, frozen=True):
    """A request that is not sent.

    `tokens` is None for a body that could be sent: its bytes say how long the prompt is.
    """

    ask: Ask
    labels: str | None
    usage: TokenUsage | None = None
    tokens: int | None = None
    answer_tokens: int = 0


def explained(
    question: Question, headers: dict[str, str], *, caller: Caller, snapshot: Snapshot, place: Place,
    outlook: Outlook | None = None,
) -> bytes:  # fmt: skip
    """Return the caller's own decision as JSON. Raises what the request itself would be refused with before that.

    `outlook` is what this worker has seen; without it expectations are those that the policy declares.
    """
    policy = snapshot.policy.policy
    team = policy.teams[caller.team]
    labels = ",".join(part for part in (headers.get("x-tollgate-data-class"), question.labels) if part)
    data_class, data_tags = _labels(labels, team, snapshot)
    route = find_route(policy, team, question.ask.model)

    def decided(wanted: Route) -> Decision:
        return decide(
            snapshot.policy, team=team, route=wanted, data_class=data_class, data_tags=data_tags, ask=question.ask,
            prices=snapshot.prices, gateway_region=place.gateway_region, day=place.day, ejected=snapshot.ejected,
        )  # fmt: skip

    decision, other = decided(route), route.degrade_to
    session = named_session(headers.get("x-session-id"), question.ask.cache_key, question.ask.end_user)
    ranking = imagined(
        decision, question.ask, session=session or caller.key_id, outlook=outlook, tokens=question.tokens,
        answer_tokens=question.answer_tokens, degrade=None if other is None else lambda: decided(policy.routes[other]),
    )  # fmt: skip
    said = basis(is_live=outlook is not None, tokens=question.tokens, answer_tokens=question.answer_tokens)
    explanation = explain(decision, usage=question.usage, ranking=ranking, basis=said, ask=question.ask)
    return msgspec.json.encode(_told(explanation))


def read_question(body: bytes) -> Question:
    """Read either form of a question. Raises `InvalidRequest`."""
    request_shape.check_large(body)
    members = _decoded(body, dict[str, msgspec.Raw])
    member = next((name for name in _SENT_TO if name in members), None)
    if member is not None:
        operation = _decoded(body, _Sent).operation or _SENT_TO[member]
        return Question(read_request(operation, body).ask, None)
    asked = _decoded(body, _Asked)
    ask = unsent(asked.operation, asked.model, capabilities=frozenset(asked.needs))
    labels = ",".join((*([asked.data_class] if asked.data_class else []), *asked.data_tags))
    tokens = PROMPT_TOKENS if asked.tokens is None else asked.tokens
    return Question(ask, labels or None, _usage(asked), tokens, asked.answer_tokens)


def _decoded(body: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as wrong:
        raise InvalidRequest(
            f"The body: {wrong}. Send a request's body as it is, or {{model, data_class, data_tags, operation, needs, "
            f"tokens, answer_tokens}}."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidRequest("The body is not a valid JSON object.") from None


def _usage(asked: _Asked) -> TokenUsage | None:
    if asked.tokens is None:
        return None
    usage = TokenUsage(input_tokens=asked.tokens, output_tokens=asked.answer_tokens)
    if not usage.is_plausible:
        raise InvalidRequest("'tokens' and 'answer_tokens' are numbers of tokens from 0.", param="tokens")
    return usage


def _labels(sent: str, team: Team, snapshot: Snapshot) -> tuple[DataClass, frozenset[str]]:
    headers = {"x-tollgate-data-class": sent} if sent else {}
    data_class, _, tags = attribution.data_labels(headers, team, declared_tags=snapshot.policy.policy.data_tags)
    return data_class, tags


def _told(explanation: Explanation) -> dict[str, Any]:
    """As `tollgate policy explain --format json` says it."""
    return explanation.record() | {"candidates": [_candidate(verdict) for verdict in explanation.verdicts]}


def _candidate(verdict: Verdict) -> dict[str, Any]:
    told: dict[str, Any] = {
        "rank": verdict.rank, "deployment": verdict.deployment, "region": verdict.region, "reason": verdict.reason,
    }  # fmt: skip
    if verdict.route is not None:
        told["route"] = verdict.route
    if verdict.expected is not None:
        told |= {"expected": verdict.expected, "arithmetic": verdict.arithmetic}
    if verdict.cost_usd is not None:
        told["cost_usd"] = msgspec.Raw(plain_usd(nusd_from_usd(verdict.cost_usd)).encode())
    return told
