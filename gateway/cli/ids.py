"""Parses the ids that people type as arguments of commands; raises `BadUsage` for another text."""

from __future__ import annotations

from uuid import UUID

from gateway.domain.ids import has_moment
from gateway.errors import BadUsage


def request_id_of(text: str) -> UUID:
    """Parse a request id from the command line. Raises `BadUsage`."""
    wanted = "a request id. It is in the reply's x-request-id header."
    found = _uuid_of(text, wanted)
    if not has_moment(found):
        raise BadUsage(f"'{text[:60]}' is not {wanted}")
    return found


def journal_id_of(text: str) -> UUID:
    """Parse a journal id from the command line. Raises `BadUsage`."""
    return _uuid_of(text, "a journal's id. tollgate journal list shows them.")


def letter_id_of(text: str) -> UUID:
    """Parse a dead letter's id from the command line. Raises `BadUsage`."""
    return _uuid_of(text, "a record's id. tollgate reconcile dead-letters shows them.")


def reallocation_id_of(text: str) -> UUID:
    """Parse a re-allocation's id from the command line. Raises `BadUsage`."""
    return _uuid_of(text, "a re-allocation's id. tollgate reallocation list shows them.")


def _uuid_of(text: str, wanted: str) -> UUID:
    """Parse a UUID; `wanted` completes the error's sentence. Raises `BadUsage`."""
    try:
        return UUID(text)
    except ValueError:
        raise BadUsage(f"'{text[:60]}' is not {wanted}") from None
