"""Declares a recorded budget grant and a worker's lease of a budget, as operators see them, and the
command that grants; changes neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A recorded grant, with its account, its period and its expiry; None means as long as the
    budget lasts.
    """

    grant_id: UUID
    account_id: str
    starts_at: datetime
    ends_at: datetime | None
    amount_nusd: int
    expires_at: datetime | None
    author: str


@dataclass(frozen=True, slots=True)
class WorkerLease:
    """One worker's lease in a budget's period, with the time of the worker's last heartbeat in
    Postgres.
    """

    journal_id: UUID
    replica: str | None
    outstanding_nusd: int
    held_nusd: int
    renewed_at: datetime


def grant_command(account_id: str, amount_usd: str) -> str:
    """Return the command that grants an amount to a budget account, as a person copies it: the
    account's name may have blanks, and what a shell would run.
    """
    return f"tollgate budget grant {quote(account_id)} {amount_usd} --reason …"
