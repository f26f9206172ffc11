"""Decides test cases under a policy version and compares each with its expected deployments or
denial, for `tollgate policy test`; it sends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.pricing.pricing import Price
from gateway.domain.request.request import unsent
from gateway.domain.routing.replay import Place
from gateway.errors import OperatorError, RequestError
from gateway.services.policy.unsent_requests import PROMPT_TOKENS, decision_for, imagined
from gateway.wire.policy.case_files import DENIALS, Case

_WORDS = {code: word for word, code in DENIALS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one test case of a policy.

    `expected` and `got` are deployments in order, or `denied: …`; `why` is the explanation.
    """

    case: Case
    expected: str
    got: str
    why: str

    @property
    def is_met(self) -> bool:
        """Return True if the policy's decision is the expected one."""
        return self.expected == self.got


def run_cases(
    cases: Iterable[Case], version: PolicyVersion, *, prices: Mapping[str, Price], place: Place
) -> tuple[Result, ...]:
    """Decide every test case under a policy; no request is sent."""
    return tuple(_result(case, version, prices, place) for case in cases)


def _result(
    case: Case, version: PolicyVersion, prices: Mapping[str, Price], place: Place
) -> Result:
    """Decide one test case and return it with the expected and the actual decision."""
    got, why = _decided(case, version, prices, place)
    expected = ", ".join(case.expect) if case.denied is None else f"denied: {case.denied}"
    return Result(case=case, expected=expected, got=got, why=why)


def _decided(
    case: Case, version: PolicyVersion, prices: Mapping[str, Price], place: Place
) -> tuple[str, str]:
    """Return the deployments that a case's request would try in order, or its denial, with the
    explanation.
    """
    try:
        decide_for = partial(
            decision_for,
            version,
            team=case.team,
            prices=prices,
            place=place,
            data_class=case.data_class,
            data_tags=case.data_tags,
        )
        asked = unsent(case.operation, case.route, capabilities=case.needs)
        decision = decide_for(asked)
        other = decision.route.degrade_to
        degrade = (
            None
            if other is None
            else lambda: decide_for(replace(asked, model=other), is_degraded_to=True)
        )
        if refused := decision.refusal():
            raise refused
    except RequestError as error:
        return f"denied: {_WORDS.get(error.code, error.code)}", error.message
    except OperatorError as error:  # the case names a team or class that the policy lacks
        return "not decided", error.message
    ranking = imagined(decision, asked, session=case.team, tokens=PROMPT_TOKENS, degrade=degrade)
    choices = () if ranking is None else ranking.choices
    return ", ".join(choice.candidate.deployment.name for choice in choices), ""
