"""Decides and ranks a request that is described but not sent, for explanations and for a policy's
test cases; it meters nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Policy, PolicyVersion
from gateway.domain.pricing.pricing import Price
from gateway.domain.request.request import RequestFacts
from gateway.domain.routing.decide import NONE_EJECTED, Decision, Ranking, decide, find_route
from gateway.domain.routing.objectives import Candidates, assumed, candidates_of, rank
from gateway.domain.routing.predictions import Conditions
from gateway.domain.routing.replay import Place
from gateway.errors import BadUsage, NothingFound
from gateway.services.deployments.estimates import Estimates
from gateway.services.policy.apply import require_team

PROMPT_TOKENS = 1000  # if the length of the prompt is not given


def decision_for(
    version: PolicyVersion,
    facts: RequestFacts,
    *,
    team: str,
    prices: Mapping[str, Price],
    place: Place,
    data_class: str | None = None,
    data_tags: frozenset[str] = frozenset(),
    ejected: Mapping[str, str] = NONE_EJECTED,
    unlisted: frozenset[str] = frozenset(),
    is_degraded_to: bool = False,
) -> Decision:
    """Decide which deployments may serve a request that is not sent; its model names the route.

    A route that is degraded to need not belong to the team. Raises `NothingFound`, `BadUsage` or
    the caller's own error.
    """
    policy = version.policy
    asking = require_team(version, team)
    wanted = _raised(policy, asking.data_class, data_class)
    return decide(
        version,
        team=asking,
        route=policy.routes[facts.model]
        if is_degraded_to
        else find_route(policy, asking, facts.model),
        data_class=wanted,
        data_tags=data_tags,
        facts=facts,
        prices=prices,
        gateway_region=place.gateway_region,
        day=place.day,
        ejected=ejected,
        unlisted=unlisted,
    )


def imagined(
    decision: Decision,
    facts: RequestFacts,
    *,
    session: str,
    degrade: Callable[[], Decision] | None = None,
    estimates: Estimates | None = None,
    tokens: int | None = None,
    answer_tokens: int = 0,
) -> Ranking | None:
    """Return the order in which a request that is not sent would try its deployments, None if it is
    refused.

    Uses the observations in `estimates`, or the policy's declarations without it. Given `tokens`
    and `answer_tokens` are used unchanged.
    """
    if not decision.eligible:
        return None
    operation = facts.operation

    def look(of: Decision) -> tuple[Candidates, Conditions]:
        """Return a decision's candidates with the conditions of this explanation: observed or
        declared, and stated sizes.
        """
        candidates, live = (
            _assumed(of, operation)
            if estimates is None
            else estimates.current_conditions(of, operation)
        )
        return candidates, _with_stated_sizes(
            live, is_in_tokens=tokens is not None, answer_tokens=answer_tokens
        )

    def degraded() -> tuple[Candidates, Conditions] | None:
        """Decide about the route that this one degrades to; None if there is none or it has no
        eligible deployment.
        """
        other = None if degrade is None else degrade()
        return None if other is None or not other.eligible else look(other)

    candidates, live = look(decision)
    sized = facts if tokens is None else replace(facts, body_bytes=tokens)
    return rank(candidates, sized, live, session=session, degrade=degraded)


def _raised(policy: Policy, own: DataClass, asked: str | None) -> DataClass:
    """Return a request's data class: the team's `own`, or a higher one that it asks for. Raises
    `BadUsage` or `NothingFound`.
    """
    if asked is None:
        return own
    if asked.upper() not in DataClass.__members__ or DataClass[asked.upper()] not in policy.classes:
        declared = [data_class.label for data_class in sorted(policy.classes)]
        raise NothingFound(
            f"There is no data class '{asked}' in the policy. Declared: {', '.join(declared)}."
        )
    wanted = DataClass[asked.upper()]
    if wanted < own:
        raise BadUsage(
            f"A request may raise its class, never lower it: the team's class is {own.label}, "
            f"not {asked}."
        )
    return wanted


def _assumed(decision: Decision, operation: Operation) -> tuple[Candidates, Conditions]:
    """Return a decision's candidates with the conditions that the policy declares, without any
    observation.
    """
    candidates = candidates_of(decision, operation)
    return candidates, assumed(candidates)


def _with_stated_sizes(live: Conditions, *, is_in_tokens: bool, answer_tokens: int) -> Conditions:
    """Return the conditions for sizes that the caller states: with `is_in_tokens` the prompt's size
    counts tokens, not bytes; a positive `answer_tokens` replaces the estimate.
    """
    predictions = (
        [replace(one, tokens_per_byte=1.0) for one in live.predictions]
        if is_in_tokens
        else live.predictions
    )
    return replace(
        live,
        predictions=predictions,
        output_tokens=float(answer_tokens) if answer_tokens else live.output_tokens,
    )
