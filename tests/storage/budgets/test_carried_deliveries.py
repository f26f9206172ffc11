"""The upgrade to a delivery for each channel carries the webhook's deliveries over."""

from __future__ import annotations

from alembic import command
from sqlalchemy import text

from gateway.storage.postgres import migrations
from gateway.storage.postgres.database import Database
from tests.storage.budget_books import rows

BEFORE, STEP = "20261126_1600", "20261126_1800"
ALERT = """
INSERT INTO tollgate.budget_alerts (account_id, starts_at, threshold, rule_id, scope, owner, kind,
    period, time_zone, limit_nusd, granted_nusd, spent_nusd, raised_at, tries, last_error,
    next_try_at, delivered_at, given_up_at)
SELECT account, '2026-11-01Z', 0.8, 'r', 'team', 'o', 'hard', 'month', 'UTC', 1, 0, 1,
    '2026-11-20Z', tries, error, next_try_at::timestamptz, delivered_at::timestamptz,
    given_up_at::timestamptz
FROM (VALUES ('delivered', 2, 'no', NULL, '2026-11-20Z', NULL), ('given up', 9, 'no', NULL, NULL,
    '2026-11-21Z'), ('retried', 3, 'no', '2026-11-20 01:00Z', NULL, NULL),
    ('without a receiver', 0, NULL, '2026-11-20Z', NULL, NULL))
    AS found (account, tries, error, next_try_at, delivered_at, given_up_at)
"""


def test_deliveries_of_the_release_before_are_carried_over(empty_database_url: str) -> None:
    """An alert that was delivered is not sent again, and one that waits goes on with its tries.

    One that had no receiver has no delivery.
    """
    database = Database(empty_database_url)
    with migrations._long_session(database) as connection:
        connection.execute(text("CREATE SCHEMA tollgate"))
        connection.commit()
        config = migrations._config()
        config.attributes.update(connection=connection, on_version_apply=lambda **_: None)
        command.upgrade(config, BEFORE)
        connection.execute(text(ALERT))
        command.upgrade(config, STEP)
        connection.commit()
    found = rows(
        database,
        "SELECT account_id, channel, sent.tries, sent.last_error, sent.next_try_at IS NOT NULL, "
        "sent.delivered_at IS NOT NULL, sent.given_up_at IS NOT NULL FROM "
        "tollgate.alert_deliveries AS sent JOIN tollgate.budget_alerts USING (alert_id) "
        "ORDER BY account_id",
    )
    database.close()
    assert found == [
        ("delivered", "webhook", 2, "no", False, True, False),
        ("given up", "webhook", 9, "no", False, False, True),
        ("retried", "webhook", 3, "no", True, False, False),
    ]
