"""Writes error bodies and events for clients of Anthropic's messages.

The shape is `{"type":"error","error":{"type","message"},"request_id"}`. Our stable code stands
beside them in `error.code`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.error_body import ErrorBody

# `error.type` by our stable code (contract of the surface); `api_error` for all others.
TYPES = {
    "invalid_request": "invalid_request_error",
    "idempotency_mismatch": "invalid_request_error",
    "idempotency_conflict": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "unsupported_media_type": "invalid_request_error",
    "uri_too_long": "invalid_request_error",
    "headers_too_large": "invalid_request_error",
    "request_timeout": "invalid_request_error",
    "invalid_api_key": "authentication_error",
    "route_not_allowed": "permission_error",
    "residency_denied": "permission_error",
    "model_not_found": "not_found_error",
    "not_supported": "not_found_error",
    "request_too_large": "request_too_large",
    "rate_limited": "rate_limit_error",
    "concurrency_limited": "rate_limit_error",
    "overloaded": "overloaded_error",
}
OTHER_TYPE = "api_error"
# Our code for an upstream's error in the middle of a stream, by its type.
_CODES = {"overloaded_error": "overloaded", "rate_limit_error": "rate_limited"}


def type_of(code: str) -> str:
    """Return Anthropic's type for one of our codes."""
    return TYPES.get(code, OTHER_TYPE)


def code_of(error: ErrorBody) -> str:
    """Return our code for an error that an upstream sends in a stream."""
    return _CODES.get(error.type or "", "upstream_error")


def error_body(
    code: str, message: str, *, param: str | None = None, request_id: str | None = None
) -> bytes:
    """Return the body of an error answer."""
    return msgspec.json.encode(_error(code, message, param=param, request_id=request_id))


def error_event(code: str, message: str, *, request_id: str | None = None) -> bytes:
    """Return the event that ends a broken stream; no `message_stop` follows."""
    error = _error(code, message, param=None, request_id=request_id)
    return b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"


def _error(code: str, message: str, *, param: str | None, request_id: str | None) -> dict[str, Any]:
    """Return an error in Anthropic's shape, with our own code and the member at fault beside it."""
    inner: dict[str, Any] = {"type": type_of(code), "message": message, "code": code}
    if param is not None:
        inner["param"] = param
    return {"type": "error", "error": inner, "request_id": request_id}
