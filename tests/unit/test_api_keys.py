"""The states of a stored key."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.domain.policy.api_keys import KeyRecord, StoredKey

NOW = datetime(2026, 11, 24, tzinfo=UTC)
LIVE = StoredKey(
    record=KeyRecord(key_id="0A1b2C3d4E", team="payments", project=None, digest=b"", pepper_id="p"),
    created_at=NOW,
    created_by="ana",
    revoked_at=None,
    revoked_by=None,
)


@pytest.mark.parametrize(
    ("members", "revoked_at", "state"),
    [
        ({}, None, "live"),
        ({"is_paused": True}, None, "paused"),
        ({"expires_at": NOW + timedelta(seconds=1)}, None, "live"),
        ({"expires_at": NOW, "is_paused": True}, None, "expired"),
        ({"expires_at": NOW}, NOW, "revoked"),
    ],
)
def test_the_state_that_ends_a_key_is_shown_first(
    members: dict[str, Any], revoked_at: datetime | None, state: str
) -> None:
    """An operator who resumes a paused key must see that it has expired."""
    key = replace(LIVE, record=replace(LIVE.record, **members), revoked_at=revoked_at)
    assert key.state(NOW) == state
