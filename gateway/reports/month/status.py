"""Words the open items of a month, such as attempts of unknown cost, each with the command that
settles it; reads only, and closes no month.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from gateway.domain.checks import Check, Status
from gateway.domain.ledger.billed_hours import spans_between
from gateway.domain.ledger.month_close import BilledSpan, month_moments
from gateway.domain.money import format_usd
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.notes import share_text
from gateway.reports.sources.policies import readable_policy
from gateway.storage.ledger.month_findings import MonthFinding, month_findings

MONTH_STATE = """
SELECT coalesce((SELECT state FROM finance.periods WHERE month = :month),
    CASE WHEN now() >= (CAST(:month AS date) + interval '1 month') AT TIME ZONE 'UTC'
         THEN 'provisional' ELSE 'open' END) AS state
"""
_POLICIES = "SELECT applied_at, document FROM finance.policy_versions ORDER BY version"
_NOW = "SELECT now() AS now"
_ATTEMPTS = """
SELECT coalesce(sum(attempts), 0)::bigint AS attempts FROM finance.spend_daily_detail
WHERE posted_period = :month
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
        return bool(self.open_checks)

    @property
    def open_checks(self) -> tuple[Check, ...]:
        """Return the checks that stand against closing the month."""
        return tuple(check for check in self.checks if check.status is not Status.OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The words of a check: its finding and its remedy, which may depend on the finding and the
    month, and its text without a finding.
    """

    finding: Callable[[Mapping[str, Any]], str]
    remedy: str | Callable[[Mapping[str, Any], date], str]
    fine: Callable[[Mapping[str, Any]], str] = lambda _: "none"
    status: Status = Status.WARN


def _count(text: str) -> Callable[[Mapping[str, Any]], str]:
    """Return the words of a finding that gives the number of its items first."""
    return lambda row: f"{row['found']:,} {text}"


def _share(row: Mapping[str, Any]) -> str:
    """Return the words of the share of attempts whose cost is unknown."""
    attempts = int(row["attempts"])
    return f"{share_text(int(row['unknown']), attempts or 1)} of {attempts:,} attempts"


def _left(row: Mapping[str, Any]) -> str:
    """Return the words of the providers whose bill leaves a difference; None left: no bill."""
    left = (
        f"{provider} ({'no bill' if usd is None else f'{format_usd(usd)} left'})"
        for provider, usd in zip(row["providers"], row["left_usd"], strict=True)
    )
    return f"{row['found']:,} provider(s) whose bill is not reconciled: {', '.join(left)}"


def _reconcile(row: Mapping[str, Any], month: date) -> str:
    """Return the commands that reconcile the first of these providers."""
    whose = f"--provider {row['providers'][0]}"
    of_month = f"{whose} --month {month:%Y-%m}"
    first = (
        f"tollgate reconcile import FILE {whose} --kind KIND"
        if row["left_usd"][0] is None
        else f"tollgate reconcile show {of_month}"
    )
    return f"{first}; tollgate reconcile approve {of_month} --reason …"


def _resolve(row: Mapping[str, Any], month: date) -> str:
    """Return the command that resolves the first of these attempts, and the one that lists all."""
    return (
        f"tollgate reconcile resolve {row['first']} --as AMOUNT --reason …; "
        f"tollgate export adjustments --month {month:%Y-%m} --out FILE.xlsx"
    )


_WORDS: Mapping[str, _Words] = {
    "unsettled-events": _Words(
        finding=lambda row: (
            f"{row['found']:,} attempt(s) of unknown cost; {format_usd(row['held_usd'])} is held "
            "for them"
        ),
        remedy="tollgate report unsettled; tollgate reconcile resolve REQUEST_ID --as … --reason …",
    ),
    "unknown-share": _Words(
        finding=_share, fine=_share, remedy="see docs/runbooks/unknown-usage.md"
    ),
    "unpriced-models": _Words(
        finding=lambda row: f"{row['found']:,} attempt(s) without a price: {row['models']}",
        remedy="tollgate report events shows them; report it: such requests should have been "
        "refused",
        status=Status.FAIL,
    ),
    "stand-in-prices": _Words(
        finding=_count("attempt(s) charged at a stand-in price"),
        remedy="declare the real price, then: tollgate price reprice --dry-run",
    ),
    "suspect-usage": _Words(
        finding=_count("attempt(s) whose reported usage contradicts itself"),
        remedy="tollgate report receipt REQUEST_ID shows both figures",
    ),
    "expected-costs": _Words(
        finding=lambda row: (
            f"{row['found']:,} attempt(s) stand at an expected cost, {format_usd(row['usd'])} in "
            "all, because their cost was not entered in time"
        ),
        remedy=_resolve,
    ),
    "conflicting-events": _Words(
        finding=_count("event(s) came again with other content"),
        remedy="see docs/runbooks/rejected-events.md",
    ),
    "unreconciled-providers": _Words(
        finding=_left,
        fine=lambda row: (
            "each provider's bill is reconciled"
            if row["is_over"]
            else "providers' bills are due when the month is over"
        ),
        remedy=_reconcile,
    ),
    "missing-gpu-bills": _Words(
        finding=lambda row: (
            f"{row['found']:,} of {row['hours']:,} hour(s) of self-hosted GPUs have no known bill: "
            f"{row['deployments']}"
        ),
        fine=lambda row: (
            f"the bill of all {row['hours']:,} hour(s) of self-hosted GPUs is known"
            if row["hours"]
            else "no hours of self-hosted GPUs"
        ),
        remedy="tollgate report gpu; tollgate engine bill import FILE",
    ),
    "dead-letters": _Words(
        finding=_count("record(s) that may be of this month could not be booked"),
        remedy="see docs/runbooks/rejected-events.md",
        status=Status.FAIL,
    ),
    "silent-journals": _Words(
        finding=_count("live, but not heard of since: they may hold events"),
        fine=lambda _: "none is silent",
        remedy="start a gateway on that volume, or: tollgate journal lost ID --reason …",
    ),
    "lost-journals": _Words(
        finding=_count("lost in this time: their unwritten events are not in the ledger"),
        remedy="tollgate journal list; estimate the missing events from the provider's invoice",
    ),
    "dirty-hours": _Words(
        finding=_count("hour(s) wait to be summed up: totals are right but slow"),
        fine=lambda _: "all hours are summed up",
        remedy="see the gateways' logs for rollups_not_refreshed",
    ),
    "unpartitioned-events": _Words(
        finding=_count("event(s) lie in the default partition, or the month's own is detached"),
        remedy="tollgate db upgrade",
    ),
}


def month_status(
    snapshot: ReadSnapshot, month: date, *, billed: Sequence[BilledSpan] | None = None
) -> MonthStatus:
    """Return the open items of a month. Reads only real events; changes nothing.

    `billed` are the GPU hours that the policies declare; without them they are read.
    """
    spans = _declared(snapshot, month) if billed is None else billed
    found = month_findings(snapshot.row, month, billed=spans)
    return MonthStatus(
        month=month,
        state=snapshot.row(MONTH_STATE, month=month)["state"],
        attempts=snapshot.row(_ATTEMPTS, month=month)["attempts"],
        checks=tuple(_check(one, month) for one in found),
    )


def _declared(snapshot: ReadSnapshot, month: date) -> Sequence[BilledSpan]:
    """Return the GPU hours of a month that the applied policies declare."""
    begin, end = month_moments(month)
    applied = [
        (row["applied_at"], _always_billed(row["document"])) for row in snapshot.rows(_POLICIES)
    ]
    return spans_between(applied, begin=begin, end=end, now=snapshot.row(_NOW)["now"])


def _always_billed(document: str) -> Sequence[str]:
    """Return the deployments of a policy whose GPUs are paid for in every hour; none if this
    Tollgate cannot read it.
    """
    policy = readable_policy(document)
    return () if policy is None else policy.always_billed


def _check(found: MonthFinding, month: date) -> Check:
    """Return a finding in words, with its remedy, or an OK check."""
    words = _WORDS[found.name]
    if found.is_open:
        remedy = words.remedy
        remedy = remedy if isinstance(remedy, str) else remedy(found.figures, month)
        return Check(found.name, words.status, words.finding(found.figures), remedy)
    return Check(found.name, Status.OK, words.fine(found.figures))
