"""Declares the collection of a request's needed capabilities and permissions, which `read` and
`media` fill; finds none itself.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.policy.request_fields import OWN_TOOLS, UNKNOWN_TOOLS
from gateway.domain.request.request import HostedTool
from gateway.wire.openai.request.hosted import HOSTED_TOOLS, hosted_member

# Returns the feature that one tool needs and its place; None if the caller runs it.
JudgeTool = Callable[[object], tuple[str, str] | None]


class Needs:
    """The needs found in the members of a request.

    `features` names for each feature the first place at which it was found.

    `is_sized` is False if a part of the prompt may have more tokens than bytes: pages of a
    document, encoded tensors. `hosted` are the tools that the provider may run. `judge_tool` is
    that of the caller's dialect, for tools that are defined inside the prompt.
    """

    def __init__(self, judge_tool: JudgeTool) -> None:
        """Start without any need."""
        self.judge_tool = judge_tool
        self.capabilities: set[str] = set()
        self.features: dict[str, str] = {}
        self.hosted: list[HostedTool] = []
        self.is_sized = True

    def leave(self, feature: str, where: str) -> None:
        """Record that the request needs a deployment's permission for a feature, with the place in
        the request that needs it.
        """
        self.features.setdefault(feature, where)

    def note_tool(self, feature: str, tool: HostedTool) -> None:
        """Record the permission that a tool needs, and the tool if the provider may run it: not an
        own one with unknown members, nor another model's.
        """
        self.leave(feature, tool.where)
        if feature == HOSTED_TOOLS or (feature == UNKNOWN_TOOLS and tool.name not in OWN_TOOLS):
            self.hosted.append(tool)

    def note_member(self, name: str) -> None:
        """Record a member of the request if it is a tool that the provider runs."""
        if (tool := hosted_member(name)) is not None:
            self.hosted.append(tool)
