"""Declares the HTTP endpoints (path, method, operation, dialect) for the edge, the connections,
FastAPI and the OpenAPI description; a policy's routes are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.operation import Operation
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.dialect import Dialect
from gateway.wire.openai.dialect import OpenAIDialect

OPENAI: Dialect = OpenAIDialect()
ANTHROPIC: Dialect = AnthropicDialect()
COUNT_TOKENS = "/v1/messages/count_tokens"
DEFAULT_DIALECT = OPENAI  # of errors for requests to no known endpoint


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `operation` is set for the forwarding ones: they are metered and bypass
    FastAPI. `dialect` reads their requests and writes their errors. `open_because` is the reason
    why it needs no key, empty if it needs one.
    """

    path: str
    method: str
    summary: str
    operation: Operation | None = None
    dialect: Dialect = DEFAULT_DIALECT
    open_because: str = ""

    @property
    def template(self) -> str:
        """Return the path as Starlette matches it. Names of models may have slashes, and the server
        decodes `%2F` before.
        """
        return self.path.replace("{model}", "{model:path}")

    @property
    def is_metered(self) -> bool:
        """Return True if a request to this endpoint can cost money."""
        return self.operation is not None


ENDPOINTS = (
    Endpoint("/v1/chat/completions", "POST", "Chat, streamed or not", Operation.CHAT),
    Endpoint("/v1/completions", "POST", "Text completion, streamed or not", Operation.COMPLETIONS),
    Endpoint("/v1/responses", "POST", "Responses, streamed or not", Operation.RESPONSES),
    Endpoint("/v1/embeddings", "POST", "Embeddings", Operation.EMBEDDINGS),
    Endpoint("/v1/rerank", "POST", "Documents in the order of a query", Operation.RERANK),
    Endpoint("/v1/score", "POST", "Scores of pairs of texts", Operation.SCORE),
    Endpoint(
        "/v1/messages",
        "POST",
        "Anthropic's messages, streamed or not",
        Operation.MESSAGES,
        ANTHROPIC,
    ),
    Endpoint(
        COUNT_TOKENS,
        "POST",
        "The tokens of a prompt of messages; never charged",
        dialect=ANTHROPIC,
    ),
    Endpoint("/v1/models", "GET", "The routes your team may ask for"),
    Endpoint("/v1/models/{model}", "GET", "One of them, by its name or an alias"),
    Endpoint("/v1/responses/{response_id}", "GET", "A response that its deployment has stored"),
    Endpoint("/v1/responses/{response_id}", "DELETE", "Delete such a response where it is stored"),
    Endpoint(
        "/v1/responses/{response_id}/cancel",
        "POST",
        "Cancel such a response; only its deployment knows whether it can be cancelled",
    ),
    Endpoint("/v1/requests/{request_id}", "GET", "The receipt of one of your team's requests"),
    Endpoint("/v1/usage/me", "GET", "The spending of your team and key"),
    Endpoint(
        "/v1/route/explain",
        "POST",
        "The deployments that a request would use, and why not the others; sends nothing",
    ),
    Endpoint(
        "/",
        "GET",
        "Name, version and where the documentation is",
        open_because="clients ask before they have a key, and it shows no state",
    ),
    Endpoint(
        "/",
        "HEAD",
        "The same without a body: something answers here",
        open_because="clients ask before they have a key, and it shows no state",
    ),
    Endpoint("/healthz", "GET", "Alive", open_because="probes have no key, and it shows no state"),
    Endpoint(
        "/readyz",
        "GET",
        "May take traffic; lists each failed check with its remedy",
        open_because="probes have no key, and it names no team and no key",
    ),
)
DIALECTS = {endpoint.operation: endpoint.dialect for endpoint in ENDPOINTS}
# Probes of a balancer, which may speak HTTP/1.0 without a Host header.
PROBES = frozenset({"/healthz", "/readyz"})
FORWARDING = {endpoint.path: endpoint for endpoint in ENDPOINTS if endpoint.is_metered}
OFFERED = ", ".join(f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS)
