"""Writes the models of a team in the shape of Anthropic's list, for its clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# It may be an epoch value if the date is unknown (anthropic 2.13.0, types/model_info.py,
# 2026-11-24).
_UNKNOWN_DATE = "1970-01-01T00:00:00Z"
_DIFFERENT = frozenset({"object", "created", "owned_by", "context_length", "max_output_tokens"})
_DIFFERENT_TYPE = frozenset({"capabilities"})  # Anthropic's is an object or null


def anthropic_model(listed: dict[str, Any]) -> dict[str, Any]:
    """Return one entry of `/v1/models` as Anthropic's, with our own members beside its own."""
    others = {
        name: value for name, value in listed.items() if name not in _DIFFERENT | _DIFFERENT_TYPE
    }
    return {
        **others,
        "type": "model",
        "display_name": listed["id"],
        "created_at": _UNKNOWN_DATE,
        "lifecycle": "active",
        "capabilities": None,
        "max_input_tokens": listed["context_length"],
        "max_tokens": listed["max_output_tokens"],
    }


def anthropic_list(listed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return all of them as one page, the last one."""
    models = [anthropic_model(one) for one in listed]
    return {
        "data": models,
        "has_more": False,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
