"""Asks a report together with its change against the earlier time that the reader chose.

The reports decide which days are compared: a page shows their figures and their sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dashboard.shell.choices import NO_COMPARISON, Choices, is_time
from dashboard.shell.period import ALL
from dashboard.source import answer
from gateway.reports.question import Question
from gateway.reports.report import Report

CHANGES = 3  # the columns that a comparison adds, last of all


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A report, with the columns of its change if `against` names the compared times."""

    report: Report
    against: str | None


def with_changes(name: str, choices: Choices, *, by: tuple[str, ...]) -> Changed:
    """Return a report split by some dimensions, with the change of each row if the reader compares.

    Raises the errors of `answer`, and `BadUsage` for filters that are none.
    """
    is_by_time = any(is_time(one) for one in by)  # whose rows have no earlier ones
    asked = compared_question(choices, by=() if is_by_time else by)
    if asked is None:
        return Changed(report=answer(name, choices.question(by=by)), against=None)
    found = answer(name, asked)
    assert found.comparison is not None, "it is compared"
    against = f"Compared: {found.comparison.sentence}"
    if is_by_time:
        found = with_total(answer(name, choices.question(by=by)), found)
    return Changed(report=found, against=against)


def compared_question(choices: Choices, *, by: tuple[str, ...] | None) -> Question | None:
    """Return the question about the shown time and the earlier one; None if nothing is
    compared.
    """
    if choices.compare == NO_COMPARISON or choices.time.month == ALL:
        return None
    return choices.question(by=by, compare=choices.compare)


def with_total(now: Report, compared: Report) -> Report:
    """Return a report whose total has the change of another one's total."""
    changes = {one.name: compared.total[one.name] for one in compared.columns[-CHANGES:]}
    return replace(now, total=dict(now.total) | changes, comparison=compared.comparison)
