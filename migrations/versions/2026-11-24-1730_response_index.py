"""A stored response is found by the id that its upstream gave it, among any number of events.

Building the index makes the ledger's writers wait; their journals keep the events meanwhile.
"""

from __future__ import annotations

from alembic import op

revision = "20261124_1730"
down_revision = "20261123_0230"
branch_labels = None
depends_on = None

INDEX = """
CREATE INDEX usage_events_response ON tollgate.usage_events (upstream_request_id)
    WHERE operation = 'responses' AND upstream_request_id IS NOT NULL;
"""


def upgrade() -> None:
    """Make the index, on every month's partition and on later ones."""
    op.get_bind().connection.cursor().execute(INDEX)
