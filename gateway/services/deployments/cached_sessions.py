"""Remembers at which external deployment a session has its prompt cached, for the minutes that
providers keep it.

One worker's memory, bounded; a session that is forgotten is ordered like any other.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.domain.ledger.usage_event import Outcome, UsageEvent

# Anthropic keeps a prefix for five minutes after its last use, OpenAI for five to ten
# (docs/lab/providers.tsv).
KEPT_S = 300.0
MOST_SESSIONS = 10_000  # of one worker, about 200 bytes each


class CachedSessions:
    """The deployments with the cached prefixes of sessions, by route and session."""

    def __init__(self) -> None:
        """Start without any session."""
        self._at: OrderedDict[tuple[str, str], tuple[str, float]] = OrderedDict()

    def note(self, event: UsageEvent, *, session: str, now_s: float) -> None:
        """Record an attempt of a session, if its provider read from its cache or wrote to it."""
        usage = event.usage
        if event.outcome is not Outcome.OK or event.is_self_hosted:
            return
        if not (usage.cached_input_tokens or usage.cache_write_tokens):
            return
        key = (event.route, session)
        self._at[key] = (event.deployment, now_s + KEPT_S)
        self._at.move_to_end(key)
        if len(self._at) > MOST_SESSIONS:
            self._at.popitem(last=False)

    def deployment_of(self, route: str, session: str, *, now_s: float) -> str | None:
        """Return the deployment that has a session's prefix cached now; None if none is known."""
        deployment, until_s = self._at.get((route, session), (None, 0.0))
        return deployment if now_s < until_s else None
