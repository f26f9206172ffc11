"""Answers without a key: name and version at `/`, health and readiness."""

from __future__ import annotations

import structlog
from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gateway import __version__
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.domain.checks import Check, Status

log = structlog.get_logger()

DOCS_URL = "https://tollgate.example/docs"  # as in pyproject.toml


async def show_name(request: Request) -> Response:
    """Return name, version and documentation of this server, without any state: clients and probes
    ask before they have a key.
    """
    return JSONResponse({"name": "tollgate", "version": __version__, "docs": DOCS_URL})


async def show_health(request: Request) -> Response:
    return JSONResponse({"status": "alive", "version": __version__})


async def show_readiness(request: Request) -> Response:
    """Return 200 if this replica may take traffic, else 503; both list the readiness checks."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    try:
        checks = endpoints.checks()
    except (
        Exception
    ) as broken:  # the caller of readiness must see the failure, and is not a model's caller
        log.exception("checks_failed")
        checks = (Check("checks", Status.FAIL, f"failed: {broken!r}", "look at the gateway's log"),)
    warnings = [
        f"{check.name}: {check.finding}" for check in checks if check.status is not Status.OK
    ]
    details = {"warnings": warnings, "checks": [_check_json(check) for check in checks]}
    problems = endpoints.not_ready()
    if problems:
        return JSONResponse(
            {"status": "not ready", "problems": problems, **details}, 503, {"retry-after": "2"}
        )
    version = endpoints.holder.require().policy.version
    return JSONResponse({"status": "ready", "policy_version": version, **details})


def _check_json(check: Check) -> dict[str, str]:
    """Return one readiness check as a JSON object."""
    return {
        "check": check.name,
        "status": check.status,
        "finding": check.finding,
        "what_to_do": check.remedy,
    }
