"""Fits a budget of thinking below the maximum of the answer that includes it: one rule for every
dialect whose requests have a budget.
"""

from __future__ import annotations

from gateway.wire.translation.conversation import Conversation
from gateway.wire.translation.losses import Losses


def leaves_room(budget: int, conversation: Conversation, losses: Losses, *, maximum: int) -> bool:
    """Return True if a caller's own budget is below the maximum; lose any other by its name."""
    if budget < maximum:
        return True
    losses.lose(
        conversation.name_of("reasoning"),
        why=f"its budget is not below the maximum of {maximum} tokens",
    )
    return False


def half_of(maximum: int, *, least: int) -> int:
    """Return a budget that leaves half of a maximum to the answer; 0 if the least budget of the
    model is not below the maximum.
    """
    return 0 if maximum <= least else max(least, maximum // 2)
