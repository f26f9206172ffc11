"""Reads why Postgres refuses a login, from the words of its refusal, and names the remedy.

libpq gives no SQLSTATE for a refused connection. Postgres says little to a refused login: as
another login, `logins.role_problem` looks into the catalogue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.domain.database_server import quoted
from gateway.domain.logins import LoginPurpose, login_name

# A server that starts or stops answers with FATAL too.
_WORDS = (
    "password",
    "not permitted to log in",
    "permission denied for database",
    "does not exist",
    "pg_hba.conf",
)


def is_refusal(reason: str) -> bool:
    """Return True if a server answered and refused the login or the database."""
    return "FATAL" in reason and any(words in reason for words in _WORDS)


def remedy(login: Mapping[str, Any], reason: str, *, setting: str) -> str:
    """Return the remedy that lets a refused login in; `login` has the connection's parameters, and
    `setting` is the variable with its address.
    """
    name, database = str(login.get("user", "the login")), str(login.get("dbname", ""))
    user = quoted(name)
    is_own = name in (login_name(database, purpose) for purpose in LoginPurpose)
    if "password" in reason and is_own:
        return (
            "Give it another password: tollgate db upgrade --new-passwords. If its time is over, "
            f"as an administrator: ALTER ROLE {user} VALID UNTIL 'infinity';"
        )
    if "password" in reason:
        return f"Fix the password in {setting}, or the login's VALID UNTIL."
    if "log in" in reason:
        return f"As an administrator: ALTER ROLE {user} LOGIN;"
    if "permission denied for database" in reason:
        grant = f"GRANT CONNECT ON DATABASE {quoted(database)} TO {user};"
        upgrade = "Run: tollgate db upgrade. Or, a" if is_own else "A"
        return f"{upgrade}s the owner of the database: {grant}"
    if "does not exist" in reason and 'database "' in reason:
        return f"Create it (CREATE DATABASE … ENCODING 'UTF8'), or fix {setting}."
    if "does not exist" in reason:
        return f"Run: tollgate db upgrade, which makes it, or fix {setting}."
    return f"See pg_hba.conf, or fix {setting}."
