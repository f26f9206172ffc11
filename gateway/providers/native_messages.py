"""Passes a messages request through to an upstream that speaks Anthropic's dialect itself, and its
answer back: Anthropic, vLLM and others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.policy.policy import Deployment
from gateway.domain.request.request import Request, RequestBody
from gateway.wire.openai.request.read import prepare

PATH = "/messages"
BETA = "?beta=true"  # the official clients' mark of a request with beta members
VERSION_HEADER, VERSION = "anthropic-version", "2023-06-01"
MAXIMUM = "max_tokens"
# The smallest request. It contains nothing of any caller's request.
PROBE: Mapping[str, Any] = {"messages": [{"role": "user", "content": "."}], "max_tokens": 1}


def address(base: str, request: Request) -> str:
    """Return the address of a deployment's messages endpoint, with its caller's query."""
    return base + PATH + (BETA if request.is_beta else "")


def add_headers(headers: dict[str, str], request: Request) -> None:
    """Add the caller's `anthropic-*` headers, and a version if it names none.

    Since version 2026-10-21 Anthropic refuses sampling parameters, so it is only sent to those who
    ask for it.
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
    # A maximum of 0 fills the prompt cache, so a smaller one than the cap stays as it is.
    if output_cap_tokens is not None and (asked is None or asked > output_cap_tokens):
        spliced[MAXIMUM] = output_cap_tokens
    return prepare(read, spliced)
