"""Answers `GET /v1/models` and `GET /v1/models/{model}`: the routes of the caller's team, in the
shape of OpenAI's list or of Anthropic's.
"""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gateway.api.plain.anthropic_models import anthropic_list, anthropic_model
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.api.plain.listed_models import listed_model
from gateway.domain.policy.policy import Route
from gateway.domain.request.request import Caller
from gateway.domain.routing.decide import find_route


async def list_models(request: Request) -> Response:
    """Return the routes that the caller's team may use, as OpenAI's list of models, or Anthropic's
    for its clients.
    """
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    policy = endpoints.holder.require().policy.policy
    team = policy.teams[caller.team]
    listed = [_listed(endpoints, caller, policy.routes[name]) for name in team.routes]
    if request.state.is_anthropic:
        return JSONResponse(anthropic_list(listed))
    return JSONResponse({"object": "list", "data": listed})


async def show_model(request: Request, model: str) -> Response:
    """Return one route of the caller's team, as OpenAI's model object, or Anthropic's."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    policy = endpoints.holder.require().policy.policy
    route = find_route(policy, policy.teams[caller.team], model)
    listed = _listed(endpoints, caller, route)
    return JSONResponse(anthropic_model(listed) if request.state.is_anthropic else listed)


def _listed(endpoints: PlainEndpoints, caller: Caller, route: Route) -> dict[str, Any]:
    """Return one route of the caller's team as an object of `/v1/models`."""
    return listed_model(
        route,
        caller=caller,
        snapshot=endpoints.holder.require(),
        place=endpoints.place,
        estimates=endpoints.estimates,
    )
