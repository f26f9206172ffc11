"""Translates requests for api.openai.com and every provider with the same dialect, and reads their
answers, usage and errors; it sends nothing itself. Their differences are data
(`domain.providers.table`).
"""

from __future__ import annotations

from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import isnan
from typing import Any
from uuid import UUID

import msgspec

from gateway.domain.ids import text_of
from gateway.domain.policy.policy import Deployment, Operation
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.request.request import Request, RequestBody
from gateway.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    QuotaExhausted,
    RateLimited,
    RequestError,
    UpstreamAuth,
    UpstreamError,
    UpstreamTimeout,
)
from gateway.providers.credentials import resolve
from gateway.wire.dialect import AnswerStream, UpstreamRequest
from gateway.wire.openai.answer import complete_answer
from gateway.wire.openai.answer.assemble import Assembler
from gateway.wire.openai.answer.chat import chat_stream
from gateway.wire.openai.answer.responses import response_stream
from gateway.wire.openai.answer.shapes import usage_in
from gateway.wire.openai.error import ErrorBody, read_error
from gateway.wire.openai.request.read import prepare, stream_options
from gateway.wire.openai.request.size import MAXIMUM_MEMBERS

PATHS = {
    Operation.CHAT: "/chat/completions",
    Operation.COMPLETIONS: "/completions",
    Operation.RESPONSES: "/responses",
    Operation.EMBEDDINGS: "/embeddings",
}
LEAST_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 1.0, 120.0  # official SDKs give up on a longer one
QUOTA_USED_UP = "insufficient_quota"
# The smallest request for each endpoint. It contains nothing of any caller's request.
PROBES: Mapping[Operation, Mapping[str, Any]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "."}], "max_tokens": 1},
    Operation.COMPLETIONS: {"prompt": ".", "max_tokens": 1},
    Operation.EMBEDDINGS: {"input": "."},
    Operation.RESPONSES: {"input": ".", "max_output_tokens": 1, "store": False},
}


class OpenAI:
    """Calls one upstream of the OpenAI dialect and reads its answers."""

    asks_running_usage = False
    bills_errors = False
    stores_by_default = frozenset(
        {Operation.RESPONSES}
    )  # `store` is true there unless the body sets it to false

    async def call(
        self, deployment: Deployment, request: Request, *, output_cap_tokens: int | None = None
    ) -> UpstreamRequest:
        """Return the HTTP request of one attempt (address, headers, and the caller's adapted body),
        to be sent by the transport.

        Changes `model`, `stream_options` and `store`; docs/decisions/0002 gives the reasons.

        `output_cap_tokens` is the maximum that is sent, None to keep the caller's own.
        """
        read = request.body
        is_assembled = self.assembles(deployment, read)
        values = self.values(deployment, read, request.caller.team, is_assembled=is_assembled)
        dropped: tuple[str, ...] = ()
        if output_cap_tokens is not None:
            known = MAXIMUM_MEMBERS[read.facts.operation]
            sent = deployment.output_limit.members if len(known) > 1 else known
            values |= dict.fromkeys(sent, output_cap_tokens)
            dropped = tuple(name for name in known if name not in sent and name in read.members)
        is_streamed = read.facts.is_stream or is_assembled
        headers = self._headers(
            deployment, request.request_id, traceparent=request.traceparent, is_stream=is_streamed
        )
        self.add_headers(headers, request, is_streamed=is_streamed)
        return UpstreamRequest(
            url=deployment.base_url.rstrip("/") + PATHS[read.facts.operation],
            headers=headers,
            body=prepare(read, values, dropped=dropped),
            asks_running_usage=self.asks_running_usage,
            is_assembled=is_assembled,
            is_streamed=is_streamed,
            answer_type="application/json" if is_assembled else None,
        )

    def add_headers(self, headers: dict[str, str], request: Request, *, is_streamed: bool) -> None:
        """Add the headers of this dialect's variant to a request: none here."""

    async def probe(self, deployment: Deployment, probe_id: UUID) -> UpstreamRequest:
        """Return a call of fixed content with at most one output token. It tests whether the model
        answers at all.
        """
        operation = next(one for one in PROBES if one in deployment.operations)
        return UpstreamRequest(
            url=deployment.base_url.rstrip("/") + PATHS[operation],
            headers=self._headers(deployment, probe_id, is_stream=False),
            body=msgspec.json.encode({"model": deployment.model, **PROBES[operation]}),
        )

    def assembles(self, deployment: Deployment, read: RequestBody) -> bool:
        """Return True if a plain request is sent as a stream, so that it can be billed when its
        caller leaves: never here.

        That helps only with self-hosted engines, because only they report running usage.
        """
        return False

    def assembler(self, read: RequestBody, *, limit_bytes: int) -> Assembler:
        """Return the assembler that makes a plain answer of the stream.

        Raises `UpstreamError` if the stream is too large.
        """
        return Assembler(
            operation=read.facts.operation, choices=read.facts.choices, limit_bytes=limit_bytes
        )

    def values(
        self, deployment: Deployment, read: RequestBody, team: str, *, is_assembled: bool
    ) -> dict[str, Any]:
        """Return the members that this dialect sets in a request's body."""
        values: dict[str, Any] = {}
        if read.facts.model != deployment.model:
            values["model"] = deployment.model
        wants_usage = read.facts.is_stream and read.facts.operation is not Operation.RESPONSES
        if wants_usage and deployment.provider_facts.takes_stream_options:
            values["stream_options"] = stream_options(read, include_usage=True)
        if read.facts.operation in self.stores_by_default and "store" not in deployment.allows:
            values["store"] = False
        return values

    def stream(self, read: RequestBody, call: UpstreamRequest) -> AnswerStream:
        """Return the reader of a streamed answer to this call.

        It keeps the text if the upstream reports no running usage.
        """
        if read.facts.operation is Operation.RESPONSES:
            return response_stream(model=read.facts.model, collects_text=True)
        return chat_stream(
            model=read.facts.model,
            wants_usage=read.facts.wants_usage,
            wants_running_usage=read.facts.wants_running_usage,
            asked_running_usage=call.asks_running_usage,
            choices=read.facts.choices,
            collects_text=not call.asks_running_usage,
        )

    rewrite = staticmethod(complete_answer.rewrite)

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Map an upstream's error by status and type, never by the text of its message."""
        error = self._error(deployment, status, read_error(body))
        asked_s = _asked_wait_s(headers)
        if asked_s is not None:
            error.asked_wait_s = asked_s
        if isinstance(error, RateLimited | Overloaded):
            error.retry_after_s = min(max(asked_s or 0.0, LEAST_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        # Redirects are not followed and missing models do not appear: a retry there would fail
        # again.
        error.is_same_again = error.is_same_again or (
            status < 500 and isinstance(error, UpstreamError)
        )
        return error

    def _error(self, deployment: Deployment, status: int, error_body: ErrorBody) -> RequestError:
        """Return the caller's error for an upstream's HTTP status and error body."""
        name, provider = deployment.name, deployment.provider_facts
        if status in provider.context_length_statuses:
            return _too_long(deployment, error_body)
        if status == 403 and error_body.is_moderation:
            return _refused(deployment, status, error_body)
        if status in (401, 403):
            error = UpstreamAuth(
                f"{name} refused the gateway's own credential (HTTP {status}). Ask an admin."
            )
            error.may_be_this_request = status == 403
            return error
        if status == 404 and error_body.param == "model":
            return UpstreamError(
                f"{name} does not know its model {deployment.model}. Ask an admin."
            )
        if status == 404:
            return ModelNotFound(
                f"{name} does not offer this endpoint or an object that it names (HTTP 404)."
            )
        if status == 429 and QUOTA_USED_UP in (error_body.code, error_body.type):
            return QuotaExhausted(
                f"The gateway's account at {name} is used up (HTTP 429). Ask an admin."
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

    def usage_in(self, body: bytes) -> TokenUsage | None:
        """Return the usage that a complete answer or an error reports, None if it reports none."""
        return usage_in(body)

    def _headers(
        self,
        deployment: Deployment,
        request_id: UUID,
        *,
        is_stream: bool,
        traceparent: str | None = None,
    ) -> dict[str, str]:
        """Return the headers of an upstream request, with the deployment's credential."""
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if is_stream else "application/json",
            "accept-encoding": "identity",  # the gateway reads the bytes on the way
            "user-agent": "tollgate",
            "x-request-id": text_of(request_id),
        }
        if traceparent is not None:
            headers["traceparent"] = traceparent
        secret = resolve(deployment)
        if secret is not None:
            key_header = deployment.provider_facts.key_header
            is_bearer = key_header == "authorization"
            headers[key_header] = f"Bearer {secret}" if is_bearer else secret
        return headers


def _refused(deployment: Deployment, status: int, error_body: ErrorBody) -> RequestError:
    """Return the error for a 4xx that the caller can fix, with the upstream's own helpful
    message.
    """
    if error_body.code == "context_length_exceeded" or error_body.param in (
        "input_tokens",
        "max_tokens",
    ):
        return _too_long(deployment, error_body)
    return InvalidRequest(
        f"{deployment.name} refused the request (HTTP {status}): {error_body.message}",
        param=error_body.param,
    )


def _too_long(deployment: Deployment, error_body: ErrorBody) -> RequestError:
    """Return the error for a request that does not fit into the model's context."""
    return ContextLengthExceeded(
        f"{deployment.name}: {error_body.message} Send less, ask for fewer tokens, or use a route "
        "with more context.",
        param=error_body.param,
    )


def _asked_wait_s(headers: Mapping[str, str]) -> float | None:
    """Return the wait that a `retry-after` header asks for, in seconds, never negative; None if
    absent or unreadable.
    """
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
