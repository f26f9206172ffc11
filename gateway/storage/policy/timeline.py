"""Reads from Postgres which policy version was in force in each part of a span of time, to price
engines' GPU hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, text

from gateway.domain.deployments.engine_sample import UpSpan
from gateway.domain.policy.policy import PolicyVersion
from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse

# The versions applied inside the span, and the one that was in force when it began.
_IN_FORCE = """
SELECT version, sha256, CASE WHEN version <> :known THEN document END AS document, applied_at
FROM tollgate.policies
WHERE applied_at < :end AND version >= coalesce(
    (SELECT max(version) FROM tollgate.policies WHERE applied_at <= :begin), 0)
ORDER BY version
"""
_FIRST = "SELECT min(applied_at) FROM tollgate.policies"


def first_apply(connection: Connection) -> datetime | None:
    """Return the time of the first apply, or None before it."""
    applied_at: datetime | None = connection.execute(text(_FIRST)).scalar_one()
    return applied_at


def in_force(
    connection: Connection, span: UpSpan, *, otherwise: PolicyVersion
) -> Sequence[tuple[PolicyVersion, UpSpan]]:
    """Split `span` by the policy version in force, oldest first; the parts add up to the span.

    `otherwise` is used for its own time, for the time before the first apply, and for a stored
    document that the running release rejects. So nothing is parsed while it stays in force.
    """
    reach = {"begin": span.begin, "end": span.end, "known": otherwise.version}
    rows = connection.execute(text(_IN_FORCE), reach).all()
    parts: list[tuple[PolicyVersion, UpSpan]] = []
    begin, version = span.begin, otherwise
    for row in rows:
        if row.applied_at > begin:
            parts.append((version, UpSpan(begin=begin, end=row.applied_at)))
            begin = row.applied_at
        read = None if row.document is None else _read(row.document, row.version, row.sha256)
        version = read or otherwise
    return [*parts, (version, UpSpan(begin=begin, end=span.end))]


def _read(document: str, version: int, sha256: str) -> PolicyVersion | None:
    """Return the policy version of an applied document, None if this release cannot parse it."""
    try:
        return PolicyVersion(version=version, sha256=sha256, policy=parse(document).policy)
    except PolicyRejected:
        return None
