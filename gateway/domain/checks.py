"""Declares the result of one health check (name, status, finding, remedy), as doctor, readiness and
month status show it; runs no check.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """A check's result. UNKNOWN: it could not be determined."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of an answer. `remedy` is the next step, empty if none is needed."""

    name: str
    status: Status
    finding: str
    remedy: str = ""
