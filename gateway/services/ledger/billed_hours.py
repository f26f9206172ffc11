"""Finds the hours of a month in which the policies declare that a deployment's GPUs are paid for,
whether it served or not; reads no bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from gateway.domain.ledger.billed_hours import spans_between
from gateway.domain.ledger.month_close import BilledSpan
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.errors import PolicyRejected
from gateway.services.policy.apply import version_of


def billed_spans(
    history: Iterable[StoredPolicy], *, begin: datetime, end: datetime, now: datetime
) -> list[BilledSpan]:
    """Return the whole hours between two moments, until now, for which a policy in force says
    `hours: always`; `history` has every version. A policy that this Tollgate cannot read declares
    nothing.
    """
    versions = sorted(history, key=lambda stored: stored.version)
    applied = [(stored.applied_at, _always(stored)) for stored in versions]
    return spans_between(applied, begin=begin, end=end, now=now)


def _always(stored: StoredPolicy) -> Sequence[str]:
    """Return the deployments of a policy whose GPUs are paid for in every hour."""
    try:
        return version_of(stored).policy.always_billed
    except PolicyRejected:
        return ()
