"""Finds the deployment that keeps a response of a team, by the id that its upstream gave; it sends
nothing.

The ledger is the only record of it (docs/decisions/0025).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from gateway.domain.budgets.limits import LimitedBy
from gateway.domain.policy.policy import Deployment
from gateway.domain.request.stored_response import StoredResponse
from gateway.errors import (
    DatabaseUnavailable,
    InvalidRequest,
    NotSupported,
    RouteNotAllowed,
    Unavailable,
)
from gateway.services.limits.own_reads import OwnReads

# Seconds between the looks for an id that the ledger does not have yet: another worker's writer
# takes 0.2 s, and an agent sends its next turn at once.
PAUSES_S = (0.3, 0.7)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")


class StoredResponses:
    """Looks for stored responses in the ledger and among the events that this worker has not
    written yet.

    `stored` and `is_lagging` ask Postgres, in a thread, and may raise `DatabaseUnavailable`.
    """

    def __init__(
        self,
        *,
        stored: Callable[[str, str], Sequence[StoredResponse]],
        recent: Callable[[str], Sequence[StoredResponse]],
        is_lagging: Callable[[], bool],
        reads: OwnReads,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take the two places to look in, and the threads for reads of teams' own data."""
        self._stored, self._recent, self._is_lagging = stored, recent, is_lagging
        self._reads, self._pause = reads, pause

    async def find(
        self, team: str, response_id: str, limited: Sequence[LimitedBy] = ()
    ) -> StoredResponse:
        """Return the team's response with this id; the look counts as one request of `limited`.

        Raises `NotSupported` for an id that is unknown or another team's, `Unavailable` if that
        cannot be told, `RateLimited`, and `InvalidRequest` for an id of two deployments.
        """
        if _ID.fullmatch(response_id):
            found = await self._look(team, response_id, limited)
            for pause_s in PAUSES_S:
                if not found:
                    await self._pause(pause_s)
                    found = await self._look(team, response_id, ())
            if found:
                return _only(found)
            await self._require_whole_ledger(team)
        raise _unknown(team, response_id)

    async def _look(
        self, team: str, response_id: str, limited: Sequence[LimitedBy]
    ) -> Sequence[StoredResponse]:
        """Return the team's responses with an id, as known now. Raises `Unavailable` if Postgres
        cannot be asked and this worker knows none.
        """
        recent = [one for one in self._recent(response_id) if one.team == team]
        try:
            stored = await self._reads.read(team, limited, lambda: self._stored(team, response_id))
        except (DatabaseUnavailable, Unavailable):
            if not recent:
                raise _away() from None
            return recent
        return [*stored, *recent]

    async def _require_whole_ledger(self, team: str) -> None:
        """Raise `Unavailable` if a worker's journal may hold the event of a response."""
        try:
            is_late = await self._reads.read(team, (), self._is_lagging)
        except DatabaseUnavailable:
            raise _away() from None
        if is_late:
            raise Unavailable(
                "A part of the ledger is late, so a stored response cannot be found just now. Try "
                "again shortly.",
                retry_after_s=5,
            )


def require_same(stored: StoredResponse, deployment: Deployment) -> None:
    """Raise `RouteNotAllowed` if the deployment of this name is another one than that which gave
    the response: its id belongs to the former one's upstream.
    """
    if not stored.is_of(deployment):
        raise RouteNotAllowed(
            f"Response {stored.response_id} is kept by deployment {stored.deployment} as it was "
            f"(provider {stored.provider}, host {stored.host}); the policy has another one under "
            "that name now. Nothing was sent. Send the conversation itself."
        )


async def none_stored(team: str, response_id: str) -> StoredResponse:
    """Raise `NotSupported` for any id: the search of a service without a ledger."""
    raise _unknown(team, response_id)


def _unknown(team: str, response_id: str) -> NotSupported:
    """Return the error for an id that is unknown or another team's: the two look the same."""
    return NotSupported(
        f"Team {team} has no stored response '{_shown(response_id)}'. Only the team that a "
        "response was given to can use it again, if the response's deployment keeps it."
    )


def _only(found: Sequence[StoredResponse]) -> StoredResponse:
    """Return the one response that was found. Raises `InvalidRequest` if deployments gave the same
    id: a wrong one must never be asked.
    """
    names = sorted({one.deployment for one in found})
    if len(names) > 1:
        raise InvalidRequest(
            f"The deployments {' and '.join(names)} gave the id {_shown(found[0].response_id)}, so "
            "it does not say which response is meant. Send the conversation itself."
        )
    return found[-1]


def _away() -> Unavailable:
    """Return the error while Postgres cannot be asked where a response is."""
    return Unavailable(
        "The ledger cannot be read just now, so the deployment that has the response is not known. "
        "Nothing was sent. Try again shortly.",
        retry_after_s=5,
    )


def _shown(response_id: str) -> str:
    """Return the printable beginning of an id, for an error message."""
    return "".join(letter for letter in response_id[:100] if letter.isprintable())
