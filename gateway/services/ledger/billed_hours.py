"""Finds the hours of a month in which the policies declare that a deployment's GPUs are paid for,
whether it served or not; reads no bill.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gateway.domain.ledger.month_close import BilledSpan
from gateway.domain.policy.stored_policy import StoredPolicy
from gateway.domain.pricing.selfhost import BilledHours
from gateway.errors import PolicyRejected
from gateway.services.policy.apply import version_of
from gateway.services.stores import PolicyHistory


def billed_spans(
    policies: PolicyHistory, *, begin: datetime, end: datetime, now: datetime
) -> list[BilledSpan]:
    """Return the whole hours between two moments, until now, for which a policy in force says
    `hours: always`.

    A deployment that a later policy takes out is paid for until then. A policy that this Tollgate
    cannot read declares nothing.
    """
    history = sorted(policies.history(), key=lambda stored: stored.version)
    until = min(end, now.replace(minute=0, second=0, microsecond=0))
    spans = []
    for place, stored in enumerate(history):
        in_force_until = history[place + 1].applied_at if place + 1 < len(history) else until
        first = max(begin, _hour_of(stored.applied_at))
        last = min(until, _hour_of(in_force_until))
        if first < last:
            spans += [
                BilledSpan(deployment=name, begin=first, end=last) for name in _always(stored)
            ]
    return spans


def _hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour that a moment lies in: a policy counts for all of it."""
    return moment.replace(minute=0, second=0, microsecond=0)


def _always(stored: StoredPolicy) -> Sequence[str]:
    """Return the deployments of a policy whose GPUs are paid for in every hour."""
    try:
        deployments = version_of(stored).policy.deployments.values()
    except PolicyRejected:
        return ()
    return [
        one.name
        for one in deployments
        if one.gpu is not None and one.gpu.hours is BilledHours.ALWAYS
    ]
