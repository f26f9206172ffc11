"""Builds the FastAPI application: every endpoint except forwarding, and the answers to its errors.

On FastAPI, because this path is not hot. The handlers are in `gateway/api/plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from gateway import __version__
from gateway.api.errors import error_answer
from gateway.api.http.caller_exchange import ClientGone
from gateway.api.plain.count_tokens import count_tokens
from gateway.api.plain.description import complete
from gateway.api.plain.endpoints import PlainEndpoints
from gateway.api.plain.models import list_models, show_model
from gateway.api.plain.own_usage import show_usage
from gateway.api.plain.probes import show_health, show_name, show_readiness
from gateway.api.plain.receipts import show_receipt
from gateway.api.plain.route_explain import explain_route
from gateway.api.plain.stored_responses import ask_for_stored_response, cancel_stored_response
from gateway.api.routes import ANTHROPIC, COUNT_TOKENS, DEFAULT_DIALECT, ENDPOINTS, OFFERED
from gateway.errors import (
    DatabaseUnavailable,
    NotSupported,
    RequestError,
    Unavailable,
    UpstreamError,
)

HANDLERS: Mapping[str, Callable[..., Any]] = {
    COUNT_TOKENS: count_tokens,
    "/v1/models": list_models,
    "/v1/models/{model}": show_model,
    "/v1/responses/{response_id}": ask_for_stored_response,
    "/v1/responses/{response_id}/cancel": cancel_stored_response,
    "/v1/requests/{request_id}": show_receipt,
    "/v1/usage/me": show_usage,
    "/v1/route/explain": explain_route,
    "/": show_name,
    "/healthz": show_health,
    "/readyz": show_readiness,
}


def build_app(endpoints: PlainEndpoints) -> FastAPI:
    """Return the FastAPI application; its OpenAPI description also covers the forwarding
    endpoints.
    """
    app = FastAPI(
        title="Tollgate",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        summary="An OpenAI-compatible inference gateway whose meter can be believed.",
    )
    app.state.endpoints = endpoints
    for endpoint in ENDPOINTS:
        if not endpoint.is_metered:
            app.add_api_route(
                endpoint.template,
                HANDLERS[endpoint.path],
                methods=[endpoint.method],
                summary=endpoint.summary,
                response_model=None,
            )
    app.add_exception_handler(RequestError, _on_request_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(DatabaseUnavailable, _on_database)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(Exception, _on_failure)
    _complete_description(app)
    return app


async def _on_request_error(request: Request, error: Exception) -> Response:
    """Return the error answer to a request that is not forwarded: status, headers and body."""
    assert isinstance(error, RequestError)
    request_id = str(request.state.request_id)
    dialect = ANTHROPIC if request.state.is_anthropic else DEFAULT_DIALECT
    status, headers, content = error_answer(error, dialect, request_id=request_id)
    return Response(content, status, {name.decode(): value.decode() for name, value in headers})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Answer Starlette's own 404 and 405 with an error body in the caller's dialect."""
    return await _on_request_error(
        request,
        NotSupported(f"{request.method} {request.url.path} is not offered. Offered: {OFFERED}."),
    )


async def _on_database(request: Request, error: Exception) -> Response:
    """Answer 503 with `retry-after` if Postgres cannot be read."""
    return await _on_request_error(
        request,
        Unavailable("The ledger cannot be read just now. Try again shortly.", retry_after_s=5),
    )


async def _on_client_gone(request: Request, error: Exception) -> Response:
    """Return an answer that is never sent, because the caller left before its body was read."""
    return Response(status_code=499)  # the caller has left; not sent


async def _on_failure(request: Request, error: Exception) -> Response:
    """Answer an internal error. Starlette raises it again after this answer, so that the server
    logs it.
    """
    return await _on_request_error(
        request, UpstreamError("The gateway failed on this request. Ask an admin.")
    )


def _complete_description(app: FastAPI) -> None:
    """Have the application's OpenAPI description cover the forwarding endpoints, which bypass
    FastAPI, keys and errors.
    """
    original = app.openapi
    app.openapi = lambda: complete(original())  # type: ignore[method-assign]  # the documented way
