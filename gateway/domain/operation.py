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
    RERANK = "rerank"
    SCORE = "score"

    @property
    def writes_output(self) -> bool:
        """Return True if the model writes an answer; embeddings and scores have no output
        tokens.
        """
        return self not in WITHOUT_OUTPUT


# The operations whose model reads texts in pairs, each of them with the same query.
PAIRING = frozenset({Operation.RERANK, Operation.SCORE})
WITHOUT_OUTPUT = PAIRING | {Operation.EMBEDDINGS}

# The operations that can be translated into one another.
CONVERSATIONS = frozenset({Operation.CHAT, Operation.RESPONSES, Operation.MESSAGES})
# The operations that a deployment serves only if the policy names them.
ONLY_STATED = WITHOUT_OUTPUT
# Those that servers of OpenAI's dialect may speak; rerank and score are vLLM's additions.
OF_OPENAI = frozenset({Operation.CHAT, Operation.COMPLETIONS, Operation.RESPONSES, *WITHOUT_OUTPUT})
