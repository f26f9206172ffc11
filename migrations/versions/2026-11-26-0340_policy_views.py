"""The policy versions and the prices in force, for reports that compare deployments."""

from __future__ import annotations

from alembic import op

revision = "20261126_0340"
down_revision = "20261126_0330"
branch_labels = None
depends_on = None

# A document names secrets and contains none.
VIEWS = """
CREATE VIEW finance.policy_versions AS
SELECT version, applied_at, is_demo, document FROM tollgate.policies;
CREATE VIEW finance.deployment_prices AS
SELECT deployment, valid_from, price_id, policy_version FROM tollgate.deployment_prices;
"""


def upgrade() -> None:
    """Create the views; the reader may select from every view of the schema."""
    op.get_bind().connection.cursor().execute(VIEWS)  # the driver's own: many statements at once
