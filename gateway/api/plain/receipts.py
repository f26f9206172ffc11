"""Answers `GET /v1/requests/{request_id}`: the receipt of one of the team's own requests, from the
ledger or from this worker's memory while Postgres is away.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from gateway.api.plain.endpoints import PlainEndpoints
from gateway.domain.ids import has_moment, occurred_at
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.errors import DatabaseUnavailable, InvalidRequest, NotSupported, Unavailable
from gateway.reports.json_and_csv import receipt_to_json
from gateway.reports.receipts.attempt import PriceFact
from gateway.reports.receipts.receipt import Receipt, for_caller, receipt_of_events

PENDING_FOR = timedelta(seconds=60)  # a receipt may still be on its way for this long
SKEW = timedelta(seconds=5)  # another replica's clock may be ahead by this much


async def show_receipt(request: Request, request_id: str) -> Response:
    """Return the receipt of a request of the caller's team; 202 while it may still arrive."""
    endpoints: PlainEndpoints = request.app.state.endpoints
    caller = await endpoints.caller(request)
    wanted = _request_id(request_id)
    try:
        recent = endpoints.recent(wanted)
        found, may_come = await endpoints.read(
            caller, lambda: _receipt_or_pending(endpoints, wanted, caller.team, recent)
        )
    except (DatabaseUnavailable, Unavailable):
        found = _receipt_from_memory(endpoints, wanted, team=caller.team)
        may_come = _may_be_pending(endpoints, wanted)
        if found is None and not may_come:
            raise
    if found is not None:
        return Response(receipt_to_json(for_caller(found)), media_type="application/json")
    if may_come:
        return JSONResponse(
            {"request_id": str(wanted), "status": "pending"}, 202, {"retry-after": "1"}
        )
    raise NotSupported(
        f"Team {caller.team} has no request {wanted}. Receipts are for a team's own requests."
    )


def _request_id(text: str) -> UUID:
    """Parse the text of a request id that the gateway made. Raises `InvalidRequest` otherwise."""
    try:
        wanted = UUID(text)
    except ValueError:
        wanted = None
    if wanted is None or wanted.version != 7 or not has_moment(wanted):
        raise InvalidRequest(
            "The request id is not one of ours: use the x-request-id of an answer.",
            param="request_id",
        )
    return wanted


def _receipt_or_pending(
    endpoints: PlainEndpoints, wanted: UUID, team: str, recent: Sequence[UsageEvent]
) -> tuple[Receipt | None, bool]:
    """Return the team's receipt of a request, or None and whether it may still come. Runs in a
    thread.
    """
    found = endpoints.reports.receipt(wanted, team=team, recent=recent)
    return found, found is None and _may_still_arrive(endpoints, wanted)


def _may_still_arrive(endpoints: PlainEndpoints, wanted: UUID) -> bool:
    """Return True if a missing receipt may still come. Uses the id alone, so other teams learn
    nothing.
    """
    if occurred_at(wanted) > endpoints.clock.now() + SKEW:
        return False
    return _may_be_pending(endpoints, wanted) or endpoints.is_lagging()


def _may_be_pending(endpoints: PlainEndpoints, wanted: UUID) -> bool:
    """Return True if a request is so recent that the ledger may not have its event yet."""
    return -SKEW <= endpoints.clock.now() - occurred_at(wanted) < PENDING_FOR


def _receipt_from_memory(endpoints: PlainEndpoints, wanted: UUID, *, team: str) -> Receipt | None:
    """Return the receipt from the events that this worker settled, while Postgres cannot be asked;
    None if it settled none.
    """
    prices = endpoints.holder.require().prices.values()
    facts = {price.price_id: PriceFact(price=price) for price in prices}
    return receipt_of_events(endpoints.recent(wanted), team=team, prices=facts)
