"""What the separate logins of one database are for."""

from __future__ import annotations

from enum import StrEnum


class As(StrEnum):
    """What a login is for."""

    GATEWAY = "gateway"
    REPORTS = "reports"
    ADMIN = "admin"
