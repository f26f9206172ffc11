"""Declares one applied policy document as the database stores it: text, version, hash, author and
time; not the parsed policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """One applied document, with its original text."""

    version: int
    sha256: str
    document: str
    author: str
    message: str
    is_demo: bool
    applied_at: datetime
