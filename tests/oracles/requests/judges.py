"""Judges requests by the published descriptions of their targets, which share nothing with ours."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel
from jsonschema import Draft202012Validator

SPECS = Path(__file__).parent / "specs"
_GOOGLE = "GoogleCloudAiplatformV1beta1GenerateContentRequest"
# Members that Vertex's revision lacks: Google AI Studio's (google-genai 3.6.1, types.py).
_NEWER_AT_GOOGLE = {"serviceTier": {"type": "string"}}
# The SDK is of the version 2026-10-21, which lacks them; the gateway sends 2023-06-01.
_OLDER_AT_ANTHROPIC = {one: {"type": "number"} for one in ("temperature", "top_p", "top_k")}
_FUNCTION_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")  # by its description there
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_ALTERNATIVES = {"anyOf", "oneOf", "allOf"}
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@cache
def _converse() -> Any:
    """Return the shape of a request of Converse in botocore's service model."""
    model: Any = ServiceModel(Loader().load_service_model("bedrock-runtime", "service-2"))
    return model.operation_model("Converse").input_shape


def converse_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of Converse that a request breaks: those of the service's model, and those
    that it checks beside it.
    """
    return [*_against(_converse(), {"modelId": "m", **body}, ""), *_converse_rules(body)]


def _against(shape: Any, value: Any, path: str) -> Iterator[str]:
    """Yield each place at which a value breaks its shape: unlike botocore's own validator, by
    patterns, enumerations and upper bounds too.
    """
    kind = shape.type_name
    if getattr(shape, "is_document_type", False):
        return
    if kind == "structure":
        if not isinstance(value, dict):
            yield f"{path}: no object"
            return
        yield from (f"{path}.{name}: unknown" for name in value.keys() - shape.members.keys())
        yield from (f"{path}.{name}: missing" for name in {*shape.required_members} - value.keys())
        if getattr(shape, "is_tagged_union", False) and len(value) != 1:
            yield f"{path}: {len(value)} members of a union"
        for name in value.keys() & shape.members.keys():
            yield from _against(shape.members[name], value[name], f"{path}.{name}")
    elif kind == "list":
        if not isinstance(value, list):
            yield f"{path}: no list"
            return
        yield from _bounds(shape, len(value), path)
        for at, one in enumerate(value):
            yield from _against(shape.member, one, f"{path}[{at}]")
    elif kind in ("string", "blob"):
        if not isinstance(value, str):
            yield f"{path}: no text"
            return
        size = len(b64decode(value, validate=True)) if kind == "blob" else len(value)
        yield from _bounds(shape, size, path)
        if shape.metadata.get("enum") and value not in shape.metadata["enum"]:
            yield f"{path}: {value!r} is none of the words"
        pattern = shape.metadata.get("pattern")
        if pattern and not re.fullmatch(pattern, value):
            yield f"{path}: {value!r} does not match {pattern}"
    elif kind in ("integer", "float", "long", "double"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            yield f"{path}: no number"
            return
        yield from _bounds(shape, value, path)
    elif kind == "boolean" and not isinstance(value, bool):
        yield f"{path}: no truth value"


def _bounds(shape: Any, size: float, path: str) -> Iterator[str]:
    """Yield a fault if a size is outside a shape's bounds."""
    if size < shape.metadata.get("min", 0) or size > shape.metadata.get("max", size):
        yield f"{path}: {size} is out of bounds"


def _converse_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules that Converse checks beside its model, by its messages of them
    (github.com/langgenius/dify/issues/16421, maximhq/bifrost/issues/7003,
    NousResearch/hermes-agent/issues/55092, strands-agents/harness-sdk/pull/2123, and
    aws-samples/sample-multi-agent-orchestration-chat-on-agentcore/issues/15; read 2026-11-29).
    """
    blocks = [block for message in body["messages"] for block in message["content"]]
    yield from turn_faults(
        [
            (
                message["role"],
                [
                    block["toolUse"]["toolUseId"]
                    for block in message["content"]
                    if "toolUse" in block
                ],
                [
                    block["toolResult"]["toolUseId"]
                    for block in message["content"]
                    if "toolResult" in block
                ],
            )
            for message in body["messages"]
        ]
    )
    for message in body["messages"]:
        solid = [block for block in message["content"] if "cachePoint" not in block]
        are_results = ["toolResult" in block for block in solid]
        if are_results != sorted(are_results, reverse=True):
            yield "a text before a tool's result"
        kinds = {kind for block in solid for kind in block}
        if "document" in kinds and "text" not in kinds:
            yield "a document without a text in its message"
        if message["content"] and "cachePoint" in message["content"][0]:
            yield "a cache point before any content"
    inner = [one for block in blocks for one in block.get("toolResult", {}).get("content", ())]
    held = [*blocks, *inner, *body.get("system", ())]
    if any(not block["text"].strip() for block in held if "text" in block):
        yield "The text field in the ContentBlock object is blank"
    if any("toolUse" in one or "toolResult" in one for one in blocks) and "toolConfig" not in body:
        yield "The toolConfig field must be defined when using toolUse and toolResult"
    names = Counter(block["document"]["name"].lower() for block in blocks if "document" in block)
    yield from (f"two documents are named {name!r}" for name, number in names.items() if number > 1)
    for block in blocks:
        result = block.get("toolResult")
        if result is not None and not result["content"]:
            yield "a tool's result without content"
    config = body.get("toolConfig", {})
    specs = [tool["toolSpec"] for tool in config.get("tools", ()) if "toolSpec" in tool]
    form = body.get("outputConfig", {}).get("textFormat")
    grammars = [] if form is None else [json.loads(form["structure"]["jsonSchema"]["schema"])]
    grammars += [spec["inputSchema"]["json"] for spec in specs if spec.get("strict")]
    yield from (fault for one in grammars for fault in grammar_faults(one))
    yield from tool_faults([(spec["name"], spec["inputSchema"]["json"]) for spec in specs])
    chosen = config.get("toolChoice", {}).get("tool", {}).get("name")
    if chosen is not None and chosen not in {spec["name"] for spec in specs}:
        yield "the chosen tool is none of them"


def turn_faults(turns: list[tuple[str, list[str], list[str]]]) -> Iterator[str]:
    """Yield the broken rules of turns: of each its role, its calls' ids and its results' ids."""
    if not turns or turns[0][0] != "user":
        yield "A conversation must start with a user message"
    if any(before[0] == after[0] for before, after in pairwise(turns)):
        yield "Roles must alternate"
    every = [call for _, calls, _ in turns for call in calls]
    if len(set(every)) < len(every):
        yield "tool_use ids must be unique"
    calls_before: list[str] = []
    for _, calls, results in turns:
        if sorted(results) != sorted(calls_before):
            yield f"Expected results of {calls_before}, there are those of {results}"
        calls_before = calls


def tool_faults(tools: list[tuple[str, Any]]) -> Iterator[str]:
    """Yield the broken rules of tools: each with its name and the schema of its arguments."""
    names = [name for name, _ in tools]
    if len(set(names)) < len(names):
        yield "Tool names must be unique"
    if any(not isinstance(schema, dict) or schema.get("type") != "object" for _, schema in tools):
        yield "a schema's type must be object"
    if any(not _ALTERNATIVES.isdisjoint(schema) for _, schema in tools):
        yield "input_schema does not support oneOf, allOf, or anyOf at the top level"


@cache
def _messages() -> Draft202012Validator:
    """Return the schema of a messages request, in which no object has unknown members."""
    schema = json.loads(gzip.decompress((SPECS / "anthropic-messages.json.gz").read_bytes()))
    schema["properties"] |= _OLDER_AT_ANTHROPIC
    for name, one in [("", schema), *schema["$defs"].items()]:
        if "properties" in one and name != "InputSchemaTyped":
            one["additionalProperties"] = False
    return Draft202012Validator(schema)


@cache
def _generate_content() -> Draft202012Validator:
    """Return the schema of a generateContent request from Google's discovery document."""
    found = json.loads(gzip.decompress((SPECS / "google-generate-content.json.gz").read_bytes()))
    schemas = {name: _as_json_schema(one) for name, one in found["schemas"].items()}
    schemas[_GOOGLE]["properties"] |= _NEWER_AT_GOOGLE
    return Draft202012Validator({"$ref": f"#/$defs/{_GOOGLE}", "$defs": schemas})


def _as_json_schema(one: Any) -> Any:
    """Return a schema of a discovery document as a JSON schema without unknown members."""
    if isinstance(one, list):
        return [_as_json_schema(part) for part in one]
    if not isinstance(one, dict):
        return one
    if "$ref" in one:
        return {"$ref": f"#/$defs/{one['$ref']}"}
    kept = {"enum": one["enum"]} if "enum" in one else {}
    if (kind := one.get("type")) != "any":
        kept["type"] = kind
    if "items" in one:
        kept["items"] = _as_json_schema(one["items"])
    if "properties" in one:
        kept["properties"] = {n: _as_json_schema(part) for n, part in one["properties"].items()}
        kept["additionalProperties"] = False
    if kind == "string" and one.get("format") in ("int64", "uint64"):
        kept["type"] = ["string", "integer"]
    return kept


def schema_faults(validator: Draft202012Validator, body: Any) -> Iterator[str]:
    """Yield each place at which a request breaks a schema."""
    for fault in validator.iter_errors(body):
        place = ".".join("n" if isinstance(one, int) else one for one in fault.absolute_path)
        yield f"{place}: {fault.validator} {str(fault.message)[-160:]}"


def messages_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of Anthropic's messages that a request breaks: the SDK's types, and the
    messages of its errors (github.com/BerriAI/litellm/issues/3286,
    github.com/home-assistant/core/issues/175637; read 2026-11-29).
    """
    return [*schema_faults(_messages(), body), *_messages_rules(body)]


def _messages_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of messages beside the types."""
    contents = [(message["role"], message["content"]) for message in body["messages"]]
    blocks = [block for _, content in contents for block in content]
    inner = [one for block in blocks for one in block.get("content", ())]
    yield from turn_faults(
        [
            (
                role,
                [block["id"] for block in content if block["type"] == "tool_use"],
                [block["tool_use_id"] for block in content if block["type"] == "tool_result"],
            )
            for role, content in contents
        ]
    )
    for role, content in contents:
        are_results = [block["type"] == "tool_result" for block in content]
        if are_results != sorted(are_results, reverse=True):
            yield "tool_result blocks come first"
        if not content:
            yield "a message without content"
        if role == "user" and any(block["type"] == "thinking" for block in content):
            yield "a thought of the user"
    texts = [one["text"] for one in [*blocks, *inner, *body.get("system", ())] if "text" in one]
    if any(not text.strip() for text in texts):
        yield "text content blocks must contain non-whitespace text"
    last_role, last = contents[-1]
    if last_role == "assistant" and last[-1].get("text", "x")[-1:].isspace():
        yield "final assistant content cannot end with trailing whitespace"
    if any(not stop.strip() for stop in body.get("stop_sequences", ())):
        yield "each stop sequence must contain non-whitespace"
    for block in blocks:
        if block["type"] == "tool_result" and block.get("is_error") and not block.get("content"):
            yield "content cannot be empty if is_error is true"
        if block["type"] == "tool_use" and not (
            _ID.fullmatch(block["id"]) and _TOOL_NAME.fullmatch(block["name"])
        ):
            yield "the id or name of a call does not match its pattern"
    tools = body.get("tools", ())
    yield from tool_faults([(one["name"], one["input_schema"]) for one in tools])
    form = body.get("output_config", {}).get("format")
    grammars = [] if form is None else [form["schema"]]
    grammars += [one["input_schema"] for one in tools if one.get("strict")]
    yield from (fault for one in grammars for fault in grammar_faults(one))


# platform.claude.com/docs and docs.aws.amazon.com/bedrock, "Structured outputs", as
# repo.hex.pm/docs/lang_schema-0.7.1 quotes them, and `transform_schema` of anthropic 2.14.0.
_OF_GRAMMARS = {
    *("type", "enum", "const", "anyOf", "allOf", "$ref", "$defs", "definitions", "title"),
    *("properties", "required", "additionalProperties", "items", "minItems", "format"),
    "description",
}
_SUBSCHEMAS = ("properties", "$defs", "definitions")


def grammar_faults(schema: Any) -> Iterator[str]:
    """Yield the rules of structured outputs that a schema of an answer or a strict tool breaks."""
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")
    yield from (f"property '{name}' is not supported" for name in schema.keys() - _OF_GRAMMARS)
    is_object = "properties" in schema or "object" in (kind if isinstance(kind, list) else [kind])
    if is_object and schema.get("additionalProperties") is not False:
        yield "For 'object' type, 'additionalProperties' must be explicitly set to false"
    if schema.get("minItems", 0) not in (0, 1):
        yield "minItems of more than 1 is not supported"
    if any(isinstance(one, dict | list) for one in [*schema.get("enum", ()), schema.get("const")]):
        yield "a literal that is no primitive"
    if "$ref" in schema and schema.keys() - {"$ref", "$defs", "definitions"}:
        yield "a reference beside other keywords"
    if any("$ref" in one for one in schema.get("allOf", ()) if isinstance(one, dict)):
        yield "allOf with a reference"
    parts = [one for name in _SUBSCHEMAS for one in schema.get(name, {}).values()]
    parts += [one for name in ("anyOf", "allOf") for one in schema.get(name, ())]
    for one in [*parts, schema.get("items")]:
        yield from grammar_faults(one)


def one_sampler(
    judge: Callable[[dict[str, Any]], list[str]],
) -> Callable[[dict[str, Any]], list[str]]:
    """Return the judge of models that take temperature or top_p, by the message of their error
    (github.com/open-webui/functions/pull/9, platform.claude.com/docs, "Migrating to Claude 4.5").
    """

    def faults(body: dict[str, Any]) -> list[str]:
        sampling = body.get("inferenceConfig", body)
        has_both = "temperature" in sampling and not {"top_p", "topP"}.isdisjoint(sampling)
        fault = "`temperature` and `top_p` cannot both be specified for this model"
        return [*judge(body), *([fault] if has_both else [])]

    return faults


def without_prefill(
    judge: Callable[[dict[str, Any]], list[str]],
) -> Callable[[dict[str, Any]], list[str]]:
    """Return the judge of models that continue no turn of their own, by the message of their error
    (github.com/langchain-ai/deepagents/issues/1585, github.com/anomalyco/opencode/issues/29760).
    """

    def faults(body: dict[str, Any]) -> list[str]:
        is_prefilled = any(one["role"] == "assistant" for one in body["messages"][-1:])
        fault = "This model does not support assistant message prefill"
        return [*judge(body), *([fault] if is_prefilled else [])]

    return faults


def thinking_of(
    judge: Callable[[dict[str, Any]], list[str]], *taken: int | str
) -> Callable[[dict[str, Any]], list[str]]:
    """Return the judge of a model of Gemini that takes a budget from the first of `taken` on or,
    by the words, these levels (docs.cloud.google.com, "Thinking"; read 2026-11-29).
    """

    def faults(body: dict[str, Any]) -> list[str]:
        config = body.get("generationConfig", {}).get("thinkingConfig", {})
        budget, level = config.get("thinkingBudget", -1), config.get("thinkingLevel")
        is_low = isinstance(taken[0], int) and -1 < budget < taken[0]
        is_odd = level is not None and level not in taken
        return [*judge(body), *(["the thinking is not supported"] if is_low or is_odd else [])]

    return faults


def generate_content_faults(body: dict[str, Any]) -> list[str]:
    """Return the rules of Gemini that a request breaks: its discovery document's, and the messages
    of its errors about turns and calls.
    """
    return [*schema_faults(_generate_content(), body), *_gemini_rules(body)]


def _gemini_rules(body: dict[str, Any]) -> Iterator[str]:
    """Yield the broken rules of Gemini beside its types."""
    contents = body["contents"]
    if len(body.get("generationConfig", {}).get("stopSequences", ())) > 5:
        yield "more than 5 stop sequences"
    if not contents or contents[0]["role"] != "user":
        yield "the first turn is not the user's"
    calls_before = 0
    for content in contents:
        parts = content["parts"]
        results = sum("functionResponse" in part for part in parts)
        if not parts:
            yield "a content without parts"
        if results != calls_before:
            yield "the number of function response parts is not that of the calls before"
        if 0 < results < len(parts):
            yield "results beside other parts"
        calls_before = sum("functionCall" in part for part in parts)
    parts = [part for content in contents for part in content["parts"]]
    if any(part.get("text") == "" for part in parts):
        yield "an empty text"
    calls = [part["functionCall"]["name"] for part in parts if "functionCall" in part]
    results_of = [part["functionResponse"]["name"] for part in parts if "functionResponse" in part]
    if sorted(calls) != sorted(results_of):
        yield "a result of another function"
    declared = [
        one["name"] for tool in body.get("tools", ()) for one in tool["functionDeclarations"]
    ]
    if len(set(declared)) < len(declared):
        yield "Duplicate function declaration found"
    if any(not _FUNCTION_NAME.fullmatch(name) for name in [*calls, *declared]):
        yield "a function's name does not match its pattern"
