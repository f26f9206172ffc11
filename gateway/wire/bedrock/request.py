"""Writes a neutral conversation as a request of Converse.

Members and bounds: botocore 1.44.8, data/bedrock-runtime/2023-09-30/service-2.json, 2026-11-24.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.bedrock.blocks import (
    MOST_TOOL_NAME_CHARS,
    cache_points,
    is_sent,
    write_messages,
    write_system,
)
from gateway.wire.translation.alternating_turns import system_of
from gateway.wire.translation.claude import (
    choice_for,
    effort_word,
    is_claude,
    leave_one_sampler,
    readable_stops,
    takes_forced_call,
    takes_sampling,
    thinking_of,
    within,
)
from gateway.wire.translation.conversation import (
    Conversation,
    Sampling,
    ToolMode,
    ToolSpec,
    is_forced,
)
from gateway.wire.translation.declared_tools import (
    called_tools,
    declared_tools,
    of_object_schema,
    require_legal_name,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import has_map, of_grammar

MOST_TEMPERATURE = 1.0
MOST_STOPS = 2500
# The maximum that a thinking budget is a share of, if caller and deployment name none: the least of
# the Claude models from 4 on.
DEFAULT_MAX_TOKENS = 32_000
_TIERS = frozenset({"default", "flex", "priority"})
_WITHOUT_PLACE = (
    "min_p",
    "seed",
    "logit_bias",
    "top_logprobs",
    "cache_key",
    "verbosity",
    "user",
)
_ZERO_IS_NONE = ("presence_penalty", "frequency_penalty")
# Members that a model's own dialect takes beside Converse's: Claude's (litellm 1.106.2,
# bedrock/chat/converse_transformation.py, 2026-11-24).
_OF_THE_MODEL = "additionalModelRequestFields"


def write_converse_request(
    conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None = None
) -> dict[str, Any]:
    """Return the members of a request, without its maximum; the address has the model.
    `most_tokens` is the deployment's maximum of an answer, for a caller without one.

    Raises `Untranslatable` and `InvalidRequest`.
    """
    losses.lose_others(conversation)
    losses.lose_values(conversation, *_WITHOUT_PLACE)
    for penalty in _ZERO_IS_NONE:
        if getattr(conversation.sampling, penalty):
            losses.lose(conversation.name_of(penalty))
    if conversation.choices > 1:
        losses.lose(conversation.name_of("choices"))
    if conversation.has_parallel_calls is False:
        losses.lose(conversation.name_of("has_parallel_calls"))
    body: dict[str, Any] = {}
    if system := write_system(system_of(conversation)):
        body["system"] = system
    body["messages"] = write_messages(conversation, losses, model=model)
    if tools := _tools(conversation, losses, model=model):
        body["toolConfig"] = tools
    own: dict[str, Any] = {}
    output = _output_config(conversation, losses)
    maximum = conversation.most_tokens or most_tokens or DEFAULT_MAX_TOKENS
    thinks = _reason(conversation, losses, model=model, maximum=maximum, own=own, output=output)
    inference = _sampling(conversation, losses, model=model, own=own, thinks=thinks)
    if inference:
        body["inferenceConfig"] = inference
    if output:
        body["outputConfig"] = output
    if own:
        body[_OF_THE_MODEL] = own
    tier = conversation.service_tier
    if tier in _TIERS:
        body["serviceTier"] = {"type": tier}
    elif tier not in (None, "auto"):
        losses.lose(conversation.name_of("service_tier"))
    return body


def with_maximum(body: dict[str, Any], maximum: int | None) -> dict[str, Any]:
    """Return a request's members with the maximum of its answer, which includes its thinking."""
    if maximum is None:
        return body
    inference = {"maxTokens": maximum, **body.get("inferenceConfig", {})}
    thinking = body.get(_OF_THE_MODEL, {}).get("thinking", {})
    if thinking.get("budget_tokens", 0) < maximum:
        return {**body, "inferenceConfig": inference}
    own = {**body[_OF_THE_MODEL], "thinking": within(thinking, maximum)}
    return {**body, "inferenceConfig": inference, _OF_THE_MODEL: own}


def _tools(conversation: Conversation, losses: Losses, *, model: str) -> dict[str, Any]:
    """Return the member `toolConfig`, empty without tools and calls.

    Converse refuses calls in earlier turns without it, so the tools that they name stand in for
    missing ones. It has no choice `none`: then the tools are left out, unless an earlier turn calls
    one.
    """
    if not conversation.tools:
        if is_forced(conversation.tool_choice):
            losses.lose(conversation.name_of("tool_choice"), why="there are no tools")
        called = [
            block
            for spec in called_tools(conversation)
            for block in _tool(spec, conversation, losses)
        ]
        return {"tools": called} if called else {}
    choice = choice_for(conversation, losses, model=model)
    mode = None if choice is None else choice.mode
    if mode is ToolMode.NONE:
        if not called_tools(conversation):
            return {}
        losses.lose(conversation.name_of("tool_choice"), why="earlier turns call tools")
    config: dict[str, Any] = {
        "tools": [
            block
            for spec in declared_tools(conversation)
            for block in _tool(spec, conversation, losses)
        ]
    }
    if choice is not None and mode is ToolMode.NAMED:
        config["toolChoice"] = {"tool": {"name": choice.name}}
    elif mode is ToolMode.REQUIRED:
        config["toolChoice"] = {"any": {}}
    elif mode is ToolMode.AUTO:
        config["toolChoice"] = {"auto": {}}
    return config


def _tool(spec: ToolSpec, conversation: Conversation, losses: Losses) -> list[dict[str, Any]]:
    """Return a function that the caller runs, and the point up to which the prompt is cached."""
    require_legal_name(spec.name, most_chars=MOST_TOOL_NAME_CHARS)
    spec = of_object_schema(spec, conversation, losses)
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    tool["inputSchema"] = {"json": spec.parameters}
    if spec.is_strict and has_map(spec.parameters):
        losses.leave_out(conversation.name_of("strict"))
    elif spec.is_strict:
        tool |= {"inputSchema": {"json": of_grammar(spec.parameters)}, "strict": True}
    return [{"toolSpec": tool}, *cache_points(spec.cache_control)]


def _output_config(conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the member `outputConfig` with the form of the answer, empty without one."""
    wanted = conversation.output_format
    if wanted is None:
        return {}
    if not is_sent(wanted.schema):
        losses.lose(conversation.name_of("output_format"), why="JSON needs a schema there")
        return {}
    if has_map(wanted.schema):
        losses.leave_out(conversation.name_of("output_format"))
    schema: dict[str, Any] = {"schema": bytes(of_grammar(wanted.schema)).decode()}
    if wanted.name:
        schema["name"] = wanted.name
    if wanted.description:
        schema["description"] = wanted.description
    return {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}}}


def _reason(
    conversation: Conversation,
    losses: Losses,
    *,
    model: str,
    maximum: int,
    own: dict[str, Any],
    output: dict[str, Any],
) -> bool:
    """Set the members of the caller's wish about reasoning; return True if the model thinks.

    Claude's `thinking` is a member of its own dialect. Every model takes an effort.
    """
    reasoning, name = conversation.reasoning, conversation.name_of("reasoning")
    if reasoning is None:
        return False
    effort = reasoning.effort
    if not is_claude(model):
        if effort == "none" or (effort is None and reasoning.budget_tokens is not None):
            losses.lose(name, why=f"{model} takes an effort from low to max")
        elif effort is not None:
            output["effort"] = effort_word(effort)
        return False
    thinking = thinking_of(conversation, losses, model=model, maximum=maximum)
    if thinking is None:
        return False
    is_without_room = is_forced(conversation.tool_choice) and takes_forced_call(model)
    if thinking["type"] != "disabled" and is_without_room:
        losses.lose(name, why="a forced tool call leaves no room for reasoning")
        return False
    own["thinking"] = thinking
    if thinking["type"] == "adaptive" and effort is not None:
        output["effort"] = effort_word(effort)
    return thinking["type"] != "disabled"


def _sampling(
    conversation: Conversation,
    losses: Losses,
    *,
    model: str,
    own: dict[str, Any],
    thinks: bool,
) -> dict[str, Any]:
    """Return the member `inferenceConfig`. A value that is everyone's default is left out."""
    sampling: Sampling = conversation.sampling
    members: dict[str, Any] = {}
    if sampling.temperature is not None and sampling.temperature != 1:
        members["temperature"] = sampling.temperature
    if sampling.top_p is not None and sampling.top_p != 1:
        members["topP"] = sampling.top_p
    if sampling.top_k is not None:
        members["top_k"] = sampling.top_k
    if thinks or (is_claude(model) and not takes_sampling(model)):
        why = "a model that reasons takes no sampling" if thinks else f"{model} takes no sampling"
        for name in members:
            losses.lose(conversation.name_of("top_p" if name == "topP" else name), why=why)
        members = {}
    if members.get("temperature", 0) > MOST_TEMPERATURE:
        losses.lose(conversation.name_of("temperature"), why="the range there is 0 to 1")
        del members["temperature"]
    leave_one_sampler(members, "topP", conversation, losses, model=model)
    if (top_k := members.pop("top_k", None)) is not None:
        if is_claude(model):
            own["top_k"] = top_k
        else:
            losses.lose(conversation.name_of("top_k"))
    stops = [stop for stop in sampling.stop if stop]
    if is_claude(model):
        stops = readable_stops(stops, conversation, losses)
    if len(stops) > MOST_STOPS:
        losses.lose(conversation.name_of("stop"), why=f"more than {MOST_STOPS}")
    elif stops:
        members["stopSequences"] = stops
    return members
