"""Answers which request members a provider's server is known to take within the bound of a hold, by
its published schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from gateway.domain.operation import PAIRING, Operation
from gateway.domain.policy.known_members import CLIENT_MEMBERS, SCORING_MEMBERS
from gateway.domain.policy.request_fields import FEATURE_OF_MEMBER
from gateway.domain.providers.members import engines, hosted
from gateway.domain.providers.members.effects import COUNTED, EFFECTS, Effect, is_bounded

TABLES: Mapping[str, Mapping[str, str]] = {**hosted.NAMES, **engines.NAMES}
SOURCES: Mapping[str, str] = {**hosted.SOURCES, **engines.SOURCES}
# Providers that serve another one's schema.
_SAME = {"azure_openai": "openai"}
# The effect of these members on a bound is decided with their features, or with the rounds of the
# provider's tools.
_DECIDED = frozenset({*FEATURE_OF_MEMBER, "max_tool_calls", "max_turns"})


@cache
def bounded_members(provider: str, operation: Operation) -> frozenset[str]:
    """Return the members that a request of this operation may have at a provider without a cost
    beyond its hold: those of its published schema and of the callers' own dialect, those that the
    dialect's reader counts, and those that a permission decides on.

    A provider without a schema for the operation takes those of every schema for it.
    """
    published = TABLES.get(_SAME.get(provider, provider), {}).get(operation)
    names = _of_all(operation) if published is None else frozenset(published.split())
    names |= _of_callers(operation) | COUNTED
    return frozenset(name for name in names if is_bounded(operation, name)) | _DECIDED


def _of_callers(operation: Operation) -> frozenset[str]:
    """Return the members of the dialect that callers of an operation speak. Those of its other
    operations that do nothing do nothing here.
    """
    dialect = "anthropic" if operation is Operation.MESSAGES else "openai"
    others = " ".join(TABLES[dialect].values()).split()
    harmless = {name for name in others if EFFECTS[name] is Effect.NOTHING}
    own = SCORING_MEMBERS if operation in PAIRING else TABLES[dialect][operation].split()
    return CLIENT_MEMBERS.union(harmless, own)


def _of_all(operation: Operation) -> frozenset[str]:
    """Return the members that any published schema names for an operation."""
    return frozenset(
        name for operations in TABLES.values() for name in operations.get(operation, "").split()
    )
