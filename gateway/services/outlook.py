"""What is expected of each deployment, and so in which order a request tries them."""

from __future__ import annotations

from gateway.domain.request import Request
from gateway.domain.routing import Decision, Ranking


class Outlook:
    """Ranks the eligible of a decision for one request."""

    def rank(self, request: Request, decision: Decision) -> Ranking:
        """Return the order in which to try them."""
        return decision.as_listed
