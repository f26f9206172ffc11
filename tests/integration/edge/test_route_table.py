"""Each route is authenticated, metered if it can cost money, and documented: in the reference, and
in the OpenAPI description.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.routing import Route

from gateway.api.app import build_app
from gateway.api.edge import DESCRIPTION
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.api.routes import ENDPOINTS, Endpoint
from gateway.domain.policy.policy import Operation
from tests import plain_http
from tests.gateway_process import Gateway
from tests.integration.edge.test_edge import check_error

REFERENCE = (Path(__file__).parents[3] / "docs/reference/http.md").read_text(encoding="utf-8")
ROWS = {
    (method, path): (key, metered, purpose)
    for method, path, key, metered, purpose in re.findall(
        r"^\| `([A-Z]+) (/\S*)` \| (.+?) \| (yes|no) \| (.+?) \|$", REFERENCE, re.MULTILINE
    )
}
# Only these answer without a key; the table and the reference give the reason.
WITHOUT_KEY = {("GET", "/"), ("HEAD", "/"), ("GET", "/healthz"), ("GET", "/readyz")}
# Only these reach a deployment without an attempt in the ledger: what they ask for is paid already.
ASKS_FOR_NOTHING_NEW = {
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
}
# Never billed, by any provider that offers it.
COUNTS_ALONE = {("POST", "/v1/messages/count_tokens")}
NEVER_SENT = {
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/requests/{request_id}"),
    ("GET", "/v1/usage/me"),
    ("POST", "/v1/route/explain"),
}


def name(endpoint: Endpoint) -> tuple[str, str]:
    """Return an endpoint's method and path."""
    return endpoint.method, endpoint.path


def asked(endpoint: Endpoint) -> str:
    """Return a path that leads to an endpoint."""
    return re.sub(r"\{\w+\}", "x", endpoint.path)


@pytest.fixture(scope="module")
def description(gateway: Gateway) -> Mapping[str, Any]:
    """Return the OpenAPI description that the gateway serves."""
    return dict(plain_http.get(f"http://127.0.0.1:{gateway.port}/openapi.json").json())


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_each_route_needs_a_key_or_says_why_not(gateway: Gateway, endpoint: Endpoint) -> None:
    """Asked over a socket, without a key and with a wrong one."""
    assert bool(endpoint.open_because) == (name(endpoint) in WITHOUT_KEY)
    url = f"http://127.0.0.1:{gateway.port}{asked(endpoint)}"
    for headers in ({}, {"authorization": "Bearer tg_wrong"}):
        answer = plain_http.request(endpoint.method, url, headers=headers, timeout=30)
        if endpoint.open_because:
            assert answer.status_code == 200
        elif endpoint.path.startswith("/v1/messages"):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (401, "invalid_api_key")
            assert error["type"] == "authentication_error"
        else:
            check_error(answer, 401, "invalid_api_key")


def test_fastapi_has_no_route_of_its_own() -> None:
    """Beside its description, which has no state and needs no key."""
    app = build_app(cast(PlainEndpoints, None))
    routes = {
        (method, route.path_format)  # without Starlette's forms, as in `{model:path}`
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    plain = {name(one) for one in ENDPOINTS if not one.is_metered}
    assert routes == plain | {("GET", DESCRIPTION), ("HEAD", DESCRIPTION)}


def test_each_route_that_can_cost_money_is_metered() -> None:
    """A new one must be metered, or listed here with the reason why it costs nothing."""
    unmetered = {name(one) for one in ENDPOINTS if not one.is_metered}
    assert unmetered == WITHOUT_KEY | NEVER_SENT | ASKS_FOR_NOTHING_NEW | COUNTS_ALONE
    assert {one.operation for one in ENDPOINTS if one.is_metered} == set(Operation)


def test_each_route_is_in_the_reference() -> None:
    """With the same facts, and no other route."""
    assert ROWS.keys() == {name(one) for one in ENDPOINTS}
    for endpoint in ENDPOINTS:
        key, metered, purpose = ROWS[name(endpoint)]
        assert metered == ("yes" if endpoint.is_metered else "no")
        assert key.startswith("no: " if endpoint.open_because else "yes")
        assert purpose


def test_each_route_is_in_the_description(description: Mapping[str, Any]) -> None:
    """With its body, its key and its errors."""
    found = {
        (method.upper(), path)
        for path, operations in description["paths"].items()
        for method in operations
    }
    assert found == {name(one) for one in ENDPOINTS}
    for endpoint in ENDPOINTS:
        described = description["paths"][endpoint.path][endpoint.method.lower()]
        assert described["summary"] == endpoint.summary
        assert described["security"] == ([] if endpoint.open_because else [{"key": []}])
        assert "422" not in described["responses"]
        assert "error" in str(described["responses"]["default"])
        if endpoint.is_metered:
            body = described["requestBody"]["content"]["application/json"]["schema"]
            assert "model" in body["required"]
            assert len(body["properties"]) > 3, "the members that are read are described"
