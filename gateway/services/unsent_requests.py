"""Deciding and ordering a request that is not sent: for explanations, and for the cases a policy is tested with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from gateway.domain.expectation import Live
from gateway.domain.objectives import Lineup, assumed, lineup_of, rank
from gateway.domain.policy import DataClass, Operation, Policy, PolicyVersion
from gateway.domain.pricing import Price
from gateway.domain.replay import Place
from gateway.domain.request import Ask
from gateway.domain.routing import NONE_EJECTED, Decision, Ranking, decide, find_route
from gateway.errors import BadUsage, NothingFound
from gateway.services.outlook import Outlook
from gateway.services.policies import require_team

PROMPT_TOKENS = 1000  # where nobody says how long the prompt is


def decision_for(
    version: PolicyVersion, ask: Ask, *, team: str, prices: Mapping[str, Price], place: Place,
    data_class: str | None = None, data_tags: frozenset[str] = frozenset(),
    ejected: Mapping[str, str] = NONE_EJECTED, is_degraded_to: bool = False,
) -> Decision:  # fmt: skip
    """Decide for a request that is not sent; its model names the route.

    A route that is degraded to need not be one of the team's. Raises `NothingFound`, `BadUsage` or the caller's own
    error.
    """
    policy = version.policy
    asking = require_team(version, team)
    wanted = _raised(policy, asking.data_class, data_class)
    return decide(
        version,
        team=asking,
        route=policy.routes[ask.model] if is_degraded_to else find_route(policy, asking, ask.model),
        data_class=wanted,
        data_tags=data_tags,
        ask=ask,
        prices=prices,
        gateway_region=place.gateway_region,
        day=place.day,
        ejected=ejected,
    )


def imagined(
    decision: Decision, ask: Ask, *, session: str, degrade: Callable[[], Decision] | None = None,
    outlook: Outlook | None = None, tokens: int | None = None, answer_tokens: int = 0,
) -> Ranking | None:  # fmt: skip
    """The order of a request that is not sent, None where it is refused.

    From what `outlook` has seen, without one from what the policy declares. `tokens` and `answer_tokens`, where they
    are given, are taken as they are.
    """
    if not decision.eligible:
        return None
    operation = ask.operation

    def look(of: Decision) -> tuple[Lineup, Live]:
        lineup, live = _assumed(of, operation) if outlook is None else outlook.look(of, operation)
        return lineup, _as_said(live, exact=tokens is not None, answer_tokens=answer_tokens)

    def degraded() -> tuple[Lineup, Live] | None:
        other = None if degrade is None else degrade()
        return None if other is None or not other.eligible else look(other)

    lineup, live = look(decision)
    sized = ask if tokens is None else replace(ask, body_bytes=tokens)
    return rank(lineup, sized, live, session=session, degrade=degraded)


def _raised(policy: Policy, own: DataClass, asked: str | None) -> DataClass:
    """The class a request would have. It may raise the team's class, never lower it."""
    if asked is None:
        return own
    if asked.upper() not in DataClass.__members__ or DataClass[asked.upper()] not in policy.classes:
        declared = [data_class.label for data_class in sorted(policy.classes)]
        raise NothingFound(f"There is no data class '{asked}' in the policy. Declared: {', '.join(declared)}.")
    wanted = DataClass[asked.upper()]
    if wanted < own:
        raise BadUsage(f"A request may raise its class, never lower it: the team's class is {own.label}, not {asked}.")
    return wanted


def _assumed(decision: Decision, operation: Operation) -> tuple[Lineup, Live]:
    lineup = lineup_of(decision, operation)
    return lineup, assumed(lineup)


def _as_said(live: Live, *, exact: bool, answer_tokens: int) -> Live:
    """The same with sizes that were said: then a size counts tokens, not bytes."""
    prospects = [replace(one, tokens_per_byte=1.0) for one in live.prospects] if exact else live.prospects
    return replace(
        live, prospects=prospects, output_tokens=float(answer_tokens) if answer_tokens else live.output_tokens
    )
