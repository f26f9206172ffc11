"""A budget's spending is a number without an upper end: no sum of holds makes an event
unwritable.
"""

from __future__ import annotations

from alembic import op

revision = "20261123_0230"
down_revision = "20261123_0215"
branch_labels = None
depends_on = None

# A soft budget counts unknown attempts at their holds, and it refuses none of them. Their sum
# passed the end of BIGINT, and from then on every event of that budget was refused (ledger audit
# 1.13). The view is made again as it is, for whoever may read it now.
SPENT = """
DO $$
DECLARE
    definition constant text := pg_get_viewdef('finance.budgets'::regclass);
    readers text;
BEGIN
    SELECT string_agg(format('GRANT %s ON finance.budgets TO %s', privilege_type,
                             CASE grantee WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(grantee) END), '; ')
        INTO readers
        FROM information_schema.role_table_grants
        WHERE table_schema = 'finance' AND table_name = 'budgets' AND grantee <> current_user;
    DROP VIEW finance.budgets;
    ALTER TABLE tollgate.budget_periods ALTER COLUMN spent_nusd TYPE numeric;
    EXECUTE format('CREATE VIEW finance.budgets AS %s', definition);
    IF readers IS NOT NULL THEN
        EXECUTE readers;
    END IF;
END
$$;
"""

# Workers get a BIGINT. Beyond its end the exact excess makes no difference.
EXCHANGE = """
DO $$
DECLARE
    before text := pg_get_functiondef('tollgate.exchange_slices(uuid, jsonb, integer)'::regprocedure);
    told constant text := 'spent_nusd := period.spent_nusd;';
BEGIN
    ASSERT strpos(before, told) > 0, 'exchange_slices does not tell what is spent';
    EXECUTE replace(before, told,
        'spent_nusd := least(greatest(period.spent_nusd, -9223372036854775808), 9223372036854775807);');
END
$$;
"""

STEPS = (SPENT, EXCHANGE)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
