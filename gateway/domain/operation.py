"""Declares the operations of callers; knows no dialect's addresses or members."""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """A caller's operation. The value is the name a deployment lists under `operations`."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"


# The operations that can be translated into one another.
CONVERSATIONS = frozenset({Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES})
# The operations that a deployment serves only if the policy names them.
ONLY_STATED = frozenset({Operation.EMBEDDINGS})
OF_OPENAI = frozenset(
    {Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES, Operation.EMBEDDINGS}
)
