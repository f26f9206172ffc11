"""Maps an upstream's error answer to the caller's error, by status and type, for every dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from math import isnan

from gateway.domain.policy.policy import Deployment
from gateway.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelMissing,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestError,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.wire.error_body import ErrorBody

LEAST_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 120.0  # official SDKs give up on a longer one
MOST_MS_DIGITS = 12
QUOTA_USED_UP = "insufficient_quota"
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
# OpenAI names no `param` (Aider-AI/aider issue 2030), and Azure sends the code and a message alone
# (chatboxai/chatbox issue 646).
UNKNOWN_MODEL = frozenset({"model_not_found", "DeploymentNotFound"})
# The engines' own types of a 404: vLLM's (it may lack `param`), then that of Ollama and llama.cpp.
# A caller names nothing there that could be missing: vLLM's stored responses have another type
# (vLLM 0.32, entrypoints/openai/responses/serving.py). Looked up on 2026-11-26.
ENGINE_NOT_FOUND = frozenset({"NotFoundError", "not_found_error"})
UNSUPPORTED = "unsupported_parameter"  # `max_tokens` to a model that takes the other one
TOO_LONG = frozenset({"context_length_exceeded", "exceed_context_size_error"})  # llama.cpp's second


def request_error(
    deployment: Deployment, status: int, headers: Mapping[str, str], error_body: ErrorBody
) -> RequestError:
    """Map an upstream's error by status and type; by the text of its message only if a provider
    says it nowhere else (`ProviderFacts.refusal_words`).
    """
    if any(word in error_body.message for word in deployment.provider_facts.refusal_words):
        error_body = replace(error_body, is_moderation=True)
    error = _error(deployment, status, error_body)
    error.is_refused_content = (error_body.is_moderation and 400 <= status < 500) or (
        deployment.provider_facts.bills_too_long and isinstance(error, ContextLengthExceeded)
    )
    asked_s = _asked_wait_s(headers)
    if asked_s is not None:
        error.asked_wait_s = asked_s
    if isinstance(error, RateLimited | Overloaded):
        error.retry_after_s = min(max(asked_s or 0.0, LEAST_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
    # Redirects are not followed and missing models do not appear: a retry there would fail
    # again.
    error.is_same_again = error.is_same_again or (status < 500 and isinstance(error, UpstreamError))
    return error


def _error(deployment: Deployment, status: int, error_body: ErrorBody) -> RequestError:
    """Return the caller's error for an upstream's HTTP status and error body."""
    name, provider = deployment.name, deployment.provider_facts
    if status in provider.context_length_statuses:
        return _too_long(deployment, error_body)
    if status == 403 and error_body.is_moderation:
        return _refused(deployment, status, error_body)
    if status in (401, 403):
        error = UpstreamAuth(
            f"{name} refused the gateway's own credential (HTTP {status}{_kind(error_body)}). "
            "Ask an admin."
        )
        error.may_be_this_request = status == 403
        return error
    if status == 404 and _is_model_missing(deployment, error_body):
        return ModelMissing(f"{name} does not know its model {deployment.model}. Ask an admin.")
    if status == 404:
        return ModelNotFound(
            f"{name} does not offer this endpoint or an object that it names (HTTP 404)."
        )
    is_used_up = status == 429 and QUOTA_USED_UP in (error_body.code, error_body.type)
    if is_used_up or status == 402 or status in provider.account_statuses:
        return QuotaExhausted(
            f"The gateway's account at {name} is used up (HTTP {status}). Ask an admin."
        )
    if status == 429:
        return RateLimited(f"{name} is limiting the gateway (HTTP 429). Try again later.")
    if status in (408, 504, 524):
        return UpstreamTimeout(f"{name} timed out (HTTP {status}).")
    if status in (503, 529) or status in provider.overloaded_statuses:
        return Overloaded(f"{name} is overloaded (HTTP {status}). Try again.")
    if status >= 500 or status < 400:
        return UpstreamError(f"{name} failed (HTTP {status}).")
    return _refused(deployment, status, error_body)


def _is_model_missing(deployment: Deployment, error_body: ErrorBody) -> bool:
    """Return True if a 404 is about the deployment's model: the gateway sends its name, the caller
    never does.
    """
    if error_body.param == "model" or error_body.code in UNKNOWN_MODEL:
        return True
    return deployment.provider_facts.is_engine and error_body.type in ENGINE_NOT_FOUND


def _refused(deployment: Deployment, status: int, error_body: ErrorBody) -> RequestError:
    """Return the error for a 4xx that the caller can fix, with the upstream's own helpful
    message.
    """
    # A 422 is about the member's form, not about its size, and so is OpenAI's code.
    is_of_form = status == 422 or error_body.code == UNSUPPORTED
    names_size = not is_of_form and error_body.param in ("input_tokens", "max_tokens")
    if names_size or not TOO_LONG.isdisjoint((error_body.code, error_body.type)):
        return _too_long(deployment, error_body)
    return InvalidRequest(
        f"{deployment.name} refused the request (HTTP {status}): {error_body.message}",
        param=error_body.param,
    )


def _kind(error_body: ErrorBody) -> str:
    """Return the upstream's own name for an error, empty if it has none that is one word."""
    found = next(filter(None, (error_body.code, error_body.type)), "")
    return f", {found}" if _WORD.fullmatch(found) else ""


def _too_long(deployment: Deployment, error_body: ErrorBody) -> RequestError:
    """Return the error for a request that does not fit into the model's context."""
    return ContextLengthExceeded(
        f"{deployment.name}: {error_body.message} Send less, ask for fewer tokens, or use a route "
        "with more context.",
        param=error_body.param,
    )


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that an answer asks for, in seconds, never negative; None if it asks for
    none, or it is unreadable.

    Azure's and OpenAI's `retry-after-ms` is the exact one; it may come alone.
    """
    retry_after_ms = headers.get("retry-after-ms", "")
    if retry_after_ms.isdecimal() and len(retry_after_ms) <= MOST_MS_DIGITS:
        return int(retry_after_ms) / 1000
    retry_after = headers.get("retry-after")
    if retry_after is None:
        return None
    try:
        seconds = float(retry_after)
    except ValueError:
        seconds = _seconds_until(retry_after, headers.get("date"))
    return None if isnan(seconds) else max(seconds, 0.0)


def _seconds_until(moment: str, now: str | None) -> float:
    """Return the seconds until an HTTP date, by the upstream's own clock, which may differ from
    ours.

    NaN if that is undefined.
    """
    try:
        return (parsedate_to_datetime(moment) - parsedate_to_datetime(now or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):
        # TypeError: only one of them has a time zone. OverflowError: a year of twenty digits.
        return float("nan")
