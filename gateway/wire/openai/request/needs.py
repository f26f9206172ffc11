"""Declares the collection of a request's needed capabilities and permissions, which `read` and
`media` fill; finds none itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from gateway.domain.policy.known_members import by_folded
from gateway.domain.policy.request_fields import OWN_TOOLS, UNKNOWN_TOOLS, WITHOUT_BOUND
from gateway.domain.pricing.cache_writes import (
    ANY_LIFETIME,
    KNOWN_LIFETIMES,
    SHORTEST_LIFETIME,
)
from gateway.domain.providers.members.effects import ELSEWHERE, THINKING_BUDGETS
from gateway.domain.providers.unasked import BRINGS_ITS_OWN
from gateway.domain.request.request import HostedTool, ThinkingBudget
from gateway.wire.openai.request.hosted import HOSTED_TOOLS, hosted_member
from gateway.wire.openai.request.member_names import unambiguous_members
from gateway.wire.openai.request.size import MAX_OUTPUT_TOKENS
from gateway.wire.openai.request.sounds import Sound

_ESCAPE = b"\\u"  # could spell any word
# Members that change the bound of the prompt, or of the answer.
SIZES = ELSEWHERE | THINKING_BUDGETS.keys()
_MARKS = (b"cache_control", b"prompt_cache_breakpoint", _ESCAPE)
_LIFETIMES = (b'"ttl"', _ESCAPE)
_NONE = (b"null", b"false")
_decode_count = msgspec.json.Decoder(int).decode
# Returns the feature that one tool needs and its place; None if the caller runs it.
JudgeTool = Callable[[object], tuple[str, str] | None]


class Needs:
    """The needs found in the members of a request.

    `features` names for each feature the first place at which it was found.

    `is_sized` is False if a part of the prompt may have more tokens than bytes: pages of a
    document, encoded tensors. `hosted` are the tools that the provider may run. `judge_tool` is
    that of the caller's dialect, for tools that are defined inside the prompt. `lifetimes` are the
    times for which the provider's cache is asked to keep a part of the prompt. `has_files` is True
    for a file in the prompt. `stored` are the members that bring their own tools, model or maximum.
    `sound` is the place of a part that is a sound without a member for sounds, and `maybe_sound` of
    one that may be. `thinking` is the largest budget of thinking.
    """

    def __init__(self, judge_tool: JudgeTool) -> None:
        """Start without any need."""
        self.judge_tool = judge_tool
        self.capabilities: set[str] = set()
        self.features: dict[str, str] = {}
        self.hosted: list[HostedTool] = []
        self.lifetimes: set[str] = set()
        self.unbounded: set[str] = set()
        self.is_sized = True
        self.has_files = False
        self.stored: set[str] = set()
        self.sound = self.maybe_sound = ""
        self.thinking: ThinkingBudget | None = None

    @property
    def is_unusual(self) -> bool:
        """Return True if something was found that few requests have."""
        found = (self.lifetimes, self.has_files, self.stored, self.sound, self.maybe_sound)
        return any(found) or bool(self.unbounded or self.hosted or self.thinking)

    def leave(self, feature: str, where: str) -> None:
        """Record that the request needs a deployment's permission for a feature, with the place in
        the request that needs it.
        """
        self.features.setdefault(feature, where)
        if feature in WITHOUT_BOUND:
            self.unbounded.add(where)

    def hear(self, sound: Sound, where: str) -> None:
        """Record the first part that is a sound, and the first one that may be one."""
        if sound is Sound.YES:
            self.sound = self.sound or where
        elif sound is Sound.MAYBE:
            self.maybe_sound = self.maybe_sound or where

    def note_tool(self, feature: str, tool: HostedTool) -> None:
        """Record the permission that a tool needs, and the tool if the provider may run it: not an
        own one with unknown members, nor another model's.
        """
        self.leave(feature, tool.where)
        if feature == HOSTED_TOOLS or (feature == UNKNOWN_TOOLS and tool.name not in OWN_TOOLS):
            self.hosted.append(tool)

    def note_member(self, name: str, value: msgspec.Raw) -> None:
        """Record a member of the request if it is a tool that the provider runs, or if it brings
        tools of its own.
        """
        if name in BRINGS_ITS_OWN:
            self.stored.add(name)
        if (tool := hosted_member(name, value)) is not None:
            self.hosted.append(tool)

    def note_size(self, name: str, value: msgspec.Raw) -> None:
        """Record a member of `SIZES`: input that the body does not show, or a budget of thinking.
        Raises `InvalidRequest` for an object that could be read in two ways.
        """
        if name in ELSEWHERE:
            self.is_sized = False
            return
        parts = THINKING_BUDGETS[name]
        inside = unambiguous_members(name, value, by_folded(parts)) if parts else {"": value}
        for part in inside.keys() & (parts or {""}):
            tokens = _budget_in(inside[part])
            if tokens and (self.thinking is None or tokens > self.thinking.tokens):
                where = f"{name}: {part}" if part else name
                self.thinking = ThinkingBudget(tokens, where)

    def note_mark(self, mark: Mapping[str, object]) -> None:
        """Record a mark of the provider's cache, with its lifetime."""
        lifetime = mark.get("ttl")
        if lifetime is None:
            lifetime = SHORTEST_LIFETIME
        is_known = isinstance(lifetime, str) and lifetime in KNOWN_LIFETIMES
        self.lifetimes.add(str(lifetime) if is_known else ANY_LIFETIME)

    def note_marks_in(self, tools: bytes) -> None:
        """Record the marks in a list of tools, which is not decoded as a whole: a lifetime in it
        may be any.
        """
        if any(word in tools for word in _MARKS):
            is_plain = not any(word in tools for word in _LIFETIMES)
            self.lifetimes.add(SHORTEST_LIFETIME if is_plain else ANY_LIFETIME)


def _budget_in(value: msgspec.Raw) -> int:
    """Return the tokens that a budget states, 0 for none. One below 0, and any other form, may be
    no bound at all.
    """
    if bytes(value) in _NONE:
        return 0
    try:
        tokens = _decode_count(value)
    except msgspec.DecodeError:
        return MAX_OUTPUT_TOKENS
    return tokens if 0 <= tokens <= MAX_OUTPUT_TOKENS else MAX_OUTPUT_TOKENS
