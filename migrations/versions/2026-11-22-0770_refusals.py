"""Refusals: requests that were decided against leave no attempt; how many there were, and by which
rules, is kept.
"""

from __future__ import annotations

from alembic import op

revision = "20261122_0770"
down_revision = "20261122_0760"
branch_labels = None
depends_on = None

# A worker writes how many it has refused in an hour so far, not how many more: written twice, it is
# the same.
STEP = """
CREATE TABLE tollgate.refusals (
    journal_id uuid NOT NULL,
    hour       timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    team       text NOT NULL,
    route      text NOT NULL,
    data_class text NOT NULL,
    code       text NOT NULL,
    rules      text[] NOT NULL,
    requests   bigint NOT NULL CHECK (requests > 0),
    PRIMARY KEY (hour, team, route, data_class, code, rules, journal_id)
);
CREATE VIEW finance.refusals AS
SELECT hour, team, route, data_class, code, rules, sum(requests)::bigint AS requests
FROM tollgate.refusals GROUP BY 1, 2, 3, 4, 5, 6;
GRANT SELECT, INSERT, UPDATE ON tollgate.refusals TO tollgate_gateway;
"""


def upgrade() -> None:
    """One step."""
    op.get_bind().connection.cursor().execute(STEP)  # the driver's own: many statements at once
