"""Writes a neutral conversation as a generateContent request.

Left out without a loss are labels that no model reads: the name of a schema, and that of a file.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.gemini.contents import (
    contents_of,
    media_of,
    require_function_name,
    system_parts,
)
from gateway.wire.gemini.thinking import thinking_config, within
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    OutputFormat,
    ToolMode,
    ToolSpec,
)
from gateway.wire.translation.declared_tools import declared_tools
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import described

GENERATION = "generationConfig"
_THINKING = "thinkingConfig"
MAXIMUM = "maxOutputTokens"  # thoughts count inside it
MOST_STOPS = 5  # ai.google.dev/api/generate-content, `GenerationConfig`, 2026-11-29
# Gemini has no member for these values.
_NO_PLACE = ("min_p", "logit_bias", "user", "cache_key", "verbosity")
_MODES = {
    ToolMode.AUTO: "AUTO",
    ToolMode.NONE: "NONE",
    ToolMode.REQUIRED: "ANY",
    ToolMode.NAMED: "ANY",
}
_TIERS = {"default": "standard", "standard": "standard", "flex": "flex", "priority": "priority"}
_RESOLUTIONS = {"low": "MEDIA_RESOLUTION_LOW", "high": "MEDIA_RESOLUTION_HIGH"}


def write_gemini_request(
    conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None = None
) -> dict[str, Any]:
    """Return a conversation as the members of a generateContent request, without the maximum.
    `most_tokens` is the deployment's maximum of an answer, for a caller without one.

    Raises `Untranslatable`, also for a tool's result without its call.
    """
    losses.lose_others(conversation)
    losses.lose_values(conversation, *_NO_PLACE)
    if conversation.has_parallel_calls is False and conversation.tools:
        losses.lose(conversation.name_of("has_parallel_calls"), why="its models call in parallel")
    body: dict[str, Any] = {}
    if system := system_parts(conversation, losses):
        body["systemInstruction"] = {"parts": system}
    body["contents"] = contents_of(conversation, losses, model=model)
    _add_tools(body, conversation, losses)
    _add_tier(body, conversation, losses)
    body[GENERATION] = _generation(conversation, losses)
    maximum = conversation.most_tokens or most_tokens
    thinking = thinking_config(conversation, losses, model=model, maximum=maximum)
    if thinking is not None:
        body[GENERATION][_THINKING] = thinking
    return body


def with_maximum(body: dict[str, Any], maximum: int | None, *, model: str) -> dict[str, Any]:
    """Return a request's members with the maximum of its answer, which includes its thoughts."""
    if maximum is None:
        return body
    generation = {**body[GENERATION], MAXIMUM: maximum}
    if thinking := generation.get(_THINKING):
        generation[_THINKING] = within(thinking, maximum, model=model)
    return {**body, GENERATION: generation}


def _add_tools(body: dict[str, Any], conversation: Conversation, losses: Losses) -> None:
    """Add the declared functions and the caller's wish about calling them."""
    if conversation.tools:
        declarations = [_declaration(tool, losses) for tool in declared_tools(conversation)]
        body["tools"] = [{"functionDeclarations": declarations}]
    choice = conversation.tool_choice
    mode = ToolMode.AUTO if choice is None else choice.mode
    calling: dict[str, Any] = {"mode": _MODES[mode]}
    if choice is not None and choice.mode is ToolMode.NAMED:
        calling["allowedFunctionNames"] = [choice.name]
    if mode is ToolMode.AUTO and any(tool.is_strict for tool in conversation.tools):
        calling["mode"] = "VALIDATED"  # AUTO, with arguments that follow their schema
    if conversation.tools and (choice is not None or calling["mode"] == "VALIDATED"):
        body["toolConfig"] = {"functionCallingConfig": calling}


def _declaration(tool: ToolSpec, losses: Losses) -> dict[str, Any]:
    """Return the declaration of one function."""
    if tool.cache_control is not NO_JSON:
        losses.lose("cache_control", why="it caches prefixes by itself")
    require_function_name(tool.name)
    declaration: dict[str, Any] = {"name": tool.name}
    if tool.description:
        declaration["description"] = tool.description
    if tool.parameters is not NO_JSON:
        declaration["parametersJsonSchema"] = tool.parameters
    return declaration


def _add_tier(body: dict[str, Any], conversation: Conversation, losses: Losses) -> None:
    """Add the service tier. `auto` is OpenAI's word for the account's own, which is sent as
    nothing.
    """
    tier = conversation.service_tier
    if tier is None or tier == "auto":
        return
    if tier in _TIERS:
        body["serviceTier"] = _TIERS[tier]
    else:
        losses.lose(conversation.name_of("service_tier"), why=f"it has no tier {tier[:32]}")


def _generation(conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the settings of the answer, without its maximum."""
    sampling = conversation.sampling
    named: dict[str, Any] = {
        "temperature": sampling.temperature,
        "topP": sampling.top_p,
        "topK": sampling.top_k,
        "seed": sampling.seed,
        "presencePenalty": sampling.presence_penalty,
        "frequencyPenalty": sampling.frequency_penalty,
        "stopSequences": _stops(conversation, losses) or None,
        "candidateCount": conversation.choices if conversation.choices > 1 else None,
        "responseLogprobs": None if sampling.top_logprobs is None else True,
        "logprobs": sampling.top_logprobs or None,
        "mediaResolution": _resolution(conversation, losses),
    }
    if conversation.output_format is not None:
        named |= _format(conversation.output_format, conversation, losses)
    return {name: value for name, value in named.items() if value is not None}


def _stops(conversation: Conversation, losses: Losses) -> list[str]:
    """Return the stops, none if there are more than Gemini takes. An empty one stops nothing."""
    stops = [stop for stop in conversation.sampling.stop if stop]
    if len(stops) > MOST_STOPS:
        losses.lose(conversation.name_of("stop"), why=f"more than {MOST_STOPS}")
        return []
    return stops


def _format(
    output_format: OutputFormat, conversation: Conversation, losses: Losses
) -> dict[str, Any]:
    """Return the members for an answer in JSON."""
    members: dict[str, Any] = {"responseMimeType": "application/json"}
    if output_format.schema is not NO_JSON:
        members["responseJsonSchema"] = _described(output_format, conversation, losses)
    return members


def _described(output_format: OutputFormat, conversation: Conversation, losses: Losses) -> Any:
    """Return a schema with the description that OpenAI's callers give beside it."""
    if not output_format.description:
        return output_format.schema
    schema = described(output_format.schema, output_format.description)
    if schema is None:
        losses.lose(conversation.name_of("output_format.description"))
        return output_format.schema
    return schema


def _resolution(conversation: Conversation, losses: Losses) -> str | None:
    """Return the resolution of all pictures, if their callers ask for one and the same."""
    wishes = {
        media.detail
        for turn in conversation.turns
        for part in turn.parts
        for media in media_of(part)
        if media.detail not in ("", "auto")
    }
    if not wishes:
        return None
    wish = wishes.pop()
    if wishes or wish not in _RESOLUTIONS:
        losses.lose(conversation.name_of("detail"), why="all pictures have one of low and high")
        return None
    return _RESOLUTIONS[wish]
