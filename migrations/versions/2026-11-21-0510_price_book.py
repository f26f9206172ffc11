"""The price book: dated entries of every kind, with their source."""

from __future__ import annotations

from alembic import op

revision = "20261121_0510"
down_revision = "20261121_0500"
branch_labels = None
depends_on = None

# An entry without a price says that from then on there is none: an override withdrawn, a model the
# list lost.
TABLES = """
CREATE TABLE tollgate.price_entries (
    entry_id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    origin      text NOT NULL CHECK (origin IN ('list', 'override')),
    provider    text,
    model       text,
    deployment  text,
    valid_from  timestamptz NOT NULL,
    daily_since time,
    daily_until time,
    price_id    text REFERENCES tollgate.prices,
    source      text NOT NULL,
    author      text NOT NULL,
    reason      text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT a_window_has_two_ends CHECK ((daily_since IS NULL) = (daily_until IS NULL)),
    CONSTRAINT says_what_it_prices CHECK (
        CASE WHEN origin = 'list' THEN provider IS NOT NULL AND model IS NOT NULL AND deployment IS NULL
             ELSE (deployment IS NULL) <> (model IS NULL) AND (provider IS NULL OR model IS NOT NULL) END)
);
CREATE INDEX price_entries_model ON tollgate.price_entries (provider, model);
"""

# Grants bind the product's roles, the triggers bind the owner too: last quarter must add up next
# year.
NEVER_EDITED = """
CREATE FUNCTION tollgate.refuse_price_change() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    AS $$
BEGIN
    RAISE EXCEPTION '% on %: a price is never changed', TG_OP, TG_RELID::regclass
        USING ERRCODE = 'restrict_violation', HINT = 'Add another dated one: tollgate price add.';
END
$$;
CREATE TRIGGER price_entries_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.price_entries
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
CREATE TRIGGER prices_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.prices
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
CREATE TRIGGER deployment_prices_never_change BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.deployment_prices
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_price_change();
REVOKE UPDATE, DELETE, TRUNCATE ON tollgate.price_entries, tollgate.prices, tollgate.deployment_prices
    FROM PUBLIC, tollgate_reader, tollgate_gateway;
CREATE TRIGGER price_entries_added AFTER INSERT ON tollgate.price_entries
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.notify_change();
"""

VIEWS = """
CREATE VIEW finance.price_entries AS
SELECT entry_id, origin, provider, model, deployment, valid_from, daily_since, daily_until, price_id, source, author,
       reason, created_at
FROM tollgate.price_entries;
"""

GRANTS = """
GRANT SELECT ON tollgate.price_entries TO tollgate_gateway;
GRANT SELECT ON finance.price_entries TO tollgate_reader;
"""

STEPS: tuple[str, ...] = (TABLES, NEVER_EDITED, VIEWS, GRANTS)


def upgrade() -> None:
    """Run the steps in order."""
    cursor = (
        op.get_bind().connection.cursor()
    )  # the driver's own: many statements at once, and % as it stands
    for step in STEPS:
        cursor.execute(step)
