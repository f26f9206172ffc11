"""The parts that attempts at one choice share are built once; nothing of a request may stay in
them.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from uuid import UUID

from msgspec.structs import asdict

from gateway.domain.budgets.budgets import Hold
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.operation import Operation
from gateway.domain.request.request import Caller, Request
from gateway.domain.routing.decide import Choice, Decision, Ranking, decide
from gateway.services.deployments.ejections import Ejections
from gateway.services.deployments.state import DeploymentHealth, Slot
from gateway.services.request.admission import AttemptGrant
from gateway.services.request.attempt import AdmittedRequest, Attempts
from gateway.services.request.begun_event import MOST_OPENINGS, EventTemplates
from gateway.services.request.meter import Meter
from tests import factories
from tests.fakes import FakeClock, FakeEjections, FakeJournal

PLAIN = factories.request()
# As unlike the plain one as a request of the same team that is decided alike can be.
OTHER = factories.request(
    factories.read(
        b'{"model":"assistant","messages":[],"stream":true,"max_tokens":77,"n":2,"service_tier":"flex"}'
    ),
    request_id=UUID(int=PLAIN.request_id.int + 1),
    caller=Caller(key_id="other", team="payments", project="checkout"),
    end_user="eu_2",
    project="checkout",
    tags=(("env", "prod"),),
    client_request_id="theirs",
    data_class_source="header",
    data_tags=frozenset({"phi"}),
)
HOLD = Hold("team/payments/month", 0, 5)


def a_slot(choice: Choice) -> Slot:
    """A slot at a choice's deployment."""
    health = DeploymentHealth()
    return health.take_slot(health.of(choice.candidate.deployment))


class Desk:
    """Begins attempts, at one time."""

    def __init__(self) -> None:
        self._clock = FakeClock()
        ejections = Ejections(FakeEjections(), self._clock, on_ejected=lambda _: None)
        self._meter = Meter(FakeJournal(), on_settled=(), ejections=ejections)

    def begun(
        self,
        event_templates: EventTemplates,
        request: Request,
        ranking: Ranking,
        *,
        number: int = 1,
        holds: tuple[Hold, ...] = (),
    ) -> UsageEvent:
        choice = ranking.choices[0]
        admitted = AdmittedRequest(
            request, ranking, (), needs_bound=False, received_s=999.0, deadline_s=1999.0
        )
        attempt = Attempts(self._meter, self._clock, event_templates).begin(
            admitted,
            choice,
            AttemptGrant(holds, ()),
            a_slot(choice),
            number=number,
            wanted_s=990.0 if number > 1 else None,
        )
        return attempt.begun


def decided(model: str = "m-1") -> Decision:
    document, price = factories.policy(factories.deployment(model=model)), factories.price()
    return decide(
        factories.version(document),
        team=document.teams["payments"],
        route=document.routes["assistant"],
        data_class=PLAIN.data_class,
        facts=PLAIN.body.facts,
        prices={"one": price},
        day=factories.NOW.date(),
    )


def degraded(decision: Decision) -> Ranking:
    """The same choice, for a caller who asked for another route."""
    asked = replace(decision, route=replace(decision.route, name="best"))
    return Ranking(
        decision=asked,
        choices=decision.as_listed.choices,
        degraded="route:assistant",
        preferred="none",
    )


def test_an_event_has_nothing_of_the_request_before_it() -> None:
    """The team, the tags or the hold of another request in an event is money charged to the wrong
    one.
    """
    desk, used, decision = Desk(), EventTemplates(), decided()
    first = desk.begun(used, OTHER, degraded(decision), number=2, holds=(HOLD,))
    second = desk.begun(used, PLAIN, decision.as_listed)
    third = desk.begun(used, OTHER, degraded(decision), number=2, holds=(HOLD,))
    assert second == desk.begun(EventTemplates(), PLAIN, decision.as_listed)
    assert (
        first
        == third
        == desk.begun(EventTemplates(), OTHER, degraded(decision), number=2, holds=(HOLD,))
    )
    differing = {name for name, value in asdict(first).items() if value != getattr(second, name)}
    assert differing == {
        "request_id",
        "attempt",
        "key_id",
        "end_user",
        "project",
        "tags",
        "route",
        "streamed",
        "held_nusd",
        "holds",
        "client_request_id",
        "features",
        "queue_s",
        "degraded",
    }


def test_each_choice_and_operation_has_its_own() -> None:
    """Another policy version's model under the same name is another one."""
    desk, event_templates = Desk(), EventTemplates()
    embeddings = factories.request(
        factories.read(b'{"model":"assistant","input":"a"}', Operation.EMBEDDINGS)
    )
    decision, later = decided(), decided("m-2")
    begun = [
        desk.begun(event_templates, PLAIN, decision.as_listed),
        desk.begun(event_templates, embeddings, decision.as_listed),
        desk.begun(event_templates, PLAIN, later.as_listed),
    ]
    assert [(one.model, one.operation) for one in begun] == [
        ("m-1", "chat"),
        ("m-1", "embeddings"),
        ("m-2", "chat"),
    ]


def test_they_do_not_fill_the_memory() -> None:
    """Each keeps its policy: a gateway that is up for months sees thousands of versions."""
    event_templates, decision = EventTemplates(), decided()
    for _ in range(2 * MOST_OPENINGS):
        event_templates.of(
            Choice(decision=decision, candidate=decision.eligible[0]), Operation.CHAT
        )
    assert (
        sum(type(one) is Choice and one.decision is decision for one in gc.get_objects())
        <= MOST_OPENINGS
    )
