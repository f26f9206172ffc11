"""Judges chats and responses by OpenAI's published description, and Ollama's chats by its types."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from tests.oracles.requests.judges import SPECS, schema_faults, tool_faults

_CHAT, _RESPONSE = "CreateChatCompletionRequest", "CreateResponse"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_CALL_ID_CHARS = 40
_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_OF_MISTRAL = {
    *("model", "messages", "temperature", "top_p", "max_tokens", "stream", "stop", "random_seed"),
    *("metadata", "response_format", "tools", "tool_choice", "presence_penalty", "min_tokens"),
    *("frequency_penalty", "repetition_penalty", "top_k", "logprobs", "top_logprobs", "n"),
    *("prompt_logprobs", "top_prompt_logprobs", "prediction", "parallel_tool_calls", "guardrails"),
    *("reasoning_effort", "prompt_mode", "prompt_cache_key", "service_tier", "safe_prompt"),
}
_PARTS = ("text", "image_url", "document_url", "reference", "thinking", "input_audio")
_DEEPSEEK_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "ultra")


@cache
def _openai(name: str) -> Draft202012Validator:
    """Return the schema of a request in which no object has unknown members."""
    schemas = json.loads(gzip.decompress((SPECS / "openai-requests.json.gz").read_bytes()))["$defs"]
    parts = {one["$ref"].rpartition("/")[2] for one in _parts(schemas) if "$ref" in one}
    closed = {one: _closed(schema, is_part=one in parts) for one, schema in schemas.items()}
    members = {"propertyNames": {"enum": sorted(_members(schemas[name], schemas))}}
    return Draft202012Validator({"allOf": [{"$ref": f"#/$defs/{name}"}, members], "$defs": closed})


def _parts(value: Any) -> Iterator[Any]:
    """Yield the schemas that are parts of others: those have further members."""
    if isinstance(value, list):
        for one in value:
            yield from _parts(one)
    elif isinstance(value, dict):
        yield from value.get("allOf", ())
        yield from _parts([*value.values()])


def _members(schema: Any, schemas: dict[str, Any]) -> set[str]:
    """Return the names of a schema's members, those of its parts included."""
    found = set(schema.get("properties", ()))
    if "$ref" in schema:
        found |= _members(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    return found.union(*(_members(one, schemas) for one in schema.get("allOf", ())))


def _closed(schema: Any, *, is_part: bool = False) -> Any:
    """Return a schema without unknown members. Two alternatives may fit: a message of the system
    is one of two types.
    """
    if isinstance(schema, list):
        return [_closed(one, is_part=is_part) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        "anyOf" if name == "oneOf" else name: _closed(value, is_part=name == "allOf")
        for name, value in schema.items()
    }
    is_object = isinstance(schema.get("properties"), dict) and "type" in schema
    return found | ({"additionalProperties": False} if is_object and not is_part else {})


def chat_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of OpenAI's chats that a request breaks: its description's, and the
    messages of its errors (github.com/RamiAwar/dataline/issues/172,
    github.com/BerriAI/litellm/issues/17343; read 2026-11-29).
    """
    return [*schema_faults(_openai(_CHAT), body), *_chat_rules(body)]


def _chat_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of chats beside the types."""
    waiting: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield "a tool message must be a response to a preceding message with 'tool_calls'"
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            yield "'tool_calls' must be followed by tool messages responding to each of them"
        calls = message.get("tool_calls", ())
        waiting = [call["id"] for call in calls]
        if len(set(waiting)) < len(waiting):
            yield "two calls of one message have one id"
        if any(not 0 < len(one) <= _MOST_CALL_ID_CHARS for one in waiting):
            yield "the id of a call is empty or too long"
        if any(not _NAME.fullmatch(call["function"]["name"]) for call in calls):
            yield "the name of a call does not match its pattern"
    if waiting:
        yield "'tool_calls' must be followed by tool messages responding to each of them"
    functions = [tool["function"] for tool in body.get("tools", ())]
    if any(not _NAME.fullmatch(function["name"]) for function in functions):
        yield "the name of a tool does not match its pattern"
    schemas = [(one["name"], one["parameters"]) for one in functions if "parameters" in one]
    yield from (fault for fault in tool_faults(schemas) if "schema" in fault)
    if any("properties" not in schema for _, schema in schemas):
        yield "object schema missing properties"
    if not functions and ("tools" in body or "tool_choice" in body):
        yield "'tool_choice' is only allowed when 'tools' are specified"


def deepseek_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of DeepSeek's chats that a request breaks, by its messages of them
    (api-docs.deepseek.com/guides/thinking_mode, github.com/deepseek-ai/DeepSeek-V3/issues/1376,
    github.com/llm-exe/llm-exe/issues/662, github.com/theopenco/llmgateway/pull/3462; read
    2026-11-29).
    """
    return list(_deepseek_rules(body))


def _deepseek_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of DeepSeek."""
    thinks = body.get("thinking", {}).get("type") != "disabled"
    choice = body.get("tool_choice", "auto")
    if thinks and (isinstance(choice, dict) or choice == "required"):
        yield "Thinking mode does not support this tool_choice"
    if body.get("response_format", {}).get("type") not in (None, "text", "json_object"):
        yield "This response_format type is unavailable now"
    if body.get("reasoning_effort") not in (None, *_DEEPSEEK_EFFORTS):
        yield "an effort that it has not"
    for message in body["messages"]:
        if message["role"] not in ("system", "user", "assistant", "tool"):
            yield f"unknown variant `{message['role']}`"
        if thinks and "tool_calls" in message and "reasoning_content" not in message:
            yield "The `reasoning_content` in the thinking mode must be passed back to the API."


def mistral_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of Mistral's chats that a request breaks: the members and parts of mistralai
    3.7.0, client/models/, and the validator of mistral_common 1.13.1 (read 2026-11-29).
    """
    return list(_mistral_rules(body))


def _mistral_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of Mistral."""
    yield from (f"{name}: extra inputs are not permitted" for name in body.keys() - _OF_MISTRAL)
    if body.get("service_tier") not in (None, "auto", "standard_only"):
        yield "service_tier is 'auto' or 'standard_only'"
    before = ""
    for message in body["messages"]:
        role, content = message["role"].replace("developer", "system"), message["content"]
        if role == "system" and before in ("assistant", "tool"):
            yield f"Unexpected role 'system' after role '{before}'"
        if role == "user" and not isinstance(content, str):
            yield from (f"a part {one['type']}" for one in content if one["type"] not in _PARTS)
        ids = [call["id"] for call in message.get("tool_calls", ())]
        ids += [message["tool_call_id"]] if role == "tool" else []
        if any(not _MISTRAL_ID.fullmatch(one) for one in ids):
            yield "Tool call id must be a-z, A-Z, 0-9, with a length of 9"
        before = role
    if before not in ("user", "tool") and not body["messages"][-1].get("prefix"):
        yield f"Expected last role User or Tool (or Assistant with prefix) but got {before}"


def responses_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of OpenAI's responses that a request breaks."""
    return list(schema_faults(_openai(_RESPONSE), body))


@cache
def _ollama() -> Draft202012Validator:
    """Return the schema of a request to `/api/chat`."""
    return Draft202012Validator(json.loads((SPECS / "ollama-chat.json").read_bytes()))


def ollama_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of Ollama's `/api/chat` that a request breaks: its types', and
    `server/routes.go`.
    """
    faults = list(schema_faults(_ollama(), body))
    if not body["messages"]:
        faults.append("a request without messages loads the model alone")
    for message in body["messages"]:
        try:
            [b64decode(one, validate=True) for one in message.get("images", ())]
        except ValueError:
            faults.append("a picture is no base64")
    return faults
