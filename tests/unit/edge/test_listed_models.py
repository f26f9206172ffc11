"""`/v1/models` states the figures of the deployment that a team's plain request would get now, and
where all of a route's deployments are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gateway.api.plain.listed_models import listed_model
from gateway.domain.policy.policy import DataClass, Deployment, Operation, Route
from gateway.domain.pricing.pricing import Price
from gateway.domain.request.request import Caller
from gateway.domain.routing.replay import Place
from gateway.services.deployments.estimates import Estimates
from tests import factories
from tests.fakes import FakeClock

CALLER = Caller(key_id="key", team="payments", project=None)


def listed(
    *deployments: Deployment, prices: dict[str, Price] | None = None, **changes: Any
) -> dict[str, Any]:
    """Return the model of a route over these deployments, for a team with confidential data."""
    team = factories.team(data_class=DataClass.CONFIDENTIAL)
    document = factories.policy(*deployments, teams={"payments": team})
    route: Route = replace(document.routes["assistant"], **changes)
    document = replace(document, routes={"assistant": route})
    snapshot = factories.snapshot(document=document)
    if prices is not None:
        snapshot = replace(snapshot, prices=prices)
    return listed_model(
        route,
        caller=CALLER,
        snapshot=snapshot,
        place=Place(gateway_region="unknown", day=factories.NOW.date()),
        estimates=Estimates(FakeClock()),
    )


def test_all_members_of_the_first_deployment() -> None:
    """The contract's members, beside those of OpenAI and the older ones."""
    first = factories.deployment(
        "first",
        context_window=32_768,
        max_output_tokens=4096,
        capabilities=frozenset({"vision", "tools"}),
    )
    second = factories.deployment("second", region="eu-fr", provider="vllm")
    prices = {"first": factories.price("0.80", "3.20", cached="0.20"), "second": factories.price()}
    assert listed(first, second, prices=prices, aliases=("gpt-4o",)) == {
        "id": "assistant",
        "object": "model",
        "created": 0,
        "owned_by": "tollgate",
        "aliases": ["gpt-4o"],
        "context_length": 32_768,
        "max_output_tokens": 4096,
        "capabilities": ["tools", "vision"],
        "regions": ["eu-de", "eu-fr"],
        "providers": ["openai_compatible", "vllm"],
        "pricing": {
            "input_usd_per_mtok": "0.8",
            "cached_input_usd_per_mtok": "0.2",
            "output_usd_per_mtok": "3.2",
        },
        "deployments": [
            {"name": "first", "provider": "openai_compatible", "region": "eu-de"},
            {"name": "second", "provider": "vllm", "region": "eu-fr"},
        ],
    }


def test_a_deployment_that_residency_denies_is_not_first() -> None:
    """Its price and window are not those that the team gets."""
    far = factories.deployment("far", region="us-east", context_window=1)
    near = factories.deployment("near", context_window=2)
    assert listed(far, near)["context_length"] == 2
    assert listed(far)["context_length"] == 1, "there is no other to describe"


def test_the_objective_decides_which_is_first() -> None:
    """Not the order of the document."""
    dear, cheap = factories.deployment("dear"), factories.deployment("cheap")
    prices = {"dear": factories.price("9", "9"), "cheap": factories.price("1", "1")}
    found = listed(dear, cheap, prices=prices, objective="cheapest")
    assert found["pricing"]["input_usd_per_mtok"] == "1"
    assert listed(dear, cheap, prices=prices)["pricing"]["input_usd_per_mtok"] == "9"


def test_the_routes_own_maximum_counts_too() -> None:
    """The smaller one is what is sent."""
    one = factories.deployment(max_output_tokens=100)
    assert listed(one, max_output_tokens=50)["max_output_tokens"] == 50
    assert listed(one, max_output_tokens=500)["max_output_tokens"] == 100
    assert listed(factories.deployment())["max_output_tokens"] is None


def test_cached_input_without_a_rate_has_the_rate_of_input() -> None:
    """That is what is charged. A kind without any rate is unknown, never 0."""
    prices = {"one": factories.price("2", None)}
    one = factories.deployment(operations=frozenset({Operation.EMBEDDINGS}))
    assert listed(one, prices=prices)["pricing"] == {
        "input_usd_per_mtok": "2",
        "cached_input_usd_per_mtok": "2",
        "output_usd_per_mtok": None,
    }
    assert listed(one, prices={})["pricing"] is None
