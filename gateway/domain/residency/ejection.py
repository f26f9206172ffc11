"""Declares one ejection of a deployment, whose upstream reported another place than promised, and
its readmission; ejects nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Ejection:
    """One ejection, with the attempt whose answer caused it; the readmission fields are None
    until a person readmits.
    """

    deployment: str
    promised: str
    stated: str
    request_id: UUID
    attempt: int
    ejected_at: datetime
    readmitted_at: datetime | None
    readmitted_by: str | None
    reason: str | None
