"""The dimensions by which events are grouped and filtered, each with its SQL."""

from __future__ import annotations

from enum import StrEnum

from gateway.reports.report import Column, ColumnKind

UNALLOCATED = "unallocated"  # never the text of a tag, because those contain "="
UNTAGGED = "(untagged)"  # the older word for it, still accepted in a filter


class Dimension(StrEnum):
    """A dimension that splits a total. The value is the word that users type."""

    TEAM = "team"
    PROJECT = "project"
    COST_CENTRE = "cost_centre"
    KEY = "key"
    END_USER = "end_user"
    TAG = "tag"
    ROUTE = "route"
    MODEL = "model"
    PROVIDER = "provider"
    REGION = "region"
    DEPLOYMENT = "deployment"
    DESTINATION = "destination"
    OUTCOME = "outcome"
    USAGE_SOURCE = "usage_source"
    DAY = "day"

    @property
    def column(self) -> Column:
        """Return the column of this dimension."""
        if self is Dimension.DAY:
            return Column(name="day", unit="UTC", kind=ColumnKind.DAY)
        return Column(name=self.value, unit="", kind=ColumnKind.TEXT)

    @property
    def sql(self) -> str:
        """Return an event's value as SQL.

        Constants only: user input is never part of a statement.
        """
        return _EXPRESSIONS.get(self, self.value)


_EXPRESSIONS = {
    Dimension.KEY: "key_id",
    Dimension.TAG: "pair.label",
    Dimension.DESTINATION: "CASE WHEN is_self_hosted THEN 'self-hosted' ELSE 'external' END",
    Dimension.DAY: "CAST(occurred_at AT TIME ZONE 'UTC' AS date)",
}

# An event with three tags is in three rows of a report by tag, each time in full. It counts -2
# times in the row `unallocated`; an event without a tag counts there once. So the rows always add
# up to the total.
TAGS_THAT_ADD_UP = f"""CROSS JOIN LATERAL (
    SELECT key || '=' || value AS label, 1 AS times FROM jsonb_each_text(tags)
    UNION ALL
    SELECT '{UNALLOCATED}', 1 - count(*) FROM jsonb_each_text(tags) HAVING count(*) <> 1
) AS pair"""  # noqa: S608 - constants
# Percentiles cannot be subtracted: there `unallocated` has the events without a tag, and the rows
# overlap.
TAGS_THAT_OVERLAP = f"""CROSS JOIN LATERAL (
    SELECT key || '=' || value AS label FROM jsonb_each_text(tags)
    UNION ALL
    SELECT '{UNALLOCATED}' FROM jsonb_each_text(tags) HAVING count(*) = 0
) AS pair"""  # noqa: S608 - constants
HAS_TAG = (
    "EXISTS (SELECT FROM jsonb_each_text(tags) AS pair WHERE pair.key || '=' || "
    "pair.value = :{name})"
)
HAS_NO_TAG = "coalesce(tags, '{}') = '{}'"
