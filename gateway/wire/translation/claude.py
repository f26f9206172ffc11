"""Derives the members that a Claude model accepts from its name, for every provider of it.

Sources: platform.claude.com/docs, "Adaptive thinking" (read in a translation), and litellm 1.110.2,
price map (`supports_adaptive_thinking`, `supports_sampling_params`); both 2026-11-24.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gateway.wire.translation.conversation import (
    Conversation,
    Reasoning,
    ToolChoice,
    ToolMode,
    is_forced,
)
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.thinking_budget import half_of, leaves_room

LEAST_BUDGET_TOKENS = 1024  # Anthropic's minimum; the budget must be below the maximum
_ADAPTIVE = (4, 6)  # from here on a model chooses its budget by itself
# From here on a request that ends with the model's own text is refused (github.com/langchain-ai/
# deepagents/issues/1585 and github.com/anomalyco/opencode/issues/29760, at Bedrock; 2026-11-29).
_NO_PREFILL = (4, 6)
# From Opus 4.1 on one of temperature and top_p is taken (platform.claude.com/docs, "Migrating to
# Claude 4.5", and github.com/open-webui/functions/pull/9 for Opus 4.1; 2026-11-29).
_ONE_SAMPLER = (4, 1)
# From here on temperature, top_p and top_k are refused, and so is a budget of thinking
# (github.com/NousResearch/hermes-agent/issues/11137 has the error, 2026-11-24).
_NO_SAMPLING = _NO_BUDGET = (4, 7)
# Models whose thinking cannot be disabled, so that they refuse a forced tool call, too
# (platform.claude.com/docs, "What's new in Claude Opus 5.5", read in translations, 2026-11-24).
_ALWAYS_THINKS = re.compile(r"claude-(?:opus-5[-.]5|fable-5[-.]1)(?!\d)")
_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2})(?!\d))?")
# The share of the maximum that an effort spends on thinking: OpenRouter's published rule for models
# that take a budget only (openrouter.ai/docs/use-cases/reasoning-tokens, 2026-11-24, has `low` to
# `high`; the others are its rule as two public projects quote it).
_SHARES = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95, "max": 0.95}
_WORDS = {"minimal": "low"}  # Anthropic has no lower effort


def takes_adaptive(model: str) -> bool:
    """Return True if a model chooses its thinking by an effort; False if it takes a budget only.

    A name that shows no version is a newer one.
    """
    version = _version(model)
    return version is None or version >= _ADAPTIVE


def takes_prefill(model: str) -> bool:
    """Return True if a model continues a last turn of its own; one not of Claude's may."""
    version = _version(model)
    return not is_claude(model) or (version is not None and version < _NO_PREFILL)


def takes_sampling(model: str) -> bool:
    """Return True if a model takes temperature, top_p and top_k."""
    version = _version(model)
    return version is None or version < _NO_SAMPLING


def leave_one_sampler(
    members: dict[str, Any], top_p: str, conversation: Conversation, losses: Losses, *, model: str
) -> None:
    """Leave top_p, whose member has the name `top_p`, out beside a temperature if a model refuses
    both. It is named, and never a reason to refuse: clients send both by default.
    """
    version = _version(model)
    takes_both = not is_claude(model) or (version is not None and version < _ONE_SAMPLER)
    if "temperature" in members and top_p in members and not takes_both:
        del members[top_p]
        losses.leave_out(conversation.name_of("top_p"))


def takes_budget(model: str) -> bool:
    """Return True if a model takes a budget of tokens for its thinking."""
    version = _version(model)
    return version is not None and version < _NO_BUDGET


def takes_forced_call(model: str) -> bool:
    """Return True if a model accepts a forced tool call; one that always thinks cannot."""
    return _ALWAYS_THINKS.search(model) is None


def choice_for(conversation: Conversation, losses: Losses, *, model: str) -> ToolChoice | None:
    """Return the caller's choice of tools; lose one that the model refuses, and leave it the
    choice.
    """
    choice = conversation.tool_choice
    if choice is None or not is_forced(choice) or takes_forced_call(model):
        return choice
    losses.lose(
        conversation.name_of("tool_choice"),
        why=f"{model} always thinks, which a forced tool call leaves no room for",
    )
    return ToolChoice(mode=ToolMode.AUTO)


def is_claude(model: str) -> bool:
    """Return True if a model's name at any provider is Claude's."""
    return "claude" in model


def effort_word(effort: str) -> str:
    """Return Anthropic's word for an effort."""
    return _WORDS.get(effort, effort)


def thinking_of(
    conversation: Conversation, losses: Losses, *, model: str, maximum: int
) -> dict[str, object] | None:
    """Return the member `thinking` for the caller's wish about reasoning; None without a wish.

    `maximum` is that of the answer, which includes the thinking.
    """
    reasoning = conversation.reasoning
    if reasoning is None:
        return None
    name = conversation.name_of("reasoning")
    if reasoning.effort == "none":
        if _ALWAYS_THINKS.search(model) is None:
            return {"type": "disabled"}
        losses.lose(name, why=f"{model} always thinks; an effort of low is its least")
        return None
    shown = {"display": "omitted" if reasoning.is_shown is False else "summarized"}
    if reasoning.budget_tokens is not None:
        if takes_budget(model):
            if leaves_room(reasoning.budget_tokens, conversation, losses, maximum=maximum):
                return {"type": "enabled", "budget_tokens": reasoning.budget_tokens}
            return None
        losses.lose(name, why=f"{model} takes an effort and no budget")
        return {"type": "adaptive", **shown}
    if reasoning.effort is None and not reasoning.is_adaptive:
        return None
    if takes_adaptive(model):
        return {"type": "adaptive", **shown}
    budget = _budget(reasoning, maximum)
    if budget is None:
        losses.lose(
            name,
            why=f"{model} thinks with at least {LEAST_BUDGET_TOKENS} tokens below the maximum",
        )
        return None
    return {"type": "enabled", "budget_tokens": budget}


def within(thinking: dict[str, object], maximum: int) -> dict[str, object]:
    """Return a member `thinking` whose budget is not below the maximum that is sent, made to fit.

    Only a route's maximum can be too small: the translation has checked the others. Half of it is
    left for the answer.
    """
    budget = half_of(maximum, least=LEAST_BUDGET_TOKENS)
    return {**thinking, "budget_tokens": budget} if budget else {"type": "disabled"}


def _budget(reasoning: Reasoning, maximum: int) -> int | None:
    """Return the budget of an effort under a maximum; None if the maximum is too small."""
    if maximum <= LEAST_BUDGET_TOKENS:
        return None
    share = _SHARES.get(reasoning.effort or "medium", _SHARES["medium"])
    return max(LEAST_BUDGET_TOKENS, min(int(maximum * share), maximum - 1))


def _version(model: str) -> tuple[int, int] | None:
    """Return the version in a model's name, None if it shows none."""
    found = _VERSION.search(model)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def readable_stops(stops: Sequence[str], conversation: Conversation, losses: Losses) -> list[str]:
    """Return the stops that are not blank: Claude refuses the others, which are lost."""
    readable = [stop for stop in stops if stop.strip()]
    if len(readable) < len(stops):
        losses.lose(conversation.name_of("stop"), why="a stop of blanks alone is refused there")
    return readable
