"""Parses the ids that people type as arguments of commands."""

from __future__ import annotations

from uuid import UUID

from gateway.errors import BadUsage


def request_id_of(text: str) -> UUID:
    """Read a request's id. Raises `BadUsage`."""
    return _read(text, "a request id. It is in the reply's x-request-id header.")


def journal_id_of(text: str) -> UUID:
    """Read a journal's id. Raises `BadUsage`."""
    return _read(text, "a journal's id. tollgate journal list shows them.")


def letter_id_of(text: str) -> UUID:
    """Read the id of a dead letter. Raises `BadUsage`."""
    return _read(text, "a record's id. tollgate reconcile dead-letters shows them.")


def _read(text: str, what: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise BadUsage(f"'{text[:60]}' is not {what}") from None
