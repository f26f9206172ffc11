"""Reads a chat request into a neutral conversation, and writes one as a chat request."""

from __future__ import annotations

from gateway.domain.request.request import RequestBody
from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses


def read_chat_request(read: RequestBody) -> Conversation:
    """Return the conversation of a chat request."""
    raise NotImplementedError


def write_chat_request(conversation: Conversation, losses: Losses, *, model: str) -> bytes:
    """Return the body of a chat request that says the same as a conversation. Raises
    `Untranslatable`.
    """
    raise NotImplementedError
