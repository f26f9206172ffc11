"""Counts the open items of a month, by the stable names of its checks; the report `month status`
words them, and `months` refuses to close a month that has one.

Each check counts only items that can touch the month. It reads roll-ups and partial indexes, so
a month of millions of events takes no longer. To add a check, add a `MonthCheck` here and its words
to the report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from gateway.domain.ledger.health import UNKNOWN_WARN_SHARE
from gateway.domain.ledger.month_close import BilledSpan, month_moments

# The running hour always waits for its sum; a wait longer than a few rounds of the job is a
# finding.
DIRTY_WARN = timedelta(minutes=10)
SILENT_WARN = timedelta(hours=24)
# A live worker sends a heartbeat every 15 seconds, and with each batch of events.
HEARD_WITHIN = timedelta(minutes=1)

Row = Mapping[str, Any]
Read = Callable[..., Row]  # runs a SELECT of one row, with named values


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthCheck:
    """A check of a month: a SELECT of one row with the column `found`, the number of open items,
    and the figures that its words need.
    """

    name: str
    select: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthFinding:
    """The result of a check. `figures` are the columns of its row."""

    name: str
    figures: Row

    @property
    def is_open(self) -> bool:
        """Return True if there is an open item."""
        return bool(self.figures["found"])


CHECKS = (
    MonthCheck(
        name="unsettled-events",
        select="SELECT count(*) AS found, coalesce(sum(held_usd), 0) AS held_usd "
        "FROM finance.usage_events WHERE posted_period = :month AND is_unsettled",
    ),
    MonthCheck(
        name="unknown-share",
        select="SELECT coalesce(sum(unknown_attempts), 0) AS unknown, coalesce(sum(attempts), 0) "
        "AS attempts, coalesce(sum(unknown_attempts), 0) > :unknown_warn * "
        "coalesce(sum(attempts), 0) AS found "
        "FROM finance.spend_daily_detail WHERE posted_period = :month",
    ),
    MonthCheck(
        name="unpriced-models",
        select="SELECT count(*) AS found, coalesce(string_agg(DISTINCT model, ', '), '') AS models "
        "FROM finance.usage_events WHERE posted_period = :month "
        "AND price_id IS NULL AND usage_source <> 'none'",
    ),
    MonthCheck(
        name="stand-in-prices",
        select="SELECT count(*) AS found FROM finance.usage_events "
        "WHERE posted_period = :month AND is_stand_in_price",
    ),
    MonthCheck(
        name="suspect-usage",
        select="SELECT count(*) AS found FROM finance.usage_events "
        "WHERE posted_period = :month AND is_suspect",
    ),
    MonthCheck(
        name="expected-costs",
        select="SELECT count(*) AS found, coalesce(sum(amount_usd), 0) AS usd, "
        "min(CAST(request_id AS text)) AS first "
        "FROM finance.adjustments WHERE posted_period = :month AND kind = 'expired_hold' "
        "AND is_expected",
    ),
    MonthCheck(
        name="conflicting-events",
        select="SELECT count(*) AS found FROM finance.adjustments "
        "WHERE posted_period = :month AND kind = 'redelivery'",
    ),
    # By day of use, as bills are: the bill, less what was metered and approved, must leave nothing.
    # Sums by day are enough: they hold the known costs, also of a provider without any bill. The
    # bill of a running month is not due yet.
    MonthCheck(
        name="unreconciled-providers",
        select="SELECT count(*) AS found, coalesce(array_agg(provider ORDER BY provider), '{}') "
        "AS providers, coalesce(array_agg(CASE WHEN billed IS NOT NULL THEN left_usd END "
        "ORDER BY provider), '{}') AS left_usd, "
        "now() >= CAST(:end AS timestamptz) AS is_over FROM ("
        "SELECT provider, sum(billed) AS billed, "
        "coalesce(sum(billed), 0) - sum(booked) AS left_usd FROM ("
        "SELECT provider, NULL::numeric AS billed, cost_usd AS booked "
        "FROM finance.spend_daily_detail WHERE day >= :month AND day < CAST(:end AS timestamptz) "
        "AT TIME ZONE 'UTC' AND NOT is_self_hosted AND cost_usd IS NOT NULL "
        "UNION ALL SELECT provider, NULL, amount_usd FROM finance.adjustments "
        "WHERE kind <> 'true_up' AND occurred_at >= :begin AND occurred_at < :end "
        "AND NOT is_self_hosted "
        "UNION ALL SELECT bill.provider, NULL, booked.amount_usd FROM finance.true_ups AS bill "
        "JOIN finance.adjustments AS booked USING (adjustment_id) "
        "WHERE day >= :month AND day < CAST(:end AS timestamptz) AT TIME ZONE 'UTC' "
        "UNION ALL SELECT provider, coalesce(amount_usd, 0), 0 FROM finance.provider_bills "
        "WHERE day >= :month AND day < CAST(:end AS timestamptz) AT TIME ZONE 'UTC'"
        ") AS amounts GROUP BY provider) AS provider_sums "
        "WHERE left_usd <> 0 AND now() >= CAST(:end AS timestamptz)",
    ),
    # Hours that are billed by the policy, and those with a row. A late bill has neither an
    # estimate nor an import of its own: it makes no hour known.
    MonthCheck(
        name="missing-gpu-bills",
        select="SELECT count(*) AS hours, count(*) FILTER (WHERE NOT is_known) AS found, "
        "coalesce(string_agg(DISTINCT deployment, ', ') FILTER (WHERE NOT is_known), '') "
        "AS deployments FROM ("
        "SELECT hour, deployment, bool_or(is_known) AS is_known FROM ("
        "SELECT hour, deployment, coalesce(imported_usd, estimated_usd) IS NOT NULL AS is_known "
        "FROM finance.gpu_cost WHERE hour >= :begin AND hour < :end "
        "AND (busy_hours IS NOT NULL OR estimated_usd IS NOT NULL OR imported_usd IS NOT NULL) "
        "UNION ALL "
        "SELECT generate_series(span_begin, span_end - interval '1 hour', interval '1 hour'), "
        "name, false FROM unnest(CAST(:deployments AS text[]), CAST(:begins AS timestamptz[]), "
        "CAST(:ends AS timestamptz[])) AS declared (name, span_begin, span_end)"
        ") AS rows GROUP BY hour, deployment) AS hours",
    ),
    # A record can only touch months between the first heartbeat of its journal and its refusal.
    MonthCheck(
        name="dead-letters",
        select="SELECT count(*) AS found FROM finance.dead_letters AS letter "
        "LEFT JOIN finance.journals AS journal ON journal.id = letter.journal_id "
        "WHERE letter.resolved_at IS NULL AND letter.recorded_at >= :begin "
        "AND coalesce(journal.started_at < :end, true)",
    ),
    # Live, and without a word since the month ended: it may hold the month's events.
    MonthCheck(
        name="silent-journals",
        select="SELECT count(*) AS found, coalesce(min(id::text), '') AS example "
        "FROM finance.journals WHERE state = 'live' AND heartbeat < CASE "
        "WHEN now() >= CAST(:end AS timestamptz) THEN CAST(:end AS timestamptz) + "
        "CAST(:heard_within AS interval) ELSE now() - CAST(:silent_warn AS interval) END",
    ),
    # Its last events lie between its last heartbeat and its loss.
    MonthCheck(
        name="lost-journals",
        select="SELECT count(*) AS found FROM finance.journals WHERE state = 'lost' "
        "AND heartbeat < :end AND coalesce(lost_at, now()) >= :begin",
    ),
    # Events of earlier hours, which came late, are posted to this month too.
    MonthCheck(
        name="dirty-hours",
        select="SELECT count(*) AS found FROM finance.dirty_hours WHERE hour < :end "
        "AND (hour >= :begin OR EXISTS (SELECT FROM finance.periods WHERE month < :month "
        "AND state = 'closed')) AND noted_at < now() - CAST(:dirty_warn AS interval)",
    ),
    MonthCheck(
        name="unpartitioned-events",
        # Of a detached partition nobody here can count the events.
        select="SELECT coalesce(sum(attempts), 0) + (SELECT count(*) FROM pg_class "
        "JOIN pg_namespace AS place ON place.oid = relnamespace AND nspname = 'tollgate' "
        "WHERE relname = 'usage_events_' || to_char(CAST(:month AS date), 'YYYY_MM') "
        "AND NOT relispartition) AS found FROM finance.unpartitioned_hours "
        "WHERE hour >= :begin AND hour < :end",
    ),
)


def month_findings(read: Read, month: date, *, billed: Sequence[BilledSpan]) -> list[MonthFinding]:
    """Return the result of each check of a month, in order. `billed` are the GPU hours that the
    policy declares.
    """
    begin, end = month_moments(month)
    values: dict[str, object] = {
        "month": month,
        "begin": begin,
        "end": end,
        "unknown_warn": UNKNOWN_WARN_SHARE,
        "dirty_warn": DIRTY_WARN,
        "silent_warn": SILENT_WARN,
        "heard_within": HEARD_WITHIN,
        "deployments": [span.deployment for span in billed],
        "begins": [span.begin for span in billed],
        "ends": [span.end for span in billed],
    }
    return [
        MonthFinding(
            name=check.name,
            figures=read(
                check.select,
                **{name: value for name, value in values.items() if f":{name}" in check.select},
            ),
        )
        for check in CHECKS
    ]
