"""Declares a group of sent attempts that agree in every field that residency depends on, as
evidence for an audit; reads none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True, kw_only=True)
class SentAttempts:
    """Attempts that agree in every field that residency depends on.

    Places are region names as recorded.
    """

    day: date
    policy_version: int
    policy_sha256: str
    data_class: str
    data_tags: frozenset[str]
    class_source: str
    gateway_region: str
    deployment: str
    region: str
    host: str
    at_rest: str
    telemetry: str
    attempts: int
    requests: int
    contradicted: int
