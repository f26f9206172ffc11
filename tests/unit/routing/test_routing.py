"""The eligible deployments of a request, their order, and the caller's error if there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import DataClass, Route
from gateway.domain.pricing.pricing import Price
from gateway.domain.request.request import RequestFacts
from gateway.domain.routing.decide import Decision, decide, find_route, origin_of
from gateway.domain.routing.messages import OBSTACLES
from gateway.errors import (
    InvalidRequest,
    ModelNotFound,
    NotSupported,
    RequestError,
    ResidencyDenied,
    RouteNotAllowed,
    UnpricedModel,
)
from tests.factories import NOW, class_rule, deployment, facts, policy, price, team, version

TODAY = NOW.date()
EU_ONLY = {DataClass.INTERNAL: class_rule("internal", "eu")}


def decision(
    *deployments: object, wanted: RequestFacts | None = None, unpriced: tuple[str, ...] = ()
) -> Decision:
    document = policy(*deployments, classes=EU_ONLY)  # type: ignore[arg-type]
    priced = {name: price() for name in document.deployments if name not in unpriced}
    return decide(
        version(document),
        team=team(),
        route=document.routes["assistant"],
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=wanted or facts(),
        prices=priced,
    )


def refused(
    *deployments: object, wanted: RequestFacts | None = None, unpriced: tuple[str, ...] = ()
) -> RequestError:
    error = decision(*deployments, wanted=wanted, unpriced=unpriced).refusal()
    assert error is not None, "this decision was expected to refuse"
    return error


some_deployments = st.lists(
    st.builds(
        lambda region, capabilities, operations, allows: {
            "region": region,
            "capabilities": capabilities,
            "operations": operations,
            "allows": allows,
        },
        st.sampled_from(["eu", "eu-de", "us-east", "global"]),
        st.none() | st.frozensets(st.sampled_from(["tools", "vision"])),
        st.frozensets(st.sampled_from(list(Operation)), min_size=1),
        st.frozensets(st.sampled_from(["store", "engine_control"])),
    ),
    min_size=1,
    max_size=5,
)


@given(
    some_deployments,
    st.frozensets(st.sampled_from(["tools", "vision"])),
    st.frozensets(st.sampled_from(["store", "engine_control"])),
    st.sets(st.integers(0, 4)),
)
def test_the_eligible_are_those_without_an_obstacle(
    wanted: list[dict[str, object]],
    capabilities: frozenset[str],
    features: frozenset[str],
    unpriced: set[int],
) -> None:
    """Nothing else adds or drops a deployment, and an obstacle always keeps one out."""
    many = [deployment(f"d{i}", **fields) for i, fields in enumerate(wanted)]
    document = policy(*many, classes=EU_ONLY)
    route = document.routes["assistant"]
    found = decide(
        version(document),
        team=team(),
        route=route,
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=facts(capabilities=capabilities, features=features),
        prices={f"d{i}": price() for i in range(len(many)) if i not in unpriced},
    )
    eligible = [c.deployment.name for c in found.candidates if not c.obstacles]
    assert sorted(c.deployment.name for c in found.eligible) == sorted(eligible)
    assert [c.deployment.name for c in found.candidates] == list(document.deployments)
    for candidate in found.eligible:
        one = candidate.deployment
        assert one.region in ("eu", "eu-de")
        assert Operation.CHAT in one.operations
        assert features <= one.allows
        assert one.capabilities is None or capabilities <= one.capabilities
        assert candidate.price is not None
    assert (found.refusal() is None) == bool(found.eligible)


def test_priority_keeps_the_order_of_the_route() -> None:
    """The first deployment that is listed is tried first."""
    found = decision(deployment("b"), deployment("a"))
    assert [candidate.deployment.name for candidate in found.eligible] == ["b", "a"]


def test_residency_refuses_and_names_rule_and_place() -> None:
    """The caller learns which rule and which place, and that nothing was sent."""
    error = refused(deployment("gpt-us", region="us-east"))
    assert isinstance(error, ResidencyDenied)
    assert "internal→eu: gpt-us is in us-east" in error.message
    assert "Nothing was sent" in error.message
    assert (
        "tollgate policy explain --team payments --route assistant --class internal"
        in error.message
    )


def test_each_class_is_decided_by_its_own_rule() -> None:
    """The same request, raised to confidential, must not be sent to a deployment for internal
    data only.
    """
    document = policy(deployment("in-us", region="us-east"), deployment("in-eu"))
    allowed = {}
    for data_class in (DataClass.INTERNAL, DataClass.CONFIDENTIAL):
        found = decide(
            version(document),
            team=team(),
            route=document.routes["assistant"],
            data_class=data_class,
            facts=facts(),
            day=TODAY,
            prices={"in-us": price(), "in-eu": price()},
        )
        allowed[data_class] = [candidate.deployment.name for candidate in found.eligible]
        assert {found.permit(candidate, attempt=1).rules for candidate in found.eligible} == {
            (document.classes[data_class],)
        }
    assert allowed == {DataClass.INTERNAL: ["in-us", "in-eu"], DataClass.CONFIDENTIAL: ["in-eu"]}


@pytest.mark.parametrize(
    ("region", "is_self_hosted", "self_hosted_only", "message"),
    [
        (
            "us-east",
            False,
            False,
            "one is in us-east, allowed is eu (class:internal/regions). Nothing was sent",
        ),
        (
            "us-east",
            True,
            True,
            "one is in us-east, allowed is eu (class:internal/regions). Nothing was sent",
        ),
        (
            "eu-de",
            False,
            True,
            "(self-hosted only): one is not self-hosted (class:internal/self_hosted). Nothing",
        ),
    ],
)
def test_a_residency_refusal_says_which_half_of_the_rule_was_broken(
    region: str, is_self_hosted: bool, self_hosted_only: bool, message: str
) -> None:
    """`is in eu-de` alone would send an admin looking at a region that is allowed."""
    rule = class_rule("internal", "eu", self_hosted_only=self_hosted_only)
    document = policy(
        deployment(region=region, is_self_hosted=is_self_hosted), classes={DataClass.INTERNAL: rule}
    )
    found = decide(
        version(document),
        team=team(),
        route=document.routes["assistant"],
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=facts(),
        prices={"one": price()},
    )
    assert message in str(found.refusal())


def test_a_rule_for_nowhere_says_so() -> None:
    """An empty list of regions is a rule too."""
    document = policy(classes={DataClass.INTERNAL: class_rule("internal", self_hosted_only=True)})
    found = decide(
        version(document),
        team=team(),
        route=document.routes["assistant"],
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=facts(),
        prices={"one": price()},
    )
    error = found.refusal()
    assert error is not None
    assert "internal→nowhere (self-hosted only)" in error.message


@pytest.mark.parametrize(
    ("changes", "wanted", "expected", "message"),
    [
        (
            {"operations": frozenset({Operation.EMBEDDINGS})},
            {},
            NotSupported,
            "serves embeddings, not chat",
        ),
        (
            {"capabilities": frozenset()},
            {"capabilities": frozenset({"vision", "tools"})},
            InvalidRequest,
            "cannot do tools, vision",
        ),
        (
            {},
            {"features": frozenset({"store"})},
            ResidencyDenied,
            "the provider would keep the answer",
        ),
        ({}, {"features": frozenset({"engine_control"})}, InvalidRequest, "steers an engine"),
    ],
)
def test_a_refusal_gives_the_reason_and_the_next_step(
    changes: dict[str, object],
    wanted: dict[str, object],
    expected: type[RequestError],
    message: str,
) -> None:
    """Every obstacle has its own error, in words a caller can act on."""
    error = refused(deployment(**changes), wanted=facts(**wanted))
    assert type(error) is expected
    assert message in error.message


@pytest.mark.parametrize(
    ("routes", "step"),
    [
        (("assistant", "search"), "Use a route that does: search."),
        (("assistant",), "No route of your team does: ask an admin for one."),
    ],
)
def test_another_endpoint_names_the_routes_that_serve_it(
    routes: tuple[str, ...], step: str
) -> None:
    """The caller's next step is a name to write into its request."""
    document = policy(
        deployment("one", operations=frozenset({Operation.CHAT})),
        deployment("two", operations=frozenset({Operation.EMBEDDINGS})),
        routes={
            "assistant": Route(name="assistant", deployments=("one",)),
            "search": Route(name="search", deployments=("one", "two")),
        },
    )
    wanted = facts(Operation.EMBEDDINGS)
    found = decide(
        version(document),
        team=team(routes=routes),
        route=document.routes["assistant"],
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=wanted,
        prices={"one": price(), "two": price()},
    )
    error = found.refusal(wanted)
    assert isinstance(error, NotSupported)
    assert error.message.endswith(step)


def test_an_unpriced_model_is_refused() -> None:
    """A model without a price is never billed at zero."""
    error = refused(deployment(), unpriced=("one",))
    assert isinstance(error, UnpricedModel)
    assert "one has no price" in error.message


def test_a_tier_asked_of_an_unpriced_deployment_is_refused() -> None:
    """No price covers no tier either: a refusal that says so, not a fault of ours."""
    error = refused(
        deployment(), wanted=facts(features=frozenset({"service_tier=flex"})), unpriced=("one",)
    )
    assert isinstance(error, InvalidRequest)
    assert "one does not allow service_tier" in error.message


def tiered() -> Price:
    """A price with a flex tier."""
    standard = price()
    flex = tuple(replace(rate, service_tier="flex") for rate in standard.rates)
    return replace(standard, rates=(*standard.rates, *flex))


@pytest.mark.parametrize(
    ("asked", "allows", "is_eligible"),
    [
        ("service_tier=flex", frozenset(), True),
        ("service_tier=priority", frozenset(), False),
        ("service_tier", frozenset(), False),
        ("service_tier=priority", frozenset({"service_tier"}), True),
    ],
)
def test_a_service_tier_is_sent_if_its_price_is_known(
    asked: str, allows: frozenset[str], is_eligible: bool
) -> None:
    """A chargeable tier may be requested; any other tier needs permission, and its cost stays
    unknown.
    """
    document = policy(deployment(allows=allows))
    found = decide(
        version(document),
        team=team(),
        route=document.routes["assistant"],
        data_class=DataClass.INTERNAL,
        day=TODAY,
        facts=facts(features=frozenset({asked})),
        prices={"one": tiered()},
    )
    assert bool(found.eligible) == is_eligible
    assert is_eligible or "does not allow service_tier: this tier has another price" in str(
        found.refusal()
    )


def test_an_obstacle_that_the_caller_cannot_fix_comes_first() -> None:
    """With several obstacles the answer is residency's: leaving a field out would not have
    helped.
    """
    error = refused(
        deployment(region="us-east"), wanted=facts(features=frozenset({"store"})), unpriced=("one",)
    )
    assert isinstance(error, ResidencyDenied)
    assert (
        "one is in us-east, allowed is eu (class:internal/regions). Nothing was sent"
        in error.message
    )


def test_every_obstacle_that_can_arise_has_an_answer() -> None:
    """`refusal` looks a kind up in `OBSTACLES`: one that is missing there would be a 500."""
    kinds = {"residency", "ejected", "operation", "capability", "leaves_region", "field", "price"}
    kinds.add("unlisted")
    assert set(OBSTACLES) == kinds


def test_a_permit_names_its_place_and_version() -> None:
    """The transport checks it against the socket."""
    found = decision(deployment(base_url="https://eu.api.openai.com/v1"))
    permit = found.permit(found.eligible[0], attempt=2)
    assert (permit.origin, permit.attempt, permit.policy_version) == (
        "https://eu.api.openai.com:443",
        2,
        7,
    )
    assert (permit.rules, permit.gateway_region, permit.day) == (
        (EU_ONLY[DataClass.INTERNAL],),
        "unknown",
        TODAY,
    )


def test_no_permit_for_a_deployment_that_was_left_out() -> None:
    """Only the decision gives permission, and only for ranked candidates."""
    found = decision(deployment("in-eu"), deployment("in-us", region="us-east"))
    left_out = next(c for c in found.candidates if c.obstacles)
    with pytest.raises(AssertionError):
        found.permit(left_out, attempt=1)


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("http://127.0.0.1:8001/v1", "http://127.0.0.1:8001"),
        ("http://h/v1", "http://h:80"),
        ("https://H.example", "https://h.example:443"),
        ("http://[::1]:9/v1", "http://::1:9"),
    ],
)
def test_an_origin_always_has_its_port(address: str, origin: str) -> None:
    """Two spellings of one place are one origin."""
    assert origin_of(address) == origin


@pytest.mark.parametrize(
    ("model", "is_found"),
    [("assistant", True), ("gpt-4o", True), ("gpt-4o-mini", True), ("gpt-5", False)],
)
def test_an_alias_finds_its_route(model: str, is_found: bool) -> None:
    """An app keeps the model name it sends today."""
    document = policy()
    if is_found:
        assert find_route(document, team(), model).name == "assistant"
    else:
        with pytest.raises(ModelNotFound, match="Yours: assistant") as caught:
            find_route(document, team(), model)
        assert caught.value.param == "model"


def test_a_name_wins_over_an_exact_alias_over_a_pattern() -> None:
    """Adding an alias to one route never takes another route's own name away."""
    routes = {
        "one": Route(name="one", deployments=("one",), aliases=("two", "x*")),
        "two": Route(name="two", deployments=("one",), aliases=("xy",)),
    }
    document = policy(routes=routes)
    assert {m: document.route_for(m).name for m in ("one", "two", "xy", "xz")} == {  # type: ignore[union-attr]
        "one": "one",
        "two": "two",
        "xy": "two",
        "xz": "one",
    }
    assert document.route_for("nothing") is None


def test_another_teams_route_is_not_allowed() -> None:
    """A route that exists but is not the team's says so, and whom to ask."""
    with pytest.raises(RouteNotAllowed, match="Yours: none") as caught:
        find_route(policy(), team(routes=()), "assistant")
    assert caught.value.param == "model"


def test_classes_are_ordered() -> None:
    """A request may raise its class, never lower it: that needs an order."""
    assert [c.label for c in sorted(DataClass)] == [
        "public",
        "internal",
        "confidential",
        "restricted",
    ]
