"""The purposes of the separate logins of one database."""

from __future__ import annotations

from enum import StrEnum


class As(StrEnum):
    """A login's purpose."""

    GATEWAY = "gateway"
    REPORTS = "reports"
    ADMIN = "admin"
