"""Answers `GET /v1/usage/me`: the spend, budgets and limits of the calling key and its team."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from fastapi.responses import Response

from gateway.api.plain.endpoints import PlainEndpoints
from gateway.domain.budgets.limits import Limits
from gateway.reports.json_and_csv import usage_me_to_json
from gateway.services.limits.limiter import LimitStatus, LimitUsage


async def show_usage(request: Request) -> Response:
    """Return the spend, budgets and limits of the calling key and its team."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    now = endpoints.clock.now()
    snapshot = endpoints.holder.require()
    team = snapshot.policy.policy.teams[caller.team]
    terms = snapshot.terms_of(team, project=caller.project, key_id=caller.key_id, day=now.date())
    usage = await endpoints.read(
        caller,
        lambda: endpoints.reports.usage_me(
            team=caller.team, key_id=caller.key_id, now=now, accounts=terms.accounts
        ),
    )
    standings = endpoints.standing(terms.limits)
    limits = [
        _limit_json(one, limits) for one, (_, limits) in zip(standings, terms.limits, strict=True)
    ]
    return Response(usage_me_to_json(usage, limits=limits), media_type="application/json")


def _limit_json(standing: LimitStatus, limits: Limits) -> dict[str, Any]:
    """Return one limit with its last known use, for `/v1/usage/me`.

    The concurrency of other workers is not included.
    """
    return {
        "limit": standing.limit_id,
        "requests_per_minute": _limit_usage_json(standing.requests),
        "tokens_per_minute": _limit_usage_json(standing.tokens),
        "concurrent": None if limits.concurrent is None else {"limit": limits.concurrent},
    }


def _limit_usage_json(figures: LimitUsage | None) -> dict[str, Any] | None:
    """Return one measure's limit, remainder and reset time for `/v1/usage/me`; None without a
    limit.
    """
    if figures is None:
        return None
    return {
        "limit": figures.limit,
        "remaining": max(figures.remaining, 0),
        "reset_s": figures.reset_s,
    }
