"""Finds the hours of a month in which applied policies declare that a deployment's GPUs are paid
for, whether it served or not; parses no policy and reads no bill.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gateway.domain.ledger.month_close import BilledSpan

Applied = tuple[datetime, Sequence[str]]


def spans_between(
    applied: Sequence[Applied], *, begin: datetime, end: datetime, now: datetime
) -> list[BilledSpan]:
    """Return the whole hours between two moments, until now, for which a policy in force declares
    GPUs of `hours: always`.

    `applied` has for each policy version, oldest first, the moment of its apply and the names of
    these deployments. A deployment that a later version takes out is paid for until then.
    """
    until = min(end, _hour_of(now))
    spans = []
    for place, (applied_at, names) in enumerate(applied):
        in_force_until = applied[place + 1][0] if place + 1 < len(applied) else until
        first, last = max(begin, _hour_of(applied_at)), min(until, _hour_of(in_force_until))
        if first < last:
            spans += [BilledSpan(deployment=name, begin=first, end=last) for name in names]
    return spans


def _hour_of(moment: datetime) -> datetime:
    """Return the beginning of the hour that a moment lies in: a policy counts for all of it."""
    return moment.replace(minute=0, second=0, microsecond=0)
