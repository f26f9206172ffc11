"""A well-formed UUIDv7 may hold a moment that no date can: it is a wrong id, not a fault of ours.

Found by an attacker who simulated a hostile caller, on 2026-11-26.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.domain.ids import has_moment
from gateway.reports.reports import Reports
from tests.reports.conftest import finance
from tests.unit.edge.test_plain_endpoints import MINE, World

__all__ = ["finance"]

LATEST = UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")
FIRST_OF_3000 = UUID("1d8fda4c-e000-7000-8000-000000000000")


@pytest.mark.parametrize("wanted", [LATEST, FIRST_OF_3000])
async def test_the_caller_gets_its_mistake(wanted: UUID) -> None:
    """It was an `OverflowError`: 502, and an alarm in the operator's log for each request."""
    status, body = await World().receipt(wanted)
    assert (status, body["error"]["code"]) == (400, "invalid_request")
    assert "not one of ours" in body["error"]["message"]


def test_reports_have_no_such_receipt(finance: Reports) -> None:
    """The dashboard takes the id from its address."""
    assert finance.receipt(LATEST) is None
    assert has_moment(MINE)
    assert not has_moment(FIRST_OF_3000)
