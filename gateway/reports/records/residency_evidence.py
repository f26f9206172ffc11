"""Decides a team's sent attempts of a month again, each under its own policy version, for the
dashboard. `tollgate audit residency` writes the same verdict as a document.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from gateway.domain.calendar_months import next_month
from gateway.domain.residency.attempt_verification import Verified, verify_sent
from gateway.reports.records.residency_month import ResidencyMonth, residency_month
from gateway.reports.sources.connection import ReadSnapshot
from gateway.reports.sources.policies import policy_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyEvidence:
    """A team's month: its sent and refused requests, and the verdict on the sent ones."""

    past: ResidencyMonth
    verified: Verified


def residency_evidence(snapshot: ReadSnapshot, *, team: str, month: date) -> ResidencyEvidence:
    """Return the verdict on a team's month, given by its first day. It reads the team's events of
    the month one by one.
    """
    first, after = (datetime.combine(day, time(), UTC) for day in (month, next_month(month)))
    past = residency_month(snapshot, team=team, first=first, next_first=after)
    versions = policy_versions(snapshot, {one.policy_version for one in past.sent})
    return ResidencyEvidence(past=past, verified=verify_sent(past.sent, versions, team=team))
