"""Passes a messages request through to an upstream that speaks Anthropic's dialect itself, and its
answer back: Anthropic, vLLM and others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import Request, RequestBody
from gateway.providers.upstream_headers import upstream_headers
from gateway.wire.anthropic.usage import usage_from_wire
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.openai.request.read import prepare

PATH, COUNT_PATH = "/messages", "/messages/count_tokens"
BETA = "?beta=true"  # the official clients' mark of a request with beta members
VERSION_HEADER, VERSION = "anthropic-version", "2023-06-01"
MAXIMUM = "max_tokens"
# The smallest request. It contains nothing of any caller's request.
PROBE: Mapping[str, Any] = {"messages": [{"role": "user", "content": "."}], "max_tokens": 1}


def address(base: str, request: Request, path: str = PATH) -> str:
    """Return the address of a deployment's messages endpoint, with its caller's query."""
    return base + path + (BETA if request.is_beta else "")


def count_call(deployment: Deployment, base: str, request: Request) -> UpstreamRequest:
    """Return the call that counts the tokens of a request's prompt (anthropic 2.13.0,
    resources/messages, and vllm 0.33.0, entrypoints/anthropic/api_router.py, 2026-11-24).
    """
    headers = upstream_headers(
        deployment, request.request_id, traceparent=request.traceparent, is_stream=False
    )
    add_headers(headers, request)
    return UpstreamRequest(
        url=address(base, request, COUNT_PATH),
        headers=headers,
        body=body(deployment, request.body, {}, None),
    )


def counted(answer: bytes) -> int | None:
    """Return the tokens that an answer to that call states, None if it states none."""
    usage = usage_from_wire(answer)
    return usage.input_tokens if usage is not None and usage.is_plausible else None


def add_headers(headers: dict[str, str], request: Request) -> None:
    """Add the caller's `anthropic-*` headers, and a version if it names none.

    Since version 2026-10-21 Anthropic refuses sampling parameters, so it is only sent to callers
    that name it.
    """
    headers[VERSION_HEADER] = VERSION
    headers.update(request.dialect_headers)


def body(
    deployment: Deployment,
    read: RequestBody,
    values: Mapping[str, Any],
    output_cap_tokens: int | None,
) -> bytes:
    """Return the request's bytes for the deployment, with `values`, its model name and, if the
    caller's maximum is absent or larger, the cap.
    """
    spliced = dict(values)
    if read.facts.model != deployment.model:
        spliced["model"] = deployment.model
    asked = read.facts.output_bound_tokens
    # Anthropic fills the prompt cache for a maximum of 0, which counts as 1 here; for an engine it
    # may be no maximum at all.
    is_unclear = asked == 1 and not deployment.provider_facts.needs_key
    if output_cap_tokens is not None and (asked is None or asked > output_cap_tokens or is_unclear):
        spliced[MAXIMUM] = output_cap_tokens
    return prepare(read, spliced)
