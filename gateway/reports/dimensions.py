"""By what events can be grouped and filtered, and how each of those is written in SQL."""

from __future__ import annotations

from enum import StrEnum

from gateway.reports.report import Column, Kind

UNTAGGED = "(untagged)"  # never the text of a tag: those hold a "="


class Dimension(StrEnum):
    """A thing a total can be split by. The value is the word that users type."""

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
        """The column this dimension makes."""
        if self is Dimension.DAY:
            return Column(name="day", unit="UTC", kind=Kind.DAY)
        return Column(name=self.value, unit="", kind=Kind.TEXT)

    @property
    def sql(self) -> str:
        """What one event has of it. Constants only: nothing a user typed is ever part of a statement."""
        return _EXPRESSIONS.get(self, self.value)


_EXPRESSIONS = {
    Dimension.KEY: "key_id",
    Dimension.TAG: f"coalesce(pair.key || '=' || pair.value, '{UNTAGGED}')",
    Dimension.DESTINATION: "CASE WHEN is_self_hosted THEN 'self-hosted' ELSE 'external' END",
    Dimension.DAY: "CAST(occurred_at AT TIME ZONE 'UTC' AS date)",
}

# An event with three tags is in three rows of a report by tag. Totals never read this join: counting an
# event once per tag inflates them (+67 % in a widely used gateway).
TAG_JOIN = "LEFT JOIN LATERAL jsonb_each_text(tags) AS pair ON true"
HAS_TAG = "EXISTS (SELECT FROM jsonb_each_text(tags) AS pair WHERE pair.key || '=' || pair.value = :{name})"
HAS_NO_TAG = "coalesce(tags, '{}') = '{}'"
