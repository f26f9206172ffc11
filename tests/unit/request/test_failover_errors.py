"""The error of a request that no deployment takes."""

from __future__ import annotations

import pytest

from gateway.domain.routing.decide import Choice, decide
from gateway.errors import BudgetExhausted, RateLimited, RequestError, Untranslatable
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth
from gateway.services.request.failover import Failover
from tests import factories
from tests.fakes import FakeClock, FakeEjections


def failover() -> Failover:
    """Return the way of a request with two candidates."""
    names = ("one", "two")
    document = factories.policy(*(factories.deployment(name) for name in names))
    request = factories.request()
    decision = decide(
        factories.version(document),
        team=document.teams["payments"],
        route=document.routes["assistant"],
        data_class=request.data_class,
        facts=request.body.facts,
        prices=dict.fromkeys(names, factories.price()),
        day=factories.NOW.date(),
    )
    assert len(decision.eligible) == 2
    return Failover(
        choices=tuple(Choice(decision=decision, candidate=one) for one in decision.eligible),
        team="payments",
        deadline_s=9999.0,
        max_attempts=3,
        health=DeploymentHealth(),
        ejections=Ejections(FakeEjections(), FakeClock(), on_ejected=lambda _: None),
        draw=lambda: 0.0,
    )


FULL = RateLimited("The deployment's own limit is used up.", retry_after_s=3)
UNCARRIED = Untranslatable("The field has no place there.", param="seed")
OTHER = Untranslatable("Another field has no place there.", param="n")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(UNCARRIED, FULL, FULL), (FULL, UNCARRIED, FULL), (UNCARRIED, OTHER, UNCARRIED)],
)
def test_a_deployment_that_is_only_full_now_decides_the_answer(
    first: RequestError, second: RequestError, expected: RequestError
) -> None:
    """A 400 for a field that the other deployment carries would keep the caller from coming
    back.
    """
    way = failover()
    for choice, error in zip(way.choices, (first, second), strict=True):
        way.note_full(choice, error)
    assert way.error() is expected


def test_a_field_without_a_place_hides_no_used_up_budget() -> None:
    """The second deployment carries it, and only money is missing there."""
    way = failover()
    way.note_full(way.choices[0], UNCARRIED)
    broke = BudgetExhausted("The budget is used up.")
    assert way.first_reason(broke) is broke
    way.failure = FULL
    assert way.first_reason(broke) is FULL
