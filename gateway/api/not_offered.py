"""Answers requests for endpoints of other APIs that the gateway does not offer: the shape of the
error by the path's dialect, and the endpoint to use instead. It serves none of them.

Two tables, each read from its start: `SHAPES` and `INSTEAD`. A dialect adds a line to each.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from re import Pattern

import msgspec

from gateway.api.routes import ANTHROPIC, DEFAULT_DIALECT
from gateway.wire.dialect import ErrorShape


class _GeminiErrors:
    """Errors as Google's APIs write them."""

    def error_body(
        self, code: str, message: str, *, param: str | None = None, request_id: str | None = None
    ) -> bytes:
        """Return the body of a 404 in Google's form; only paths that are not offered have it."""
        return msgspec.json.encode(
            {"error": {"code": 404, "message": message, "status": "NOT_FOUND"}}
        )


class _OllamaErrors:
    """Errors as Ollama's own API writes them."""

    def error_body(
        self, code: str, message: str, *, param: str | None = None, request_id: str | None = None
    ) -> bytes:
        """Return the body of an error in Ollama's form."""
        return msgspec.json.encode({"error": message})


_GEMINI, _OLLAMA = _GeminiErrors(), _OllamaErrors()
_GEMINI_CALL = (
    r"/v1/(models|tunedModels|publishers/[^/]+/models|projects/[^/]+/.*)/?[^/]*:[A-Za-z]+"
)

_ANTHROPIC_VERSION = b"anthropic-version"  # Anthropic's clients send it with each request
_MODELS_PATH = re.compile(r"/v1/models(/|$)")

# By the beginning of a path, the form of its errors; all other paths have the default dialect's.
SHAPES: tuple[tuple[Pattern[str], ErrorShape], ...] = (
    (re.compile(r"/v1beta/openai/"), DEFAULT_DIALECT),
    (re.compile(r"/v1(beta|alpha)[0-9]*(/|$)"), _GEMINI),
    (re.compile(_GEMINI_CALL + "$"), _GEMINI),
    (re.compile(r"/api(/|$)"), _OLLAMA),
    (re.compile(r"(/.*)?/v1/messages|/v1/complete$"), ANTHROPIC),
)

_CHAT = "Use POST /v1/chat/completions."
_TEXT = "Use POST /v1/chat/completions, with text and pictures in its messages."
_STATE = "Nothing is kept here: send the whole conversation to POST /v1/responses."
_FILES = "No files are kept here: send the content itself to POST /v1/chat/completions."
_MODELS = "Models are declared in the gateway's policy; GET /v1/models lists yours."
_SPEND = "See GET /v1/usage/me; keys and teams are the admins', with the command tollgate."
_BASE = "Your base_url should end in this gateway's /v1; then use POST /v1/chat/completions."

# By the beginning of a path, the endpoint to use instead.
INSTEAD: tuple[tuple[Pattern[str], str], ...] = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        # OpenAI's: its description of its API, version 2.3.0 of 2026-08-21.
        (r"/v1/chat/completions/", "Answers of chats are not kept. " + _CHAT),
        (r"/v1/responses/input_tokens$", "POST /v1/responses states its usage in its answer."),
        (r"/v1/responses/", "Use POST /v1/responses."),
        (r"/v1/(conversations|threads|assistants|chatkit)(/|$)", _STATE),
        (r"/v1/(files|uploads|vector_stores|containers|skills)(/|$)", _FILES),
        (r"/v1/batches(/|$)", "Send each request by itself to POST /v1/chat/completions."),
        (
            r"/v1/images(/|$)",
            "Pictures are read, not made: send them to POST /v1/chat/completions.",
        ),
        (r"/v1/(audio|realtime|videos|content_provenance_checks)(/|$)", _TEXT),
        (r"/v1/(moderations|evals)(/|$)", "Ask a model: " + _CHAT),
        (r"/v1/fine_tuning(/|$)", _MODELS),
        (r"/v1/(organization|projects)(/|$)", _SPEND),
        (r"/v1/(engines|edits|completions)(/|$)", "Use POST /v1/completions."),
        # Google's: the paths that google-genai 3.6.1 asks for, read 2026-11-24.
        (r"/v1beta/openai/", _BASE),
        (
            r"/v1(beta|alpha)?[0-9]*/.*:(async)?([bB]atch)?[eE]mbedContents?$",
            "Use POST /v1/embeddings.",
        ),
        (r"/v1(beta|alpha)?[0-9]*/.*:countTokens$", "POST /v1/chat/completions states its usage."),
        (r"/v1(beta|alpha)?[0-9]*/.*:[A-Za-z]+$", _CHAT),
        (r"/v1(beta|alpha)[0-9]*/(models|tunedModels)(/[^/]*)?$", "Use GET /v1/models."),
        (r"/v1(beta|alpha)[0-9]*(/|$)", _CHAT),
        # Ollama's: the paths that ollama 0.6.3 (its Python client) asks for, read 2026-11-24.
        (r"/api/generate$", "Use POST /v1/completions."),
        (r"/api/embed(dings)?$", "Use POST /v1/embeddings."),
        (r"/api/(tags|ps)$", "Use GET /v1/models."),
        (r"/api/show$", "Use GET /v1/models/{model}."),
        (r"/api/version$", "Use GET /."),
        (r"/api/(pull|push|create|copy|delete|blobs)(/|$)", _MODELS),
        (r"/api(/|$)", _CHAT),
        # Anthropic's: the paths that anthropic 2.13.0 asks for, read 2026-11-24.
        (r"/v1/messages/batches(/|$)", "Send each request by itself to POST /v1/messages."),
        (r"/v1/(messages/|complete$)", "Use POST /v1/messages."),
        # Azure's.
        (r"/openai/", _BASE),
        (r"/v1/models/", _MODELS),
    )
)


def shape_of(path: str, fields: Sequence[tuple[bytes, bytes]]) -> ErrorShape:
    """Return the form of the errors of a path that is not forwarded, for a caller with these header
    fields: models are listed for the clients of two dialects.
    """
    if _MODELS_PATH.match(path) and any(name == _ANTHROPIC_VERSION for name, _ in fields):
        return ANTHROPIC
    return next((shape for prefix, shape in SHAPES if prefix.match(path)), DEFAULT_DIALECT)


def instead_of(path: str) -> str | None:
    """Return the endpoint to use instead of a path of another API, None if the path is of none."""
    return next((text for prefix, text in INSTEAD if prefix.match(path)), None)
