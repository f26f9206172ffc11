"""What a look at the running system found: one line a check, each with what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a check came out. UNKNOWN: it could not be asked."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of an answer. `remedy` is what to do, empty where nothing is to be done."""

    name: str
    status: Status
    finding: str
    remedy: str = ""
