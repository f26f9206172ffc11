"""Collects the fields of a request that a translation cannot carry over: refuses the first one by
its name, or drops all of them and keeps their names.
"""

from __future__ import annotations

from gateway.domain.policy.request_fields import ANSWERED_LATER, FEATURES
from gateway.errors import InvalidRequest, Untranslatable
from gateway.wire.translation.conversation import (
    MOST_TOOL_NAME_CHARS,
    NO_JSON,
    Conversation,
)

MOST_NAMED = 64  # fields in one header
MOST_NAME_CHARS = 128
# A request without them would have another meaning, so they are refused even if the rest is
# dropped; so are those by which a caller chooses the place, account or model of its request.
NEVER_DROPPED = frozenset(
    {
        "prompt",
        *ANSWERED_LATER,
        *FEATURES["stored_state"].members,
        *FEATURES["rerouting"].members,
    }
)


def named_in_header(field: str) -> str:
    """Return a field's name as it stands in a header and in the ledger: a caller chose it."""
    return "".join(one if one.isprintable() else "?" for one in field[:MOST_NAME_CHARS])


class Losses:
    """The fields that one translation could not carry over.

    `where` names the deployment and its dialect. `drops` is the deployment's `untranslatable:
    drop`.
    """

    def __init__(self, where: str, *, drops: bool) -> None:
        """Start with nothing lost."""
        self._where, self._drops = where, drops
        self.fields: list[str] = []

    def lose(self, field: str, *, why: str = "") -> None:
        """Drop a field by the caller's name for it. Raises `Untranslatable` if it is refused."""
        field = named_in_header(field)
        if not self._drops or field.split(".")[0].split("[")[0] in NEVER_DROPPED:
            reason = f" ({why})" if why else ""
            raise Untranslatable(
                f"{self._where} has no place for '{field}'{reason}. Leave it "
                "out, use a route that takes it, or ask an admin for `untranslatable: drop` at "
                "this deployment. Nothing was sent.",
                param=field,
            )
        self.leave_out(field)

    def leave_out(self, field: str) -> None:
        """Name a field that is left out, also if the deployment refuses losses: the target takes it
        but for the rest of this request, and a usual client cannot know that.
        """
        field = named_in_header(field)
        if len(self.fields) < MOST_NAMED and field not in self.fields:
            self.fields.append(field)

    def lose_others(self, conversation: Conversation) -> None:
        """Lose every member that no neutral value carries."""
        for field in conversation.others:
            self.lose(field)

    def lose_values(self, conversation: Conversation, *values: str) -> None:
        """Lose those of the named values of a conversation, or of its sampling, that its caller
        set.
        """
        for value in values:
            holder = conversation if hasattr(conversation, value) else conversation.sampling
            held = getattr(holder, value)
            if held is not None and held is not NO_JSON and held != () and held != "":
                self.lose(conversation.name_of(value))


def require_short_name(name: str) -> None:
    """Raise `InvalidRequest` for a tool's name that is too long to stand beside each result."""
    if len(name) > MOST_TOOL_NAME_CHARS:
        raise InvalidRequest(
            f"The name of the tool '{name[:64]}…' has more than {MOST_TOOL_NAME_CHARS} letters. "
            "Nothing was sent. Give the tool a shorter name.",
            param="tools",
        )
