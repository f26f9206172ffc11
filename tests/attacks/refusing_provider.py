"""A provider of every dialect whose quota is used up: it answers each request with the refusal that
the request's model names, in the words of its own dialect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.event_messages import exception
from tests.running_server import address_of, running

WAIT_S = 30  # longer than the gateway waits by itself, so the caller gets the error at once
JSON, EVENTS = "application/json", "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One refusal. `wait` is the `retry-after` that a caller of the gateway gets."""

    provider: str
    status: int
    body: bytes
    wait: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = JSON
    code: str = "rate_limited"


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def _anthropic(kind: str) -> bytes:
    return _json(type="error", error={"type": kind, "message": "no"}, request_id="req_1")


def _google(status: int, state: str, *details: dict[str, Any]) -> bytes:
    return _json(error={"code": status, "message": "no", "status": state, "details": details})


_RETRY_INFO = {
    "@type": "type.googleapis.com/google.rpc.RetryInfo",
    "retryDelay": f"{WAIT_S}s",
}
_SECONDS = {"retry-after": str(WAIT_S)}
_DATE = {
    "date": "Wed, 25 Nov 2026 10:00:00 GMT",
    "retry-after": "Wed, 25 Nov 2026 10:00:30 GMT",
}
_ASKED = str(WAIT_S)


def _aws(kind: str) -> Mapping[str, str]:
    return {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/"}


def _openai(code: str, kind: str = "tokens") -> bytes:
    return _json(error={"message": "no", "type": kind, "param": None, "code": code})


# Sources: docs/provider-facts.md; AWS's 400 for throttling: Bedrock's API reference, "Common
# Errors" (2026-11-25).
REFUSALS: Mapping[str, Refusal] = {
    "anthropic-limit-in-seconds": Refusal(
        provider="anthropic",
        status=429,
        body=_anthropic("rate_limit_error"),
        headers=_SECONDS,
        wait=_ASKED,
    ),
    "anthropic-limit-with-a-date": Refusal(
        provider="anthropic",
        status=429,
        body=_anthropic("rate_limit_error"),
        headers=_DATE,
        wait=_ASKED,
    ),
    "anthropic-overloaded": Refusal(
        provider="anthropic",
        status=529,
        body=_anthropic("overloaded_error"),
        headers=_SECONDS,
        wait=_ASKED,
        code="overloaded",
    ),
    "anthropic-overloaded-in-the-stream": Refusal(
        provider="anthropic",
        status=200,
        body=b"event: error\ndata: " + _anthropic("overloaded_error") + b"\n\n",
        kind=EVENTS,
        wait=None,
        code="upstream_error",
    ),
    "gemini-retry-info": Refusal(
        provider="gemini",
        status=429,
        body=_google(429, "RESOURCE_EXHAUSTED", _RETRY_INFO),
        wait=_ASKED,
    ),
    "gemini-unavailable": Refusal(
        provider="gemini",
        status=503,
        body=_google(503, "UNAVAILABLE", _RETRY_INFO),
        wait=_ASKED,
        code="overloaded",
    ),
    "vertex-exhausted": Refusal(
        provider="vertex",
        status=429,
        body=_google(429, "RESOURCE_EXHAUSTED"),
        wait="1",
    ),
    "vertex-retry-info": Refusal(
        provider="vertex",
        status=429,
        body=_google(429, "RESOURCE_EXHAUSTED", _RETRY_INFO),
        wait=_ASKED,
    ),
    "bedrock-throttled": Refusal(
        provider="bedrock",
        status=429,
        body=_json(message="no"),
        headers=_aws("ThrottlingException"),
        wait="1",
    ),
    "bedrock-throttled-with-a-400": Refusal(
        provider="bedrock",
        status=400,
        body=_json(message="no"),
        headers=_aws("ThrottlingException"),
        wait="1",
    ),
    "bedrock-unavailable": Refusal(
        provider="bedrock",
        status=503,
        body=_json(message="no"),
        headers=_aws("ServiceUnavailableException") | _SECONDS,
        wait=_ASKED,
        code="overloaded",
    ),
    "bedrock-quota-of-the-account": Refusal(
        provider="bedrock",
        status=400,
        body=_json(message="no"),
        headers=_aws("ServiceQuotaExceededException"),
        wait="1",
    ),
    "bedrock-throttled-in-the-stream": Refusal(
        provider="bedrock",
        status=200,
        body=exception("throttlingException", "no"),
        kind="application/vnd.amazon.eventstream",
        wait=None,
        code="upstream_error",
    ),
    "ollama-queue-is-full": Refusal(
        provider="ollama",
        status=503,
        body=_json(error="server busy"),
        wait="1",
        code="overloaded",
    ),
    "triton-queue-is-full": Refusal(
        provider="triton",
        status=503,
        body=_json(error="Exceeds maximum queue size"),
        wait="1",
        code="overloaded",
    ),
    "azure-limit-in-milliseconds": Refusal(
        provider="azure_openai",
        status=429,
        body=_openai("RateLimitReached"),
        headers={"retry-after-ms": "29500", "retry-after": "1"},
        wait=_ASKED,
    ),
    "groq-limit": Refusal(
        provider="groq",
        status=429,
        body=_openai("rate_limit_exceeded"),
        headers=_SECONDS,
        wait=_ASKED,
    ),
    "groq-flex-tier-is-full": Refusal(
        provider="groq",
        status=498,
        body=_openai("capacity_exceeded"),
        wait="1",
        code="overloaded",
    ),
    "openai-limit-with-a-date": Refusal(
        provider="openai",
        status=429,
        body=_openai("rate_limit_exceeded"),
        headers=_DATE,
        wait=_ASKED,
    ),
    "openai-account-is-used-up": Refusal(
        provider="openai",
        status=429,
        body=_openai("insufficient_quota", "insufficient_quota"),
        wait="1",
    ),
}


@contextmanager
def refusing() -> Iterator[str]:
    """Yield the address of the provider."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            asked = self.path + body.decode()
            name = max((name for name in REFUSALS if name in asked), key=len)
            refusal = REFUSALS[name]
            self.send_response_only(refusal.status)
            head = {"content-type": refusal.kind, "content-length": str(len(refusal.body))}
            for header, value in {**head, **refusal.headers}.items():
                self.send_header(header, value)
            with suppress(OSError):  # the gateway has left
                self.end_headers()
                self.wfile.write(refusal.body)

        def do_GET(self) -> None:
            self.send_error(404)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # many connections come at once

    with running(Server(("127.0.0.1", 0), Handler)) as server:
        yield address_of(server)
