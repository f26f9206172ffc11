"""Answers the report `gpu`: the cost of own GPUs by day and deployment, and the part of it that
requests paid for.

bill = applied + empty + underfilled + variance, exactly, for each deployment and hour, and so for
each day; idle = empty + underfilled. `docs/guides/gpu-cost.md` defines each line. Charges in hours
without a known bill have their own column.
"""

from __future__ import annotations

from sqlalchemy import desc, func, select

from gateway.errors import BadUsage
from gateway.reports.question import Question
from gateway.reports.report import Column, ColumnKind, Dataset, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.sources.connection import ReadSnapshot, Row
from gateway.reports.sources.currencies import rounded
from gateway.reports.sources.gpu_days import foreign_filters, gpu_days, require_gpu_rates
from gateway.reports.sources.notes import read_freshness

MAX_ROWS = 50_000

COLUMNS = (
    Column(name="day", unit="UTC", kind=ColumnKind.DAY),
    Column(name="deployment", unit="", kind=ColumnKind.TEXT),
    Column(name="gpu_hours", unit="GPU hours", kind=ColumnKind.HOURS),
    Column(name="usd_per_gpu_hour", unit="USD per GPU hour", kind=ColumnKind.MONEY),
    Column(name="bill_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="applied_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="idle_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="variance_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="applied_without_bill_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="up_hours", unit="hours", kind=ColumnKind.HOURS),
    Column(name="hours_without_bill", unit="hours with requests", kind=ColumnKind.COUNT),
    Column(name="empty_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="underfilled_usd", unit="USD", kind=ColumnKind.MONEY),
    Column(name="estimated_usd", unit="USD, uptime × rate", kind=ColumnKind.MONEY),
    Column(name="imported_usd", unit="USD, imported bill", kind=ColumnKind.MONEY),
)
# Rounded in another currency, the sums are those of their rounded parts.
_SUMS = {
    "idle_usd": ("empty_usd", "underfilled_usd"),
    "bill_usd": ("applied_usd", "idle_usd", "variance_usd"),
}
_SUMMED = tuple(column.name for column in COLUMNS[2:] if column.name != "usd_per_gpu_hour")


def gpu_cost(snapshot: ReadSnapshot, question: Question) -> Report:
    """Return the report on the cost of our own GPUs: one row per day and deployment, newest first.

    Raises `BadUsage` for filters a GPU bill cannot have.
    """
    foreign = foreign_filters(question)
    if foreign:
        raise BadUsage(
            f"Report gpu cannot be filtered by {', '.join(foreign)}: a GPU bill belongs to no "
            "single team or request. Filter by deployment or day."
        )
    require_gpu_rates(snapshot, question)
    every = gpu_days(question).c
    days = select(*every)
    total = snapshot.row(select(*(func.sum(every[name]).label(name) for name in _SUMMED)))
    rows = snapshot.rows(days.order_by(desc("day"), "deployment").limit(MAX_ROWS))
    report = Report(
        name=REPORT.name,
        title=REPORT.title,
        dataset=question.dataset,
        columns=COLUMNS,
        rows=tuple(tuple(row[column.name] for column in COLUMNS) for row in rows),
        total={name: total[name] for name in _SUMMED},
        complete_until=read_freshness(snapshot, question).complete_until,
        notes=_notes(question, total),
    )
    return report if question.currency is None else rounded(report, sums=_SUMS)


def _notes(question: Question, total: Row) -> tuple[str, ...]:
    """Return the notes below the report on GPU cost, for example on hours without a known bill."""
    if question.dataset is Dataset.DEMO:
        return (
            "Demo data: generated, not real spending; its GPUs have no bill, so there are no GPU "
            "hours.",
        )
    missing = total["hours_without_bill"]
    return (
        *(
            (
                "No GPU hours seen yet: a running gateway looks at self-hosted deployments "
                "every minute.",
            )
            if total["bill_usd"] is None
            else ()
        ),
        *(
            (
                f"In {missing:,} hour(s) with requests the GPU bill is not known: the engine was "
                "not seen, or the deployment has no gpu block. Those charges are in "
                "applied_without_bill_usd.",
            )
            if missing
            else ()
        ),
        "bill = applied + idle + variance in each hour; idle = empty + underfilled. Applied "
        "includes corrections; attempts that are still unknown are not in it, so they are in idle "
        "until they are resolved.",
        f"Money in {question.currency or 'USD'}, days in UTC. An imported bill counts for its "
        "hours. Any other hour is billed while its engine is seen up, or always if the policy has "
        "hours: always; at the rate of the policy then in force.",
    )


REPORT = ReportKind(
    name="gpu",
    title="GPU cost",
    question="What did our own GPUs cost, and how much of that did requests pay for?",
    by=None,
    run=gpu_cost,
    reproduces=True,
)
