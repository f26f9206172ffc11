"""Writes a neutral conversation as a request of Anthropic's messages, of the version 2023-06-01:
that of 2026-10-21 refuses sampling parameters.
"""

from __future__ import annotations

from typing import Any

from gateway.wire.anthropic.translation.upstream_blocks import (
    has_unsigned_calls,
    is_sent,
    with_cache,
    write_messages,
    write_texts,
)
from gateway.wire.translation.alternating_turns import system_of
from gateway.wire.translation.claude import (
    choice_for,
    effort_word,
    leave_one_sampler,
    readable_stops,
    takes_adaptive,
    takes_forced_call,
    takes_sampling,
    thinking_of,
    within,
)
from gateway.wire.translation.conversation import (
    MOST_TOOL_NAME_CHARS,
    Conversation,
    OutputFormat,
    Sampling,
    ToolChoice,
    ToolMode,
    ToolSpec,
    is_forced,
)
from gateway.wire.translation.declared_tools import (
    declared_tools,
    of_object_schema,
    require_legal_name,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import described, has_map, of_grammar

# The maximum that is sent if caller, route and deployment name none: the least of the models from
# Claude 4 on (Opus 4 and 4.1; litellm 1.106.2, price map, 2026-11-24).
DEFAULT_MAX_TOKENS = 32_000
MOST_TEMPERATURE = 1.0
_TIERS = {"default": "standard_only", "standard_only": "standard_only", "auto": "auto"}
_MODES = {ToolMode.AUTO: "auto", ToolMode.NONE: "none", ToolMode.REQUIRED: "any"}
_WITHOUT_PLACE = ("min_p", "seed", "logit_bias", "top_logprobs", "cache_key", "verbosity")
_ZERO_IS_NONE = ("presence_penalty", "frequency_penalty")


def write_messages_request(
    conversation: Conversation, losses: Losses, *, model: str = "", most_tokens: int | None = None
) -> dict[str, Any]:
    """Return the members of a request, without its model, its maximum and `stream`. `most_tokens`
    is the deployment's maximum of an answer, for a caller without one.

    Raises `Untranslatable` and `InvalidRequest`.
    """
    losses.lose_others(conversation)
    losses.lose_values(conversation, *_WITHOUT_PLACE)
    for penalty in _ZERO_IS_NONE:
        if getattr(conversation.sampling, penalty):
            losses.lose(conversation.name_of(penalty))
    if conversation.choices > 1:
        losses.lose(conversation.name_of("choices"))
    body: dict[str, Any] = {}
    if system := write_texts(system_of(conversation)):
        body["system"] = system
    body["messages"] = write_messages(conversation, losses, model=model)
    body |= _tools(conversation, losses, model=model)
    output_config = _output_config(conversation, losses)
    thinking = _thinking(conversation, losses, model=model, most_tokens=most_tokens)
    if thinking is not None:
        body["thinking"] = thinking
        effort = conversation.reasoning and conversation.reasoning.effort
        if thinking["type"] == "adaptive" and effort:
            output_config["effort"] = effort_word(effort)
    if output_config:
        body["output_config"] = output_config
    body |= _sampling(conversation, losses, model=model, thinks=_thinks(thinking))
    if conversation.user is not None:
        body["metadata"] = {"user_id": conversation.user}
    if conversation.service_tier is not None:
        tier = _TIERS.get(conversation.service_tier)
        if tier is None:
            losses.lose(conversation.name_of("service_tier"))
        elif tier != "auto":
            body["service_tier"] = tier
    return body


def with_maximum(body: dict[str, Any], maximum: int) -> dict[str, Any]:
    """Return a request's members with the maximum of its answer, which includes its thinking."""
    thinking = body.get("thinking")
    if thinking is None or thinking.get("budget_tokens", 0) < maximum:
        return {**body, "max_tokens": maximum}
    return {**body, "thinking": within(thinking, maximum), "max_tokens": maximum}


def _thinks(thinking: dict[str, object] | None) -> bool:
    """Return True if the model is asked to think."""
    return thinking is not None and thinking["type"] != "disabled"


def _thinking(
    conversation: Conversation, losses: Losses, *, model: str, most_tokens: int | None
) -> dict[str, object] | None:
    """Return the member `thinking`; lose a wish that the model would refuse."""
    maximum = conversation.most_tokens or most_tokens or DEFAULT_MAX_TOKENS
    thinking = thinking_of(conversation, losses, model=model, maximum=maximum)
    if not _thinks(thinking):
        return thinking
    name = conversation.name_of("reasoning")
    if not takes_adaptive(model) and has_unsigned_calls(conversation):
        losses.lose(name, why="the reasoning before the last tool call is not signed")
        return None
    if is_forced(conversation.tool_choice) and takes_forced_call(model):
        losses.lose(name, why="a forced tool call leaves no room for reasoning")
        return None
    return thinking


def _tools(conversation: Conversation, losses: Losses, *, model: str) -> dict[str, Any]:
    """Return the members `tools` and `tool_choice`."""
    members = dict[str, Any]()
    if not conversation.tools:
        if is_forced(conversation.tool_choice):
            losses.lose(conversation.name_of("tool_choice"), why="there are no tools")
        return members
    choice = choice_for(conversation, losses, model=model)
    members["tools"] = [_tool(spec, conversation, losses) for spec in declared_tools(conversation)]
    is_single = conversation.has_parallel_calls is False
    if choice is None and is_single:
        choice = ToolChoice(mode=ToolMode.AUTO)
    if choice is None:
        return members
    wanted: dict[str, Any]
    if choice.mode is ToolMode.NAMED:
        wanted = {"type": "tool", "name": choice.name}
    else:
        wanted = {"type": _MODES[choice.mode]}
    if is_single and choice.mode is not ToolMode.NONE:
        wanted["disable_parallel_tool_use"] = True
    members["tool_choice"] = wanted
    return members


def _tool(spec: ToolSpec, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return a function that the caller runs."""
    require_legal_name(spec.name, most_chars=MOST_TOOL_NAME_CHARS)
    spec = of_object_schema(spec, conversation, losses)
    tool: dict[str, Any] = {"name": spec.name}
    if spec.description:
        tool["description"] = spec.description
    tool["input_schema"] = spec.parameters
    if spec.is_strict and has_map(spec.parameters):
        losses.leave_out(conversation.name_of("strict"))
    elif spec.is_strict:
        tool |= {"input_schema": of_grammar(spec.parameters), "strict": True}
    return with_cache(tool, spec.cache_control)


def _output_config(conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the member `output_config` with the form of the answer, empty without one.

    The dialect always keeps to a schema and gives it no name, so neither is lost.
    """
    wanted = conversation.output_format
    if wanted is None:
        return {}
    if not is_sent(wanted.schema):
        losses.lose(conversation.name_of("output_format"), why="JSON needs a schema there")
        return {}
    if has_map(wanted.schema):
        losses.leave_out(conversation.name_of("output_format"))
    return {"format": {"type": "json_schema", "schema": schema_of(wanted)}}


def schema_of(wanted: OutputFormat) -> Any:
    """Return the schema of an answer, with the caller's description of it if it has none."""
    schema = wanted.schema
    if wanted.description:
        schema = described(schema, wanted.description) or schema
    return of_grammar(schema)


def _sampling(
    conversation: Conversation, losses: Losses, *, model: str, thinks: bool
) -> dict[str, Any]:
    """Return the members of sampling. A value that is the default of both dialects is left out."""
    sampling: Sampling = conversation.sampling
    members: dict[str, Any] = {}
    if sampling.temperature is not None and sampling.temperature != 1:
        members["temperature"] = sampling.temperature
    if sampling.top_p is not None and sampling.top_p != 1:
        members["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        members["top_k"] = sampling.top_k
    if thinks or not takes_sampling(model):
        why = "a model that reasons takes no sampling" if thinks else f"{model} takes no sampling"
        for name in members:
            losses.lose(conversation.name_of(name), why=why)
        members = {}
    elif members.get("temperature", 0) > MOST_TEMPERATURE:
        losses.lose(conversation.name_of("temperature"), why="the range there is 0 to 1")
        del members["temperature"]
    leave_one_sampler(members, "top_p", conversation, losses, model=model)
    if stops := readable_stops(sampling.stop, conversation, losses):
        members["stop_sequences"] = stops
    return members
