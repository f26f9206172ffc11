"""Makes an attempt's initial event, which stands if the process dies: interrupted, at its hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from msgspec.structs import replace

from gateway.domain.budgets.budgets import Hold
from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Deployment
from gateway.domain.policy.request_fields import PLACE_MEMBERS, REROUTING, UNKNOWN_FIELDS
from gateway.domain.pricing.settlement import unknown_settlement
from gateway.domain.request.bound import Bound
from gateway.domain.request.request import Request, RequestFacts
from gateway.domain.request.rounds import Rounds
from gateway.domain.request.unlisted import recorded, unlisted_at
from gateway.domain.routing.decide import Choice, Ranking
from gateway.wire.dialect import Translation

MOST_OPENINGS = 1024  # choices that are tried; a snapshot has a few hundred
MOST_HOSTED = 32  # names of tools in one event


class EventTemplates:
    """The initial events of attempts without their requests' fields, made once per choice.

    Choices are compared by identity, so each template keeps its choice alive.
    """

    def __init__(self) -> None:
        """Start without any template."""
        self._kept: dict[tuple[int, Operation], tuple[Choice, UsageEvent]] = {}

    def of(self, choice: Choice, operation: Operation) -> UsageEvent:
        """Return the template of a deployment's initial events: interrupted, with unknown usage."""
        kept = self._kept.get((id(choice), operation))
        if kept is None:
            if len(self._kept) >= MOST_OPENINGS:
                self._kept.clear()  # it also holds choices of old policies
            kept = self._kept[id(choice), operation] = (choice, _event_template(choice, operation))
        return kept[1]


# Placeholders for the request's fields in a template; `begun_event` overwrites all of them.
_NO_ID, _NO_TIME = UUID(int=0), datetime.min.replace(tzinfo=UTC)


def _event_template(choice: Choice, operation: Operation) -> UsageEvent:
    """Make the initial event for one deployment; `begun_event` fills in the request's fields."""
    decision, deployment, price = (
        choice.decision,
        choice.candidate.deployment,
        choice.candidate.price,
    )
    assert price is not None
    nothing = unknown_settlement(0)
    return UsageEvent(
        request_id=_NO_ID,
        attempt=0,
        started_at=_NO_TIME,
        team=decision.team.name,
        project=None,
        cost_centre=decision.team.cost_centre_on(decision.day),
        key_id="",
        end_user=None,
        tags={},
        route=decision.route.name,
        deployment=deployment.name,
        provider=deployment.provider,
        model=deployment.model,
        region=deployment.region,
        is_self_hosted=deployment.is_self_hosted,
        data_class=decision.class_label,
        policy_version=decision.policy.version,
        operation=operation.value,
        outcome=Outcome.INTERRUPTED,
        http_status=None,
        streamed=False,
        usage=nothing.usage,
        usage_source=nothing.source,
        price_id=price.price_id,
        lines=nothing.lines,
        cost_nusd=nothing.cost_nusd,
        held_nusd=nothing.held_nusd,
        ttft_s=None,
        tpot_s=None,
        duration_s=0.0,
        overhead_s=None,
        is_stand_in_price=price.is_flagged or deployment.unasked.is_router,
    )


def begun_event(
    opening: UsageEvent,
    request: Request,
    ranking: Ranking,
    choice: Choice,
    bound: Bound,
    *,
    number: int,
    started_at: datetime,
    holds: tuple[Hold, ...],
    queue_s: float | None,
    translation: Translation | None,
) -> UsageEvent:
    """Return the initial event of an attempt; `opening` is the template of its choice."""
    if request.body.facts.features and may_be_rerouted(
        request.body.facts, choice.candidate.deployment
    ):
        opening = replace(opening, is_stand_in_price=True)
    return replace(
        opening,
        request_id=request.request_id,
        attempt=number,
        started_at=started_at,
        project=request.project,
        key_id=request.caller.key_id,
        end_user=request.end_user,
        tags=dict(request.tags),
        route=ranking.decision.route.name,  # the requested route, even if it degraded to another
        streamed=request.body.facts.is_stream,
        held_nusd=bound.nusd,
        client_request_id=request.client_request_id,
        holds=holds,
        features=_features(request, choice, bound, translation),
        decision=ranking.record,
        queue_s=queue_s,
        degraded=ranking.degraded_at(choice),
    )


def may_be_rerouted(facts: RequestFacts, deployment: Deployment) -> bool:
    """Return True if the provider may serve another model than the deployment's, and bill that."""
    if not facts.features or deployment.is_self_hosted:
        return deployment.unasked.is_router
    return deployment.unasked.is_router or (
        REROUTING in facts.features - deployment.unsent_features(facts.operation)
        and dict(facts.named).get(REROUTING) not in PLACE_MEMBERS
    )


def _features(
    request: Request, choice: Choice, bound: Bound, translation: Translation | None
) -> Mapping[str, object]:
    """Return the request features that a replay needs, with the request's own data tags only: the
    policy has those of its team.
    """
    facts = request.body.facts
    features: dict[str, object] = {
        "max_output_tokens": facts.output_bound_tokens,
        "input_bound_tokens": bound.input_tokens,
        "capabilities": sorted(facts.capabilities),
        "features": sorted(facts.features),
        "class_source": request.data_class_source,
    }
    if facts.choices != 1:
        features["choices"] = facts.choices
    if facts.prompts != 1:
        features["prompts"] = facts.prompts
    if request.data_tags and (own := request.data_tags - choice.decision.team.data_tags):
        features["data_tags"] = sorted(own)
    if choice.candidate.deployment.hides_cache:
        features["hides_cache"] = True
    if translation is not None:
        features["sent_as"] = translation.sent_as
        if translation.dropped_fields:
            features["dropped_fields"] = list(translation.dropped_fields)
    if bound.rounds is not None:
        _note_rounds(features, facts, bound.rounds)
    # Whether or not a budget asks: a budget may be made hard later. An empty list tells an event
    # whose unknown members are listed from one of a release that recorded no names.
    unlisted = unlisted_at(choice.candidate.deployment, request.body)
    if unlisted or UNKNOWN_FIELDS in facts.features:
        features["unlisted"] = recorded(unlisted) if unlisted else []
    return features


def _note_rounds(features: dict[str, object], facts: RequestFacts, rounds: Rounds) -> None:
    """Add the tools that the provider may run, and the windows that are held for their rounds."""
    if facts.hosted:
        features["hosted"] = sorted({tool.name for tool in facts.hosted})[:MOST_HOSTED]
    features["windows"] = rounds.windows
    if rounds.left_out:
        lost = cast(list[str], features.setdefault("dropped_fields", []))
        lost += [tool.where for tool in rounds.left_out]
