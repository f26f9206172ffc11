"""A session stays at the external deployment that has its prompt cached."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.ledger.usage_event import Outcome, UsageEvent
from gateway.domain.pricing.tokens import TokenUsage
from gateway.domain.routing.affinity import named_session
from gateway.services.deployments.cached_sessions import KEPT_S, MOST_SESSIONS, CachedSessions
from tests.storage.factories import event

CACHED = TokenUsage(input_tokens=1000, cached_input_tokens=900, output_tokens=5)


def answered(**changes: Any) -> UsageEvent:
    given: dict[str, Any] = {"route": "assistant", "deployment": "claude", "usage": CACHED}
    return event(**given | changes)


def test_it_is_kept_for_minutes_after_its_last_use() -> None:
    sessions = CachedSessions()
    sessions.note(answered(), session="s", now_s=0)
    assert sessions.deployment_of("assistant", "s", now_s=KEPT_S - 1) == "claude"
    assert sessions.deployment_of("assistant", "s", now_s=KEPT_S) is None
    sessions.note(answered(), session="s", now_s=KEPT_S)
    assert sessions.deployment_of("assistant", "s", now_s=KEPT_S + 1) == "claude"
    assert sessions.deployment_of("other", "s", now_s=KEPT_S + 1) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"usage": TokenUsage(input_tokens=1000, cached_input_tokens=0, output_tokens=5)},
        {"usage": TokenUsage(input_tokens=1000, output_tokens=5)},
        {"outcome": Outcome.UPSTREAM_ERROR},
        {"is_self_hosted": True},
    ],
)
def test_without_a_cached_prefix_there_is_nothing_to_keep(changes: dict[str, Any]) -> None:
    """An engine's replicas have their own rule (`group`)."""
    sessions = CachedSessions()
    sessions.note(answered(**changes), session="s", now_s=0)
    assert sessions.deployment_of("assistant", "s", now_s=1) is None


def test_the_memory_is_bounded() -> None:
    sessions = CachedSessions()
    for number in range(MOST_SESSIONS + 1):
        sessions.note(answered(), session=named_session(str(number)) or "", now_s=0)
    assert sessions.deployment_of("assistant", named_session("0") or "", now_s=1) is None
    assert sessions.deployment_of("assistant", named_session("1") or "", now_s=1) == "claude"
