"""Judges requests by the published descriptions of their targets, which share nothing with ours."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from botocore.loaders import Loader
from botocore.model import ServiceModel


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
    texts = [block["text"] for block in [*blocks, *body.get("system", ())] if "text" in block]
    if any(not text.strip() for text in texts):
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
