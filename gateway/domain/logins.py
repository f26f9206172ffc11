"""Declares the purposes of a database's separate logins (serving, reports, administration, finance)
and the result of creating them; creates none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LoginPurpose(StrEnum):
    """The purpose of a database login: serving, reports, administration or finance's approvals."""

    GATEWAY = "gateway"
    REPORTS = "reports"
    ADMIN = "admin"
    FINANCE = "finance"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedLogins:
    """The result of creating logins: the ready ones, the SQL that an administrator has to run,
    and notes.
    """

    ready: tuple[str, ...]
    sql: tuple[str, ...]
    notes: tuple[str, ...]
