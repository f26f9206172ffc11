"""Reads the applied policies for reports; one that this release cannot read counts as absent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from hashlib import sha256

from gateway.domain.policy.policy import Policy, PolicyVersion
from gateway.errors import PolicyRejected
from gateway.reports.sources.connection import ReadSnapshot
from gateway.wire.parsed_policy import parse

_CURRENT = """
SELECT document FROM finance.policy_versions
WHERE applied_at <= coalesce(CAST(:at AS timestamptz), 'infinity') ORDER BY version DESC LIMIT 1
"""
_NAMED = "SELECT version, document FROM finance.policy_versions WHERE version = ANY(:numbers)"


def current_policy(snapshot: ReadSnapshot, at: datetime | None = None) -> Policy | None:
    """Return the policy in force, now or at a moment; None without one, or if this release cannot
    read it.
    """
    found = snapshot.rows(_CURRENT, at=at)
    return readable_policy(found[0]["document"]) if found else None


def readable_policy(document: str) -> Policy | None:
    """Return the policy of a stored document, None if this release cannot read it."""
    try:
        return parse(document).policy
    except PolicyRejected:
        return None


def policy_versions(
    snapshot: ReadSnapshot, numbers: Collection[int]
) -> Mapping[int, PolicyVersion]:
    """Return the policy versions with these numbers that this release can read."""
    found = {}
    for row in snapshot.rows(_NAMED, numbers=list(numbers)):
        policy = readable_policy(row["document"])
        if policy is not None:
            digest = sha256(row["document"].encode()).hexdigest()
            found[row["version"]] = PolicyVersion(
                version=row["version"], sha256=digest, policy=policy
            )
    return found
