"""Checks a month for open items, such as attempts of unknown cost, each with its remedy; reads
only, and closes no month.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta

from gateway.domain.checks import Check, Status
from gateway.domain.ledger.health import UNKNOWN_WARN_SHARE
from gateway.domain.money import format_usd
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.notes import share_text

# The running hour always waits for its sum; a wait longer than a few rounds of the job is a
# finding.
DIRTY_WARN = "10 minutes"
SILENT_WARN = "24 hours"
_WARNS = {"dirty_warn": DIRTY_WARN, "silent_warn": SILENT_WARN}
_FOUR_DAYS = timedelta(days=4)  # from the 28th always into the next month

_EVENTS = """
SELECT count(*) AS attempts,
       count(*) FILTER (WHERE is_unsettled) AS unsettled,
       coalesce(sum(held_usd) FILTER (WHERE is_unsettled), 0) AS held_usd,
       count(*) FILTER (WHERE price_id IS NULL AND usage_source <> 'none') AS unpriced,
       count(*) FILTER (WHERE is_stand_in_price) AS stand_in,
       count(*) FILTER (WHERE is_suspect) AS suspect
FROM finance.usage_events WHERE posted_period = :month
"""
_ADJUSTMENTS = """
SELECT count(*) FILTER (WHERE is_expected) AS expected,
       coalesce(sum(amount_usd) FILTER (WHERE is_expected), 0) AS expected_usd,
       count(*) FILTER (WHERE kind = 'redelivery') AS conflicts
FROM finance.adjustments WHERE posted_period = :month
"""
_LEDGER = """
SELECT (SELECT count(*) FROM finance.dead_letters WHERE resolved_at IS NULL) AS dead_letters,
       (SELECT count(*) FROM finance.dirty_hours WHERE hour >= :month AND hour < :next
            AND noted_at < now() - CAST(:dirty_warn AS interval)) AS dirty_hours,
       (SELECT coalesce(sum(attempts), 0) FROM finance.unpartitioned_hours
            WHERE hour >= :month AND hour < :next) AS unpartitioned,
       (SELECT count(*) FROM finance.journals WHERE state = 'live'
            AND heartbeat < now() - CAST(:silent_warn AS interval)) AS silent_journals,
       (SELECT count(*) FROM finance.journals WHERE state = 'lost') AS lost_journals
"""
_GPU_HOURS = """
SELECT count(*) AS hours, count(*) FILTER (WHERE bill_usd IS NULL) AS missing
FROM finance.gpu_cost WHERE hour >= :month AND hour < :next
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthStatus:
    """A month (its first day), its state, and all its checks."""

    month: date
    state: str
    attempts: int
    checks: tuple[Check, ...]

    @property
    def has_findings(self) -> bool:
        """Return True if an item should be resolved before the month is closed."""
        return any(check.status is not Status.OK for check in self.checks)


def month_status(snapshot: ReadSnapshot, month: date) -> MonthStatus:
    """Return the open items of a month. Reads only real events; changes nothing."""
    following = (month.replace(day=28) + _FOUR_DAYS).replace(day=1)
    values = {"month": month, "next": following}
    states = snapshot.rows("SELECT state FROM finance.periods WHERE month = :month", month=month)
    events = snapshot.row(_EVENTS, month=month)
    return MonthStatus(
        month=month,
        state=states[0]["state"] if states else "open",
        attempts=events["attempts"],
        checks=(
            *_event_checks(events),
            *_adjustment_checks(snapshot.row(_ADJUSTMENTS, month=month)),
            _gpu_hours_check(snapshot.row(_GPU_HOURS, **values)),
            *_ledger_checks(snapshot.row(_LEDGER, **values, **_WARNS)),
        ),
    )


def _event_checks(row: Row) -> Iterator[Check]:
    """Yield the checks on a month's events: unsettled, unpriced, at a stand-in price, or with
    suspect usage.
    """
    attempts, unsettled, held = row["attempts"], row["unsettled"], format_usd(row["held_usd"])
    yield _check(
        "unsettled",
        unsettled,
        f"{unsettled:,} attempt(s) of unknown cost; {held} is held for them",
        "none",
        remedy="tollgate report unsettled; tollgate reconcile resolve REQUEST_ID --as … --reason …",
    )
    share = unsettled / attempts if attempts else 0.0
    yield _check(
        "unknown share",
        share > UNKNOWN_WARN_SHARE,
        f"{share_text(unsettled, attempts or 1)} of {attempts:,} attempts",
        f"{share_text(unsettled, attempts or 1)} of {attempts:,} attempts",
        remedy="see docs/runbooks/unknown-usage.md",
    )
    yield _check(
        "unpriced",
        row["unpriced"],
        f"{row['unpriced']:,} attempt(s) without a price",
        "none",
        status=Status.FAIL,
        remedy="tollgate report events shows them; report it: such requests should have been "
        "refused",
    )
    yield _check(
        "stand-in prices",
        row["stand_in"],
        f"{row['stand_in']:,} attempt(s) charged at a stand-in price",
        "none",
        remedy="declare the real price, then: tollgate price reprice --dry-run",
    )
    yield _check(
        "suspect usage",
        row["suspect"],
        f"{row['suspect']:,} attempt(s) whose reported usage contradicts itself",
        "none",
        remedy="tollgate report receipt REQUEST_ID shows both figures",
    )


def _adjustment_checks(row: Row) -> Iterator[Check]:
    """Yield the checks on a month's adjustments: expected costs and conflicting events."""
    expected, conflicts = row["expected"], row["conflicts"]
    yield _check(
        "expected costs",
        expected,
        f"{expected:,} attempt(s) stand at an expected cost, {format_usd(row['expected_usd'])} in "
        "all, because their cost was not entered in time",
        "none",
        remedy="tollgate reconcile resolve REQUEST_ID --as AMOUNT --reason …",
    )
    yield _check(
        "conflicting events",
        conflicts,
        f"{conflicts:,} event(s) came again with other content",
        "none",
        remedy="see docs/runbooks/rejected-events.md",
    )


def _gpu_hours_check(row: Row) -> Check:
    """Return the check that the bill of all of a month's hours of self-hosted GPUs is known."""
    return _check(
        "GPU hours",
        row["missing"],
        f"{row['missing']:,} of {row['hours']:,} hour(s) of self-hosted GPUs have no known bill",
        f"the bill of all {row['hours']:,} hour(s) of self-hosted GPUs is known"
        if row["hours"]
        else "no hours of self-hosted GPUs",
        remedy="tollgate report gpu; declare hours in the policy",
    )


def _ledger_checks(row: Row) -> Iterator[Check]:
    """Yield the checks on the whole ledger: dead letters, journals, roll-ups and partitions."""
    yield _check(
        "dead letters",
        row["dead_letters"],
        f"{row['dead_letters']:,} record(s) of any month could not be booked",
        "none",
        status=Status.FAIL,
        remedy="see docs/runbooks/rejected-events.md",
    )
    yield _check(
        "journals",
        row["silent_journals"],
        f"{row['silent_journals']:,} silent for {SILENT_WARN}: they may hold events",
        "none is silent",
        remedy="start a gateway on that volume, or: tollgate journal lost ID --reason …",
    )
    yield _check(
        "lost journals",
        row["lost_journals"],
        f"{row['lost_journals']:,}: their unwritten events are not in the ledger",
        "none",
        remedy="tollgate journal list; estimate the missing events from the provider's invoice",
    )
    yield _check(
        "roll-ups",
        row["dirty_hours"],
        f"{row['dirty_hours']:,} hour(s) wait to be summed up: totals are right but slow",
        "all hours are summed up",
        remedy="see the gateways' logs for rollups_not_refreshed",
    )
    yield _check(
        "partitions",
        row["unpartitioned"],
        f"{row['unpartitioned']:,} event(s) lie in the default partition",
        "ok",
        remedy="tollgate db upgrade",
    )


def _check(
    name: str,
    is_finding: object,
    finding: str,
    fine: str,
    *,
    remedy: str,
    status: Status = Status.WARN,
) -> Check:
    """Return a check with a finding and its remedy, or without a finding an OK check with the text
    `fine`.
    """
    return Check(name, status, finding, remedy) if is_finding else Check(name, Status.OK, fine)
