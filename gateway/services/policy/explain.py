"""Builds the explanation of a routing decision in words: each candidate's rank or reason to lose,
its cost, and the source of the estimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gateway.domain.money import usd_from_nusd
from gateway.domain.pricing.pricing import Price, cost_nusd, lines
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import RequestFacts
from gateway.domain.routing import prediction_messages
from gateway.domain.routing.decide import Candidate, Decision, Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateVerdict:
    """The verdict on one candidate. `rank` is None if it lost; `reason` explains why.

    `expected` is the part that an event would record (`Expected.record`), `arithmetic` the same in
    words. `route` is set if the candidate belongs to the route that the request degrades to.
    """

    deployment: str
    region: str
    rank: int | None
    reason: str
    price: Price | None = None
    cost_usd: Decimal | None = None
    route: str | None = None
    expected: Mapping[str, object] | None = None
    arithmetic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A routing decision in words, for one team, route and data class.

    `degraded` explains a departure from the objective's choice; `basis` names the source of the
    estimates.
    """

    policy_version: int
    team: str
    route: str
    data_class: str
    outcome: str
    is_refused: bool
    verdicts: tuple[CandidateVerdict, ...]
    degraded: str | None = None
    basis: str = ""

    def record(self) -> dict[str, object]:
        """Return everything except the candidates as a record; the command line and HTTP show those
        in different forms.
        """
        record: dict[str, object] = {
            "policy_version": self.policy_version,
            "team": self.team,
            "route": self.route,
            "data_class": self.data_class,
            "outcome": self.outcome,
            "is_refused": self.is_refused,
        }
        if self.basis:
            record |= {"degraded": self.degraded, "basis": self.basis}
        return record


def explain(
    decision: Decision,
    *,
    usage: TokenUsage | None = None,
    ranking: Ranking | None = None,
    basis: str = "",
    facts: RequestFacts | None = None,
) -> Explanation:
    """Return every candidate of a decision with its rank or its reason to lose; with `usage`, also
    its cost there.

    `ranking` is a request's order, with the prediction for each candidate. Without it the
    candidates stand in the listed order. `facts` describes the request itself, if there is one.
    """
    refusal = decision.refusal(facts)
    ranked = decision.as_listed if ranking is None else ranking
    first = ranked.choices[0].candidate.deployment.name if ranked.choices else ""
    record = ranked.record
    why = prediction_messages.degraded(record)
    return Explanation(
        policy_version=decision.policy.version,
        team=decision.team.name,
        route=decision.route.name,
        data_class=decision.class_label,
        outcome=refusal.message if refusal else f"Goes to {first}{f' ({why})' if why else ''}.",
        is_refused=refusal is not None,
        verdicts=tuple(_verdicts(decision, ranked, usage)),
        degraded=why,
        basis=basis,
    )


def basis(*, is_live: bool, tokens: int | None, answer_tokens: int) -> str:
    """Return the source of an explanation's estimates, in words."""
    prompt = "the request's own prompt" if tokens is None else f"a prompt of {tokens:,} tokens"
    answer = f" and an answer of {answer_tokens:,}" if answer_tokens else ""
    known = (
        "this gateway worker's recent observations"
        if is_live
        else "the policy's declarations: this command cannot see the running gateway, POST "
        "/v1/route/explain can"
    )
    return f"For {prompt}{answer}, from {known}."


def _verdicts(
    decision: Decision, ranking: Ranking, usage: TokenUsage | None
) -> Iterator[CandidateVerdict]:
    """Yield the route's own candidates in its order, then those of the route that it degrades
    to.
    """
    ranks = {choice.candidate.deployment.name: rank for rank, choice in enumerate(ranking.choices)}
    for candidate in decision.candidates:
        yield _verdict(
            candidate, decision, ranking, rank=ranks.get(candidate.deployment.name), usage=usage
        )
    for rank, choice in enumerate(ranking.choices):
        if choice.decision is not decision:
            yield _verdict(choice.candidate, choice.decision, ranking, rank=rank, usage=usage)


def _verdict(
    candidate: Candidate,
    decision: Decision,
    ranking: Ranking,
    *,
    rank: int | None,
    usage: TokenUsage | None,
) -> CandidateVerdict:
    """Return one candidate's verdict: rank, reason in words, expected latency, price and cost."""
    deployment = candidate.deployment
    expected = ranking.expected[rank].record() if rank is not None and ranking.expected else None
    missed = () if expected is None else prediction_messages.missed(expected, _bounds(decision))
    other = decision.route.name if decision is not ranking.decision else None
    return CandidateVerdict(
        deployment=deployment.name,
        region=deployment.region,
        rank=None if rank is None else rank + 1,
        reason="; ".join(
            (
                _reason(candidate.obstacles) or _rank_text(rank, decision),
                *missed,
                *_shadow_texts(candidate),
            )
        ),
        price=candidate.price,
        cost_usd=_cost_usd(candidate.price, usage, expected),
        route=other,
        expected=expected,
        arithmetic=""
        if expected is None
        else prediction_messages.arithmetic(expected, candidate.price),
    )


def _bounds(decision: Decision) -> Mapping[str, Any]:
    """Return the bounds of a decision's route, on latency and cost, that a candidate may miss."""
    return {"ttft_p95_s": decision.ttft_bound_s, "max_cost_nusd": decision.route.max_cost_nusd}


def _reason(obstacles: Sequence[Sequence[str]]) -> str:
    """Return the obstacles of a candidate in words; empty if it is eligible."""
    return "; ".join(detail for _, detail in obstacles)


def _shadow_texts(candidate: Candidate) -> Iterator[str]:
    """Return in words the rules in shadow mode that would have excluded a candidate; they exclude
    nothing.
    """
    return (f"in shadow: {denial.why}" for denial in candidate.shadow)


def _rank_text(rank: int | None, decision: Decision) -> str:
    """Return an eligible candidate's place in the order, in words."""
    objective = decision.route.objective
    return f"first by {objective}" if rank == 0 else f"eligible, but after others by {objective}"


def _cost_usd(
    price: Price | None, usage: TokenUsage | None, expected: Mapping[str, Any] | None
) -> Decimal | None:
    """Return the cost of the given tokens; without an answer length, the predicted cost with the
    answer.
    """
    if price is None or usage is None:
        return None
    if not usage.output_tokens and expected is not None:
        return usd_from_nusd(expected["cost_nusd"])
    try:
        return usd_from_nusd(cost_nusd(lines(usage, price)))
    except ValueError:  # this price does not cover a kind of these tokens
        return None
