"""GPU cost by day and deployment, as SQL: for the report, and for the note in other reports."""

from __future__ import annotations

from gateway.domain.money import format_usd
from gateway.reports.dimensions import Dimension
from gateway.reports.question import Question
from gateway.reports.report import Dataset
from gateway.reports.sources.connection import ReadSnapshot

IDLE_UNKNOWN = (
    "Idle GPU cost not included: not known, as no GPU hours were seen or no rate was declared."
)

_DAY = "CAST(hour AT TIME ZONE 'UTC' AS date)"
_OWN = {Dimension.DEPLOYMENT: "deployment", Dimension.DAY: _DAY}

# `left_usd` is the rest of the bill. An hour without a bill adds nothing to it: its charges have
# their own column.
_DAYS = f"""
SELECT {_DAY} AS day, deployment,
       sum(gpu_hours) AS gpu_hours,
       CASE WHEN min(usd_per_gpu_hour) = max(usd_per_gpu_hour) THEN min(usd_per_gpu_hour) END AS
         usd_per_gpu_hour,
       sum(bill_usd) AS bill_usd,
       sum(applied_usd) FILTER (WHERE bill_usd IS NOT NULL) AS applied_usd,
       sum(bill_usd - applied_usd) AS left_usd,
       coalesce(sum(applied_usd) FILTER (WHERE bill_usd IS NULL), 0) AS applied_without_bill_usd,
       sum(up_hours) AS up_hours,
       count(*) FILTER (WHERE bill_usd IS NULL) AS hours_without_bill
FROM finance.gpu_cost WHERE {{condition}} GROUP BY 1, 2
"""  # noqa: S608 - constants


def gpu_days(question: Question) -> tuple[str, dict[str, object]]:
    """Return the SELECT of a question's days, and its parameters.

    Filters that GPU hours do not have are left out.
    """
    parts, values = ["true"], dict[str, object]()
    if question.month is not None:
        # In UTC for any time zone of the session: a month begins at midnight UTC.
        month = "(CAST(:month AS date)::timestamp AT TIME ZONE 'UTC')"
        parts.append(
            f"hour >= {month} AND hour < ((CAST(:month AS date) + interval '1 month') AT TIME "
            "ZONE 'UTC')"
        )
        values["month"] = question.month
    for position, (dimension, wanted) in enumerate(question.where):
        if dimension in _OWN and wanted is not None:
            parts.append(f"CAST({_OWN[dimension]} AS text) = :value_{position}")
            values[f"value_{position}"] = wanted
    if question.dataset is Dataset.DEMO:
        parts.append("false")  # the demo's GPUs have no bill
    return _DAYS.format(condition=" AND ".join(parts)), values


def foreign_filters(question: Question) -> list[Dimension]:
    """Return the filters of a question that GPU hours do not have: a GPU belongs to no team."""
    return [dimension for dimension, _ in question.where if dimension not in _OWN]


def idle_note(snapshot: ReadSnapshot, question: Question) -> str:
    """Return the note on the part of the GPU bill that a report of charges leaves out."""
    days, values = gpu_days(question)
    found = snapshot.row(
        f"SELECT sum(bill_usd) AS bill_usd, sum(greatest(left_usd, 0)) AS idle_usd, "  # noqa: S608 - constants
        f"coalesce(sum(hours_without_bill), 0) AS hours_without_bill FROM ({days}) AS days",
        **values,
    )
    if found["bill_usd"] is None:
        return IDLE_UNKNOWN
    scope = " of all teams together" if foreign_filters(question) else ""
    missing = found["hours_without_bill"]
    return (
        f"Idle GPU cost not included: {format_usd(found['idle_usd'])} of a GPU bill of "
        f"{format_usd(found['bill_usd'])}{scope}; tollgate report gpu shows it."
        + (f" For {missing:,} hour(s) with requests the bill is not known." if missing else "")
    )
