"""The states of a stored key, and the keys that are derived from a pepper."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.domain.policy.api_keys import KeyRecord, Pepper, StoredKey

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


def test_each_use_of_a_pepper_has_its_own_key() -> None:
    """Stored hashes depend on it: with another key no claim and no end user would be recognised.

    The expected key is `printf 'a use' | openssl dgst -sha256 -hmac 'a pepper'`.
    """
    pepper = Pepper(b"a pepper")
    assert (
        pepper.derived(b"a use").hex()
        == "3459dd85a346f8b2fd5cf747f75f7c19c98259d378ebe4100ca1975aa6cf830c"
    )
    assert pepper.derived(b"another use") != pepper.derived(b"a use")
    assert Pepper(b"another pepper").derived(b"a use") != pepper.derived(b"a use")
