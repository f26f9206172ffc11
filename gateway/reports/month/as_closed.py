"""Turns a snapshot into one of a month as it was closed: schema `closed` has the views of `finance`
with the facts of one version.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.errors import OperatorError
from gateway.reports.question import Question
from gateway.reports.sources.closes import CLOSES
from gateway.reports.sources.connection import ReadSnapshot


def as_closed(snapshot: ReadSnapshot, question: Question) -> tuple[ReadSnapshot, Question]:
    """Return the snapshot and the question for a month as it was closed; unchanged for any other
    question.

    Without a version it is the one in force. Raises `OperatorError` if there is none.
    """
    if not question.is_as_closed:
        return snapshot, question
    month, wanted = question.month, question.close_version
    assert month is not None
    closes = snapshot.rows(CLOSES, month=month)
    found = [row for row in closes if row["is_closed"] or wanted is not None]
    chosen = [row for row in found if wanted in (None, row["version"])]
    if not chosen:
        kept = ", ".join(str(row["version"]) for row in closes)
        raise OperatorError(
            f"{month:%Y-%m} is not closed"
            + (f"; its versions so far are {kept} (--close-version)." if kept else ".")
            + f" tollgate month status {month:%Y-%m} lists its open checks."
        )
    close = chosen[-1]
    return (
        snapshot.as_closed(f"{month:%Y-%m-%d}/{close['version']}"),
        replace(question, close_version=close["version"], closed_at=close["closed_at"]),
    )
