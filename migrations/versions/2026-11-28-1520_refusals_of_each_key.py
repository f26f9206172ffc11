"""Refusals are counted by project, key and rule, those of budgets and limits among them.

The counts are in a new table: gateways of the previous release write into the old one until they
are replaced, by its own primary key. The view adds up both. It shows at most 1,000 rows of a team
and hour, however many workers counted: the rest is by code, under the rule `other`.
"""

from __future__ import annotations

from alembic import op

revision = "20261128_1520"
down_revision = "20261128_1510"
branch_labels = None
depends_on = None

MOST_NAMED = 950  # and one row of `other` for each code
STEP = f"""
CREATE TABLE tollgate.refusal_counts (
    journal_id uuid NOT NULL,
    hour       timestamptz NOT NULL CHECK (hour = date_trunc('hour', hour, 'UTC')),
    team       text NOT NULL,
    project    text NOT NULL,
    key_id     text NOT NULL,
    route      text NOT NULL,
    data_class text NOT NULL,
    code       text NOT NULL,
    rules      text[] NOT NULL,
    rule       text NOT NULL,
    requests   bigint NOT NULL CHECK (requests > 0),
    PRIMARY KEY (hour, team, project, key_id, route, data_class, code, rules, rule, journal_id)
);
CREATE OR REPLACE VIEW finance.refusals AS
SELECT hour, team, route, data_class, code, rules, sum(requests)::bigint AS requests, project, key_id, rule
FROM (SELECT hour, team, code, requests,
             CASE WHEN is_named THEN nullif(route, '') END AS route,
             CASE WHEN is_named THEN nullif(data_class, '') END AS data_class,
             CASE WHEN is_named THEN rules ELSE '{{}}' END AS rules,
             CASE WHEN is_named THEN nullif(project, '') END AS project,
             CASE WHEN is_named THEN nullif(key_id, '') END AS key_id,
             CASE WHEN is_named THEN nullif(rule, '') ELSE 'other' END AS rule
      FROM (SELECT *, rule <> 'other' AND row_number() OVER (
                PARTITION BY hour, team
                ORDER BY rule = 'other', code, rule, route, key_id, project, data_class, rules) <= {MOST_NAMED}
                AS is_named
            FROM (SELECT hour, team, project, key_id, route, data_class, code, rules, rule,
                         sum(requests) AS requests
                  FROM (SELECT hour, team, project, key_id, route, data_class, code, rules, rule, requests
                        FROM tollgate.refusal_counts
                        UNION ALL
                        SELECT hour, team, '', '', route, data_class, code, rules, coalesce(rules[1], ''), requests
                        FROM tollgate.refusals) AS every
                  GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9) AS counted) AS ranked) AS shown
GROUP BY hour, team, route, data_class, code, rules, project, key_id, rule;
CREATE OR REPLACE VIEW team.refusals WITH (security_barrier=true) AS
SELECT hour, team, route, data_class, code, rules, requests, project, key_id, rule FROM finance.refusals AS shown
WHERE team = ANY ((SELECT nullif(current_setting('tollgate.teams', true), '')::text[])::text[]);
GRANT SELECT, INSERT, UPDATE ON tollgate.refusal_counts TO tollgate_gateway;
"""  # noqa: S608 - constants


def upgrade() -> None:
    """Make the table, and let the view read both."""
    op.get_bind().connection.cursor().execute(STEP)
