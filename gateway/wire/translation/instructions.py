"""Collects the system messages of a conversation, for dialects that take them in one place."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.wire.translation.conversation import Conversation, ConversationTurn, TextPart


def system_of(conversation: Conversation) -> tuple[TextPart, ...]:
    """Return the text of the system messages, those after the first turn included.

    Anthropic's own endpoint of OpenAI's dialect moves later ones in the same way
    (platform.claude.com/docs/en/api/openai-sdk, read in a public copy, 2026-11-24).
    """
    later = [
        part
        for turn in conversation.turns
        if turn.is_instruction
        for part in turn.parts
        if isinstance(part, TextPart)
    ]
    return (*conversation.system, *later)


def spoken_turns(conversation: Conversation) -> Sequence[ConversationTurn]:
    """Return the turns that are not system messages."""
    return [turn for turn in conversation.turns if not turn.is_instruction]
