"""Declares the SQL of events with a row for each of their priced lines; runs no query."""

from __future__ import annotations

from sqlalchemy import (
    FromClause,
    Numeric,
    Subquery,
    Text,
    column,
    func,
    literal_column,
    select,
    true,
)

_USD_PER_NUSD = literal_column("0.000000001", Numeric)


def with_lines(events: FromClause) -> Subquery:
    """Return the rows of a view of events, each once for each of its lines, with the columns
    `token_kind`, `line_tokens` (or calls) and `line_usd`; they are NULL for an event without lines.
    """
    members = column("kind", Text), column("tokens", Numeric), column("cost_nusd", Numeric)
    relation = func.jsonb_to_recordset(events.c.lines).table_valued(*members)
    line = relation.render_derived(with_types=True, name="line")
    return (
        select(
            *events.c,
            line.c.kind.label("token_kind"),
            line.c.tokens.label("line_tokens"),
            (line.c.cost_nusd * _USD_PER_NUSD).label("line_usd"),
        )
        .select_from(events.outerjoin(line, true()))
        .subquery("event")
    )
