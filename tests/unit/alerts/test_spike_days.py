"""Alerts of days that stand out: the days that are looked at, and an alert without a key."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

from gateway.domain.alerts.spikes import SpikeAlert, days_due, message_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_the_first_look_is_at_yesterday_alone() -> None:
    """A new gateway must not raise alerts of a history that is over."""
    assert days_due((), now=NOW) == (date(2026, 11, 19),)
    # Attempts that run over midnight are written within the hour.
    assert days_due((), now=NOW.replace(hour=0)) == (date(2026, 11, 18),)


def test_a_pause_is_made_up_for_up_to_a_week() -> None:
    """No day is looked at twice, and an older spike is history."""
    assert days_due((date(2026, 11, 19),), now=NOW) == ()
    assert days_due((date(2026, 11, 16), date(2026, 11, 15)), now=NOW) == (
        date(2026, 11, 17),
        date(2026, 11, 18),
        date(2026, 11, 19),
    )
    late = days_due((date(2026, 9, 1),), now=NOW)
    assert (late[0], len(late)) == (date(2026, 11, 13), 7)


def test_an_alert_without_a_key_has_no_command() -> None:
    """There is nothing to pause."""
    alert = SpikeAlert(
        alert_id=UUID(int=1),
        team="payments",
        day=date(2026, 11, 19),
        model=None,
        key_id=None,
        spent_nusd=5 * 10**9,
        usual_nusd=10**9,
        driver_nusd=4 * 10**9,
        raised_at=NOW,
    )
    message = message_of(alert)
    assert message.payload["command"] is None
    assert message.text == (
        "2026-11-19: team payments, model unallocated, key unallocated: 400 % above its usual "
        "Thursday, $4.00."
    )
