"""Writes the caller's wish about reasoning as Gemini's `thinkingConfig`.

Models up to 2.5 take a budget of tokens, later ones a level; one of the two is sent, never both
(https://ai.google.dev/gemini-api/docs/thinking). The budgets of OpenAI's words are those of
Google's own OpenAI endpoint (https://ai.google.dev/gemini-api/docs/openai). Both looked up
2026-11-24.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses
from gateway.wire.translation.thinking_budget import half_of, leaves_room

_WITH_BUDGETS = re.compile(r"gemini-(?:1|2)[.-]")
_BUDGETS = {"none": 0, "minimal": 1024, "low": 1024, "medium": 8192, "high": 24_576}
_LEVELS = {"minimal": "MINIMAL", "low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "XHIGH"}
# 3 Pro has two levels, for which Google's own OpenAI endpoint takes these words; MINIMAL is of some
# Flash models (docs.cloud.google.com, "Thinking", and hexdocs.pm/gemini_ex; 2026-11-29).
_OF_3_PRO = {"minimal": "LOW", "low": "LOW", "medium": "HIGH", "high": "HIGH"}
_WITH_MINIMAL = re.compile(r"gemini-3(?:\.[56])?-flash")
AUTOMATIC = -1
_BUDGET = "thinkingBudget"
# Of 2.5 Pro, which cannot be kept from thinking, and of 2.5 Flash-Lite; Flash has none
# (ai.google.dev/gemini-api/docs/thinking, as hexdocs.pm/gemini_ex quotes it, 2026-11-29).
_LEAST, _LEAST_OF_LITE = 128, 512


def takes_budgets(model: str) -> bool:
    """Return True for the models before Gemini 3, which take a budget of thoughts, and check no
    signature of a call.
    """
    return _WITH_BUDGETS.search(model) is not None


def thinking_config(
    conversation: Conversation, losses: Losses, *, model: str, maximum: int | None = None
) -> dict[str, Any] | None:
    """Return the `thinkingConfig` of a request, None without a wish of the caller. `maximum` is
    that of the answer, which includes the thoughts.

    Thoughts are asked for with every wish to think, unless the caller wants to see none.
    """
    wish = conversation.reasoning
    if wish is None:
        return None
    config: dict[str, Any] = {}
    if wish.budget_tokens is not None:
        config[_BUDGET] = budget = wish.budget_tokens
        if maximum and not leaves_room(budget, conversation, losses, maximum=maximum):
            config[_BUDGET] = _most_budget(model, maximum)
    elif wish.effort is not None:
        config = _effort(wish.effort, conversation, losses, model=model)
        if maximum and _BUDGET in config:
            config[_BUDGET] = min(config[_BUDGET], _most_budget(model, maximum))
    elif wish.is_adaptive:
        config[_BUDGET] = AUTOMATIC
    is_off = config.get(_BUDGET) == 0 or (not config and not wish.is_shown)
    if not is_off and wish.is_shown is not False:
        config["includeThoughts"] = True
    return config or None


def within(config: dict[str, Any], maximum: int, *, model: str) -> dict[str, Any]:
    """Return a `thinkingConfig` whose budget leaves room for the answer under the maximum that is
    sent. Only a route's maximum can be too small: the translation has fitted the others.
    """
    if config.get(_BUDGET, AUTOMATIC) < maximum:
        return config
    budget = _most_budget(model, maximum)
    return {**config, _BUDGET: budget} if budget else {_BUDGET: 0}


def _most_budget(model: str, maximum: int) -> int:
    """Return the largest budget that leaves half of a maximum to the answer; 0 if there is none and
    the model can be kept from thinking.
    """
    least = _LEAST_OF_LITE if "lite" in model else _LEAST
    return half_of(maximum, least=least) or (least if _always_thinks(model) else 0)


def _always_thinks(model: str) -> bool:
    """Return True for a model with budgets that refuses a budget of 0."""
    return "pro" in model


def _levels(model: str) -> dict[str, str]:
    """Return the level of each word of effort at a model with levels."""
    if "gemini-3-pro" in model:
        return _OF_3_PRO
    return _LEVELS if _WITH_MINIMAL.search(model) else {**_LEVELS, "minimal": "LOW"}


def _effort(
    effort: str, conversation: Conversation, losses: Losses, *, model: str
) -> dict[str, Any]:
    """Return the member for a word of effort, none if the model has no such step."""
    if takes_budgets(model) and effort == "none" and _always_thinks(model):
        losses.lose(
            conversation.name_of("reasoning"),
            why=f"{model} always thinks; {_LEAST} tokens are its least",
        )
        return {_BUDGET: _LEAST}
    if takes_budgets(model) and effort in _BUDGETS:
        return {_BUDGET: _BUDGETS[effort]}
    if not takes_budgets(model) and effort in (levels := _levels(model)):
        return {"thinkingLevel": levels[effort]}
    losses.lose(conversation.name_of("reasoning"), why=f"{model} has no effort {effort[:32]}")
    return {}
