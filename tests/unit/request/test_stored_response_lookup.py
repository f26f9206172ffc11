"""The search for the deployment that has a response: by team, in two places, and never a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.policy.policy import DataClass, Operation
from gateway.domain.request.request import unsent
from gateway.domain.request.stored_response import StoredResponse, stored_response_of
from gateway.domain.routing.decide import decide
from gateway.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    NotSupported,
    RouteNotAllowed,
    Unavailable,
)
from gateway.services.limits.limiter import Limiter, LimitGrant
from gateway.services.limits.own_reads import OwnReads
from gateway.services.request.stored_responses import (
    PAUSES_S,
    StoredResponses,
    none_stored,
    require_same,
)
from gateway.wire.openai.dialect import OpenAIDialect
from tests import factories
from tests.storage.factories import event

AWAY = DatabaseUnavailable("host db.internal is away")


def stored(**changes: Any) -> StoredResponse:
    """Return a response of deployment `one`, at its present host."""
    values: dict[str, Any] = {
        "response_id": "resp_1",
        "request_id": factories.request_id(),
        "team": "payments",
        "route": "assistant",
        "deployment": "one",
        "provider": "openai_compatible",
        "host": "127.0.0.1",
        "data_class": DataClass.INTERNAL,
        "data_tags": frozenset(),
        "cost_nusd": 5,
    }
    return StoredResponse(**values | changes)


@dataclass
class World:
    """The places to look in. Each look at the ledger takes the next of `ledger`."""

    ledger: list[Sequence[StoredResponse] | Exception] = field(default_factory=list)
    recent: Sequence[StoredResponse] = ()
    is_lagging: bool | Exception = False
    paused_s: list[float] = field(default_factory=list)
    limited: list[int] = field(default_factory=list)

    async def find(self, response_id: str = "resp_1", team: str = "payments") -> StoredResponse:
        async def admit(limited: Sequence[LimitedBy]) -> LimitGrant:
            self.limited.append(len(limited))
            return LimitGrant(cast(Limiter, None), [], taken_s=0, tokens=0)

        async def pause(pause_s: float) -> None:
            self.paused_s.append(pause_s)

        def look(team: str, response_id: str) -> Sequence[StoredResponse]:
            found = self.ledger.pop(0)
            if isinstance(found, Exception):
                raise found
            return [one for one in found if (one.team, one.response_id) == (team, response_id)]

        def is_lagging() -> bool:
            if isinstance(self.is_lagging, Exception):
                raise self.is_lagging
            return self.is_lagging

        reads = OwnReads(admit)
        responses = StoredResponses(
            stored=look,
            recent=lambda wanted: [one for one in self.recent if one.response_id == wanted],
            is_lagging=is_lagging,
            reads=reads,
            pause=pause,
        )
        limit = ("team:payments", factories.team().limits)
        try:
            return await responses.find(team, response_id, (limit,))
        finally:
            await reads.close()


async def test_a_late_event_is_waited_for() -> None:
    """Another worker writes it within a fraction of a second; only the first look is counted."""
    world = World([[], [], [stored()]])
    assert await world.find() == stored()
    assert (world.paused_s, world.limited) == (list(PAUSES_S), [1, 0, 0])


async def test_an_unknown_id_and_another_teams_are_the_same() -> None:
    """After the same looks."""
    words = []
    for there in ([], [stored(team="search")]):
        with pytest.raises(NotSupported) as refused:
            await World([there] * 3, recent=there).find()
        words.append(refused.value.message)
    assert words[0] == words[1]
    with pytest.raises(NotSupported) as refused:
        await none_stored("payments", "resp_1")
    assert refused.value.message == words[0]


@pytest.mark.parametrize("odd", ["", "../x", "a/b", "a b", "é", "a\n", "x" * 201])
async def test_an_id_that_is_no_id_is_not_looked_up(odd: str) -> None:
    """It could become a part of an address, and no upstream gives it."""
    world = World()
    with pytest.raises(NotSupported):
        await world.find(odd)
    assert world.limited == []


async def test_without_postgres_only_own_events_are_known() -> None:
    """Anything else is unavailable: neither unknown nor somewhere else."""
    assert await World([AWAY], recent=[stored()]).find() == stored()
    for world in (World([AWAY]), World([[]] * 3, is_lagging=AWAY)):
        with pytest.raises(Unavailable, match="cannot be read"):
            await world.find()


async def test_while_a_journal_is_late_nothing_is_unknown() -> None:
    """The event may still come."""
    with pytest.raises(Unavailable, match="is late"):
        await World([[]] * 3, is_lagging=True).find()


async def test_an_id_of_two_deployments_is_refused() -> None:
    """The same one twice is one: in the ledger and in memory."""
    with pytest.raises(InvalidRequest, match="one and two gave the id"):
        await World([[stored(), stored(deployment="two")]]).find()
    assert await World([[stored()]], recent=[stored()]).find() == stored()


def test_a_response_is_read_from_its_event() -> None:
    """With the host that the decision recorded, and the request's own tags."""
    candidates = [
        {"deployment": "other", "host": "other.example"},
        {"deployment": "one", "host": "127.0.0.1"},
    ]
    given = replace_event(
        features={"data_tags": ["phi"]}, decision={"candidates": candidates}, cost_nusd=7
    )
    assert stored_response_of(given) == stored(
        request_id=given.request_id, data_tags=frozenset({"phi"}), cost_nusd=7
    )
    unknown = stored_response_of(replace_event(decision={}, features={}))
    assert unknown is not None
    assert unknown.host is None
    assert stored_response_of(replace_event(operation="chat")) is None
    assert stored_response_of(replace_event(upstream_request_id=None)) is None


def replace_event(**changes: Any) -> Any:
    """Return an event of a response of deployment `one`."""
    values: dict[str, Any] = {
        "operation": Operation.RESPONSES.value,
        "upstream_request_id": "resp_1",
        "team": "payments",
        "route": "assistant",
        "deployment": "one",
        "provider": "openai_compatible",
        "data_class": "internal",
    }
    return event(**values | changes)


def test_another_deployment_of_the_same_name_is_not_asked() -> None:
    """Its upstream never gave that id."""
    one = factories.deployment()
    require_same(stored(), one)
    require_same(stored(host=None), one)
    for other in (
        replace(one, provider="openai"),
        replace(one, base_url="http://elsewhere.example/v1"),
        replace(one, name="two"),
    ):
        with pytest.raises(RouteNotAllowed, match="another one under that name"):
            require_same(stored(), other)


def test_a_decision_for_one_deployment_has_no_other() -> None:
    """Failover has nowhere else to go; an obstacle of that one refuses."""
    first, second = factories.deployment("first"), factories.deployment("second", region="us-east")
    known = factories.snapshot(document=factories.policy(first, second))
    decision = decide(
        known.policy,
        team=factories.team(),
        route=known.policy.policy.routes["assistant"],
        data_class=DataClass.INTERNAL,
        facts=unsent(Operation.RESPONSES, "assistant"),
        prices=known.prices,
        day=factories.NOW.date(),
    )
    only = decision.only("first")
    assert only is not None
    assert [one.deployment.name for one in only.candidates] == ["first"]
    assert [one.candidate.deployment.name for one in only.as_listed.choices] == ["first"]
    assert decision.only("third") is None


@pytest.mark.parametrize(
    ("member", "value", "param"),
    [
        ("background", "true", "background"),
        ("background", '"yes"', "background"),
        ("previous_response_id", "5", "previous_response_id"),
        ("previous_response_id", "[]", "previous_response_id"),
    ],
)
def test_a_member_that_cannot_be_served_is_named(member: str, value: str, param: str) -> None:
    """Before anything else is decided."""
    body = f'{{"model": "m", "input": "x", "{member}": {value}}}'.encode()
    with pytest.raises(InvalidRequest) as refused:
        OpenAIDialect().read_request(Operation.RESPONSES, body)
    assert refused.value.param == param


def test_the_previous_response_is_a_fact() -> None:
    """Of responses alone: a chat has no such member."""
    dialect, member = OpenAIDialect(), '"previous_response_id": "resp_1"'
    body = f'{{"model": "m", "input": "x", "background": false, {member}}}'.encode()
    assert dialect.read_request(Operation.RESPONSES, body).facts.previous_response == "resp_1"
    null = b'{"model": "m", "previous_response_id": null}'
    assert dialect.read_request(Operation.RESPONSES, null).facts.previous_response is None
    chat = f'{{"model": "m", "messages": [], {member}}}'.encode()
    assert dialect.read_request(Operation.CHAT, chat).facts.previous_response is None
