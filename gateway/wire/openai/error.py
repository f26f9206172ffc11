"""Writes error bodies and events for OpenAI's clients, and reads upstreams' error bodies in every
shape in use.

The dialect's own shape is `{"error":{"message","type","param","code"}}`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.wire.error_body import ErrorBody
from gateway.wire.foreign_json import is_quick

MAX_MESSAGE_CHARS = 1000
_NO_REASON = "The upstream gave no reason."
# Parts of `type` or `code` of providers that refuse a prompt: `content_policy_violation`,
# `moderation_blocked`, …
_MODERATION = ("moderation", "content_policy", "content_filter", "flagged", "safety")
# `type` in an error body, by stable code; each error that the caller can fix is an
# invalid_request_error.
TYPES = {
    "invalid_api_key": "authentication_error",
    "budget_exhausted": "billing_error",
    "unpriced_model": "billing_error",
    "route_not_allowed": "permission_error",
    "residency_denied": "permission_error",
    "rate_limited": "rate_limit_error",
    "concurrency_limited": "rate_limit_error",
    "upstream_unreachable": "upstream_error",
    "upstream_error": "upstream_error",
    "upstream_auth": "upstream_error",
    "upstream_timeout": "upstream_error",
    "overloaded": "server_error",
    "unavailable": "server_error",
}


def read_error(body: bytes) -> ErrorBody:
    """Return an upstream's error from its body, in any of the shapes in use; never raises.

    OpenAI nests the error, and TensorRT-LLM sends it flat. vLLM's key check sends `{"error":
    "text"}`, and vLLM's `code` is a number. Triton sends `{"detail": "text"}`. FastAPI's list of
    wrong members is Triton's `detail`, and Mistral's `message`.
    """
    if not is_quick(body):
        return ErrorBody(
            "The upstream gave no reason that is short enough to be read.", None, None, None
        )
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return ErrorBody("The upstream gave no readable reason.", None, None, None)
    error: Any = decoded.get("error", decoded) if isinstance(decoded, dict) else decoded
    if not isinstance(error, dict):
        return ErrorBody(str(error)[:MAX_MESSAGE_CHARS], None, None, None)
    message, member = _reason(error)
    type_, param, code = (_short_text(error.get(name)) for name in ("type", "param", "code"))
    return ErrorBody(
        message[:MAX_MESSAGE_CHARS],
        type_,
        param or _short_text(member),
        code,
        _is_moderation(type_, code, error),
    )


def _reason(error: dict[str, Any]) -> tuple[str, str | None]:
    """Return an error's message, and the request's member that a list of wrong ones names first."""
    said = error.get("message") or error.get("detail")
    if isinstance(said, dict):
        said = said.get("detail") or said
    if not isinstance(said, list) or not said or not isinstance(said[0], dict):
        return (str(said) if said else _NO_REASON), None
    # Its `input` is the caller's content, so only the place and the message are taken.
    place, message = said[0].get("loc"), str(said[0].get("msg") or _NO_REASON)
    names = [str(name) for name in place if name != "body"] if isinstance(place, list) else []
    member = ".".join(names)
    return (f"{member}: {message}", member) if member else (message, None)


def error_body(code: str, message: str, *, param: str | None = None) -> bytes:
    """Return the body of an error answer, with all four members."""
    return msgspec.json.encode({"error": _error(code, message, param)})


def error_event(code: str, message: str, *, is_responses: bool) -> bytes:
    """Return the event that ends a broken stream; no `[DONE]` follows."""
    if is_responses:
        event = responses_error(code, message) | {"sequence_number": 0}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    return b"data: " + msgspec.json.encode({"error": _error(code, message, None)}) + b"\n\n"


def responses_error(code: str, message: str) -> dict[str, Any]:
    """Return the `error` event of a stream of responses, without its number.

    OpenAI documents flat members and sends a nested `error` (openai-dotnet issue 881), for which
    alone openai-python and openai-node raise (openai-python issue 2487). Strict clients read the
    flat members, so both stand in the event.
    """
    flat = {"code": code, "message": message, "param": None}
    return {"type": "error", **flat, "error": _error(code, message, None)}


def _error(code: str, message: str, param: str | None) -> dict[str, str | None]:
    """Return the four members of an OpenAI error; its type follows from its code."""
    return {
        "message": message,
        "type": TYPES.get(code, "invalid_request_error"),
        "param": param,
        "code": code,
    }


def _is_moderation(type_: str | None, code: str | None, error: dict[str, Any]) -> bool:
    """Return True if an error's type, code or metadata names moderation (OpenRouter's code is
    only 403).
    """
    names = f"{type_ or ''} {code or ''}".lower().replace("-", "_")
    metadata = error.get("metadata")
    return any(word in names for word in _MODERATION) or (
        isinstance(metadata, dict) and "flagged_input" in metadata
    )


def _short_text(value: Any) -> str | None:
    """Return a value of an upstream's error as text, cut to a bounded length; None stays None."""
    return None if value is None else str(value)[:MAX_MESSAGE_CHARS]
