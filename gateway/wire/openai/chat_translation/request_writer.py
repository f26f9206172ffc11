"""Writes a neutral conversation as a chat request.

A message of text alone has it as one string, its pieces on lines of their own: several servers read
a string alone (DeepSeek's, templates for text), and the others join pieces the same way (vLLM's
`chat_utils.py`, llama.cpp's `chat.cpp`, Anthropic's chat endpoint). Thoughts of earlier turns are
sent to a provider that needs its own ones back: none reads those of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gateway.domain.providers.table import OPENAI_COMPATIBLE, PROVIDERS, ProviderFacts
from gateway.wire.openai.chat_translation.media_parts import media_part
from gateway.wire.openai.chat_translation.usage_members import known
from gateway.wire.translation.alternating_turns import FILLER, answered
from gateway.wire.translation.conversation import (
    NO_JSON,
    Conversation,
    ConversationTurn,
    Media,
    Role,
    TextPart,
    Thought,
    ToolCall,
    ToolMode,
    ToolResult,
    ToolSpec,
    is_forced,
)
from gateway.wire.translation.declared_tools import (
    called_tools,
    has_schema,
    of_object_schema,
    require_legal_name,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.schemas import with_properties

MOST_USER_CHARS = 64  # OpenAI refuses a longer `safety_identifier` (its description, 2026-08-21)
MOST_TOOL_NAME_CHARS = 64  # OpenAI's, too
_ANY_SERVER = PROVIDERS[OPENAI_COMPATIBLE]
# Bounds of reasoning as OpenAI's words, from the limits of litellm 1.106.2
# (`litellm_core_utils/reasoning_effort_utils.py` and `constants.py`, read 2026-11-24).
_EFFORTS_BELOW_TOKENS = ((1, "none"), (1_024, "minimal"), (2_048, "low"), (4_096, "medium"))


def write_chat_request(
    conversation: Conversation,
    losses: Losses,
    *,
    model: str,
    facts: ProviderFacts = _ANY_SERVER,
    maximum_members: Sequence[str] = ("max_completion_tokens",),
) -> bytes:
    """Return a conversation as the body of a chat request.

    `facts` are those of the server's provider. `maximum_members` are those that get the
    caller's maximum. Raises `Untranslatable`.
    """
    takes_top_k = facts.is_engine  # and `min_p`
    _lose(conversation, losses, takes_top_k=takes_top_k)
    for spec in (*conversation.tools, *called_tools(conversation)) if facts.checks_tools else ():
        require_legal_name(spec.name, most_chars=MOST_TOOL_NAME_CHARS)
    sampling = conversation.sampling
    thinks = _thinks(conversation, losses, facts)
    body: dict[str, Any] = {
        "model": model,
        "messages": _messages(conversation, losses, facts),
        "tools": [_tool(tool, conversation, losses, facts) for tool in conversation.tools] or None,
        "tool_choice": _tool_choice(conversation),
        "parallel_tool_calls": conversation.has_parallel_calls if conversation.tools else None,
        "response_format": _response_format(conversation, losses, facts),
        "reasoning_effort": _effort(conversation) if thinks else None,
        "thinking": None if thinks else {"type": "disabled"},
        **dict.fromkeys(maximum_members, conversation.most_tokens),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k if takes_top_k else None,
        "min_p": sampling.min_p if takes_top_k else None,
        "seed": sampling.seed,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": _stop(conversation, losses, facts),
        "logit_bias": None if sampling.logit_bias is NO_JSON else sampling.logit_bias,
        "logprobs": None if sampling.top_logprobs is None else True,
        "top_logprobs": sampling.top_logprobs or None,
        "n": conversation.choices if conversation.choices > 1 else None,
        "service_tier": _tier(conversation, losses, facts),
        "user": _user(conversation, losses),
        "prompt_cache_key": conversation.cache_key,
        "verbosity": conversation.verbosity,
        "stream": True if conversation.is_stream else None,
    }
    return msgspec.json.encode(known(body))


def _lose(conversation: Conversation, losses: Losses, *, takes_top_k: bool) -> None:
    """Lose the fields that no chat has a place for."""
    losses.lose_others(conversation)
    if not takes_top_k:
        losses.lose_values(conversation, "top_k", "min_p")
    turns = [part for turn in conversation.turns for part in turn.parts]
    results = [part for part in turns if isinstance(part, ToolResult)]
    inner = [part for result in results for part in result.parts]
    marked = [*conversation.system, *turns, *inner, *conversation.tools]
    if any(getattr(one, "cache_control", NO_JSON) is not NO_JSON for one in marked):
        losses.lose("cache_control")
    if any(result.is_error for result in results):
        losses.lose("is_error", why="a tool message has text alone")


def _messages(
    conversation: Conversation, losses: Losses, facts: ProviderFacts
) -> list[dict[str, Any]]:
    """Return the messages of a chat. The results of calls follow them at once, because servers
    refuse anything between them.
    """
    found: list[dict[str, Any]] = []
    if conversation.system:
        found.append({"role": "system", "content": _joined(conversation.system)})
    for turn in answered(conversation, losses, legal_id=_id):
        if turn.role is Role.ASSISTANT:
            found.append(_assistant_message(turn, losses, facts))
        else:
            found += [
                _result(part, conversation, losses)
                for part in turn.parts
                if isinstance(part, ToolResult)
            ]
            found += _user_messages(turn, losses, facts)
    found = found or [{"role": "user", "content": FILLER}]
    if not facts.takes_late_system and found[-1]["role"] == "system":
        found[-1]["role"] = "user"  # nothing else was sent, and no answer follows a system's text
    if facts.marks_prefix and found[-1]["role"] == "assistant":
        found[-1]["prefix"] = True
    return found


def _id(call_id: str) -> str:
    """Return the id of a call, one for a call without any."""
    return call_id or "call"


def _user_messages(
    turn: ConversationTurn, losses: Losses, facts: ProviderFacts
) -> list[dict[str, Any]]:
    """Return the message of one turn of the user, none if it has only results of tools."""
    parts = [part for part in turn.parts if isinstance(part, TextPart | Media)]
    if not parts:
        return []
    role = "system" if turn.is_instruction and facts.takes_late_system else "user"
    message = {"role": role, "content": _content(parts, losses, facts)}
    return [message | ({"name": turn.name} if turn.name else {})]


def _result(result: ToolResult, conversation: Conversation, losses: Losses) -> dict[str, Any]:
    """Return the message of a tool's result."""
    content = _result_text(result, conversation, losses)
    return {"role": "tool", "tool_call_id": result.call_id, "content": content}


def _result_text(result: ToolResult, conversation: Conversation, losses: Losses) -> str:
    """Return the text of a tool's result; a chat has no place there for anything else."""
    for part in result.parts:
        if isinstance(part, Media):
            name = f"{conversation.name_of('tool_result')}.{conversation.name_of(part.kind)}"
            losses.lose(name, why="a tool message has text alone")
    return _joined(part for part in result.parts if isinstance(part, TextPart))


def _assistant_message(
    turn: ConversationTurn, losses: Losses, facts: ProviderFacts
) -> dict[str, Any]:
    """Return an earlier answer of the model as a message."""
    for part in turn.parts:
        if isinstance(part, Media):
            losses.lose(f"assistant.{part.kind}", why="a chat's answer has text alone")
    texts = [part for part in turn.parts if isinstance(part, TextPart)]
    words = [part for part in texts if not part.is_refusal]
    refusals = [part for part in texts if part.is_refusal]
    calls = [_call(part) for part in turn.parts if isinstance(part, ToolCall)]
    message: dict[str, Any] = {"role": "assistant", "content": _joined(words) if words else None}
    if facts.needs_thoughts:
        # Without the member the whole request is refused; a turn of another model may have none.
        thoughts = [part for part in turn.parts if isinstance(part, Thought)]
        own = [one for one in thoughts if one.text and not one.signature]
        message["reasoning_content"] = _joined(own)
    if refusals:
        message["refusal"] = _joined(refusals)
    if calls:
        message["tool_calls"] = calls
    if not calls and not texts:
        message["content"] = ""
    return message | ({"name": turn.name} if turn.name else {})


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a call of an earlier answer."""
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    written = {"id": call.call_id, "type": "function", "function": function}
    if call.signature:
        written["extra_content"] = {"google": {"thought_signature": call.signature}}
    return written


def _content(
    parts: list[TextPart | Media], losses: Losses, facts: ProviderFacts
) -> str | list[dict[str, Any]]:
    """Return the content of a message: a string if it is text alone."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, TextPart):
            found.append({"type": "text", "text": part.text})
        elif (
            media := media_part(part, losses, documents_by_url=facts.documents_by_url)
        ) is not None:
            found.append(media)
    if any(part["type"] != "text" for part in found):
        return found
    return "\n".join(part["text"] for part in found)


def _joined(parts: Iterable[TextPart | Thought]) -> str:
    """Return pieces of text as one."""
    return "\n".join(part.text for part in parts)


def _stop(
    conversation: Conversation, losses: Losses, facts: ProviderFacts
) -> tuple[str, ...] | None:
    """Return the stops, if they are no more than the server takes."""
    stop = conversation.sampling.stop
    if facts.most_stops is not None and len(stop) > facts.most_stops:
        losses.lose(conversation.name_of("stop"), why=f"more than {facts.most_stops}")
        return None
    return stop or None


def _tool(
    tool: ToolSpec, conversation: Conversation, losses: Losses, facts: ProviderFacts
) -> dict[str, Any]:
    """Return a function among the tools."""
    if facts.checks_tools:
        tool = of_object_schema(tool, conversation, losses)
    function = {
        "name": tool.name,
        "description": tool.description or None,
        "parameters": with_properties(tool.parameters) if has_schema(tool) else None,
        "strict": tool.is_strict,
    }
    return {"type": "function", "function": known(function)}


def _tool_choice(conversation: Conversation) -> str | dict[str, Any] | None:
    """Return the wish about tool calls. Servers refuse one without tools, and it has no meaning."""
    choice = conversation.tool_choice
    if choice is None or not conversation.tools:
        return None
    if choice.mode is ToolMode.NAMED:
        return {"type": "function", "function": {"name": choice.name}}
    return choice.mode.value


def _response_format(
    conversation: Conversation, losses: Losses, facts: ProviderFacts
) -> dict[str, Any] | None:
    """Return the wanted form of the answer; lose a schema that the provider refuses."""
    wanted = conversation.output_format
    if wanted is None:
        return None
    if wanted.schema is NO_JSON:
        return {"type": "json_object"}
    if not facts.takes_schemas:
        losses.lose(conversation.name_of("output_format"), why="it takes JSON without a schema")
        return None
    schema = {
        "name": wanted.name or "answer",
        "description": wanted.description or None,
        "schema": wanted.schema,
        "strict": wanted.is_strict,
    }
    return {"type": "json_schema", "json_schema": known(schema)}


def _thinks(conversation: Conversation, losses: Losses, facts: ProviderFacts) -> bool:
    """Return True unless a provider's switch of thinking is turned off, as the caller wishes or as
    a forced call needs it; then another wish about reasoning is lost.
    """
    if not facts.switches_thinking:
        return True
    effort = _effort(conversation)
    if effort == "none":
        return False
    if not (is_forced(conversation.tool_choice) and conversation.tools):
        return True
    wish = conversation.reasoning
    if effort is not None or (wish is not None and wish.is_adaptive):
        name = conversation.name_of("reasoning")
        losses.lose(name, why="a forced tool call leaves no room for reasoning")
    return False


def _effort(conversation: Conversation) -> str | None:
    """Return the wish about reasoning as one of OpenAI's words."""
    wish = conversation.reasoning
    if wish is None or wish.effort is not None:
        return None if wish is None else wish.effort
    if wish.budget_tokens is None:
        return None
    budget_tokens = wish.budget_tokens
    return next((word for most, word in _EFFORTS_BELOW_TOKENS if budget_tokens < most), "high")


def _tier(conversation: Conversation, losses: Losses, facts: ProviderFacts) -> str | None:
    """Return the service tier, if the provider has its word."""
    tier = conversation.service_tier
    if tier == "default" and "standard_only" in facts.tiers:
        return "standard_only"  # the same, in Anthropic's and Mistral's word
    if tier is not None and tier not in facts.tiers:
        losses.lose_values(conversation, "service_tier")
        return None
    return tier


def _user(conversation: Conversation, losses: Losses) -> str | None:
    """Return the end user's name, if it is short enough."""
    if conversation.user is not None and len(conversation.user) > MOST_USER_CHARS:
        losses.lose(conversation.name_of("user"), why=f"more than {MOST_USER_CHARS} letters")
        return None
    return conversation.user
