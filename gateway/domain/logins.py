"""Declares the purposes of a database's separate logins (serving, reports, administration, finance)
and the result of creating them; creates none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

MOST_NAME_BYTES = 63  # of a name in Postgres


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


def login_name(database: str, purpose: LoginPurpose) -> str:
    """Return a login's name. Logins belong to a server and not to a database, so the name
    includes the database.
    """
    name = f"{database}_{purpose}_login"
    if len(name.encode()) <= MOST_NAME_BYTES:
        return name
    return f"tollgate_{sha256(database.encode()).hexdigest()[:16]}_{purpose}_login"
