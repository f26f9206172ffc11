"""Completes the OpenAPI description that FastAPI makes: the forwarding endpoints, the members that
the gateway reads of their bodies, keys and errors. It describes; no request is checked by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.api.routes import ENDPOINTS
from gateway.domain.operation import Operation

_COUNT = {"type": "integer", "minimum": 1}
_SAMPLING = {"temperature": {"type": "number"}, "top_p": {"type": "number"}}
_TEXT = {"type": "string"}
_STREAM = {
    "stream": {"type": "boolean"},
    "stream_options": {
        "type": "object",
        "properties": {"include_usage": {"type": "boolean"}},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                _TEXT,
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type"],
                        "properties": {"type": _TEXT, "text": _TEXT},
                    },
                },
            ]
        },
    },
}
_TOOLS = {
    "type": "array",
    "items": {"type": "object", "required": ["type"], "properties": {"type": _TEXT}},
}
_PROMPT = {
    "anyOf": [
        _TEXT,
        {"type": "array", "items": _TEXT},
        {"type": "array", "items": {"type": "integer"}},
    ]
}
# The members of each operation's body that the gateway reads; it passes on all others.
_MEMBERS: Mapping[Operation, tuple[tuple[str, ...], dict[str, Any]]] = {
    Operation.CHAT: (
        ("messages",),
        {
            "messages": {"type": "array", "items": _MESSAGE},
            "max_tokens": _COUNT,
            "max_completion_tokens": _COUNT,
            "n": _COUNT,
            "tools": _TOOLS,
            "response_format": {"type": "object"},
            **_STREAM,
            **_SAMPLING,
        },
    ),
    Operation.COMPLETIONS: (
        ("prompt",),
        {"prompt": _PROMPT, "max_tokens": _COUNT, "n": _COUNT, **_STREAM, **_SAMPLING},
    ),
    Operation.RESPONSES: (
        ("input",),
        {
            "input": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
            "instructions": _TEXT,
            "max_output_tokens": _COUNT,
            "previous_response_id": {"type": ["string", "null"]},
            "store": {"type": "boolean"},
            "tools": _TOOLS,
            "stream": {"type": "boolean"},
            **_SAMPLING,
        },
    ),
    Operation.EMBEDDINGS: (
        ("input",),
        {
            "input": _PROMPT,
            "dimensions": _COUNT,
            "encoding_format": {"enum": ["float", "base64"]},
        },
    ),
    Operation.MESSAGES: (
        ("messages", "max_tokens"),
        {
            "messages": {"type": "array", "items": _MESSAGE},
            "max_tokens": _COUNT,
            "system": _PROMPT,
            "tools": {"type": "array", "items": {"type": "object"}},
            "thinking": {"type": "object"},
            "stop_sequences": {"type": "array", "items": _TEXT},
            "stream": {"type": "boolean"},
        },
    ),
    Operation.RERANK: (
        ("query", "documents"),
        {"query": _TEXT, "documents": {"type": "array", "items": _TEXT}, "top_n": _COUNT},
    ),
    Operation.SCORE: (
        ("text_1", "text_2"),
        {"text_1": _PROMPT, "text_2": _PROMPT, "truncate_prompt_tokens": _COUNT},
    ),
}
_ERROR = {
    "description": "An error in the caller's dialect",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["message", "type", "param", "code"],
                        "properties": {
                            "message": _TEXT,
                            "type": _TEXT,
                            "param": {"type": ["string", "null"]},
                            "code": _TEXT,
                        },
                    }
                },
            }
        }
    },
}
_QUESTION = {
    "type": "object",
    "required": ["model"],
    "properties": {"model": _TEXT, "tokens": {"type": "integer", "minimum": 0}},
}


def complete(description: dict[str, Any]) -> dict[str, Any]:
    """Return FastAPI's description with all endpoints of the table, each with its key and
    errors.
    """
    paths = description["paths"]
    for endpoint in ENDPOINTS:
        operations = paths.setdefault(endpoint.path, {})
        described = operations.setdefault(endpoint.method.lower(), {"summary": endpoint.summary})
        if endpoint.operation is not None:
            described |= _forwarded(endpoint.operation)
        if endpoint.path == "/v1/route/explain":
            described["requestBody"] = _json_body(_QUESTION)
        described["responses"].pop("422", None)  # FastAPI's own; it checks nothing here
        described["responses"]["default"] = _ERROR
        described["security"] = [] if endpoint.open_because else [{"key": []}]
    components = description.setdefault("components", {})
    components.pop("schemas", None)  # those of FastAPI's own error
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return description


def _forwarded(operation: Operation) -> dict[str, Any]:
    """Return the description of a forwarding endpoint's body and answer."""
    required, members = _MEMBERS.get(operation, ((), {}))
    schema = {
        "type": "object",
        "required": ["model", *required],
        "properties": {"model": _TEXT, **members},
    }
    return {
        "description": "Members that are not listed pass through.",
        "requestBody": _json_body(schema),
        "responses": {"200": {"description": "The upstream's answer, with usage.cost_usd"}},
    }


def _json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a required JSON body of a schema."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}
