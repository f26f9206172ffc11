"""Opens the read-only reports, receipts and usage figures on Postgres, as the only entry for CLI,
API and dashboard.

`open_reports` is the only entry: SELECT only, as `tollgate_reader`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from math import inf
from types import TracebackType
from typing import TypeVar
from uuid import UUID

from gateway.domain.budgets.budgets import Account
from gateway.domain.budgets.names import NamedBudget
from gateway.domain.ledger.month_close import BilledSpan
from gateway.domain.ledger.usage_event import UsageEvent
from gateway.domain.policy.dashboard_roles import DashboardRoles
from gateway.domain.request.stored_response import StoredResponse
from gateway.errors import BadUsage, NothingFound
from gateway.reports.allocation.currency_rates import CurrencyRate, currency_rates
from gateway.reports.allocation.reallocations import Reallocation, reallocations
from gateway.reports.budgets.budget_detail import BudgetDetail, budget_detail
from gateway.reports.budgets.budgets import (
    BudgetStanding,
    all_budgets,
    budget_names,
    running_budgets,
)
from gateway.reports.exports.export import ExportKind, LedgerExport, open_export
from gateway.reports.month.as_closed import as_closed
from gateway.reports.month.status import MonthStatus, month_status
from gateway.reports.question import Question
from gateway.reports.questions.past_requests import Past, recent_traffic
from gateway.reports.questions.stored_responses import stored_responses
from gateway.reports.questions.usage_me import OwnUsage, usage_me
from gateway.reports.receipts.receipt import Receipt, receipt
from gateway.reports.records.audit_log import AuditChain, audit_chain
from gateway.reports.records.residency_evidence import ResidencyEvidence, residency_evidence
from gateway.reports.records.residency_month import ResidencyMonth, residency_month
from gateway.reports.registry import REPORTS
from gateway.reports.report import Dataset, Export, Report
from gateway.reports.report_kind import ReportKind
from gateway.reports.scope import Scope
from gateway.reports.selfhost.demand import MeasuredDemand, measured_demand
from gateway.reports.selfhost.versus_api import PRESENT, WhatIf, selfhost_vs_api
from gateway.reports.sources.connection import Reader, ReadSnapshot
from gateway.reports.sources.currencies import in_currency
from gateway.reports.sources.demo_ledger import DEMO_LEDGER, DEMO_LEDGER_NOTE, is_demo_ledger
from gateway.reports.sources.notes import read_newest
from gateway.reports.sources.policies import current_policy
from gateway.reports.statements.schedules import ListedSchedule, schedules
from gateway.reports.statements.statement import StatementQuestion, Statements
from gateway.reports.teams.team_page import TeamPage, team_page

Answer = TypeVar("Answer", Report, Receipt)


class Reports:
    """Open reports.

    Safe to share between threads; every method is one read-only snapshot.
    """

    def __init__(self, reader: Reader, scope: Scope) -> None:
        """Take a reader and the scope of all answers; nothing is connected before the first
        question.
        """
        self._reader, self._scope = reader, scope

    def seen_by(self, scope: Scope) -> Reports:
        """Return the reports of another scope, over the same connections."""
        return Reports(self._reader, scope)

    def run(self, name: str, question: Question) -> Report:
        """Return the answer of the report with this name to a question.

        Raises `NothingFound`, `BadUsage` or `DatabaseUnavailable`.
        """
        kind = _kind_of(name, question)
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot, question = as_closed(snapshot, question)
            return _marked(snapshot, _answer(kind, snapshot, question))

    @contextmanager
    def export(self, name: str, question: Question) -> Iterator[Export]:
        """Return a report as an export, whose rows are read one by one while it is open: all of
        them, without a limit.

        Raises the errors of `run`; reading a row may raise `DatabaseUnavailable`.
        """
        kind = _kind_of(name, question)
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            snapshot, question = as_closed(snapshot, question)
            report = _marked(snapshot, _answer(kind, snapshot, question))
            if kind.each_row is None:
                report = report.page(limit=question.limit, offset=question.offset)
            if kind.each_row is None or report.rows:
                yield Export(report=report, rows=iter(report.lines))
            else:
                yield Export(report=report, rows=kind.each_row(snapshot, question))

    @contextmanager
    def export_ledger(
        self, kind: ExportKind, question: Question, *, since: str | None = None
    ) -> Iterator[LedgerExport]:
        """Return an export of the ledger, whose rows are read one by one while it is open.

        `since` is the watermark of an earlier export, or `0`. Raises `BadUsage`, `NothingFound` or
        `DatabaseUnavailable`; reading a row may raise `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            opened = open_export(snapshot, kind, question, since=since)
            self._reader.flush()
            report = _marked(snapshot, opened.export.report)
            yield replace(opened, export=replace(opened.export, report=report))

    @contextmanager
    def statements(self, asked: StatementQuestion) -> Iterator[Statements]:
        """Return the statements of a month's cost centres, which are read while it is open.

        Raises `OperatorError` if the month must be closed and is not, or if a rate is missing;
        `NothingFound` or `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            yield Statements(snapshot, asked)

    def selfhost_vs_api(self, question: Question, what_if: WhatIf = PRESENT) -> Report:
        """Return what each route's traffic costs on own GPUs and at an API, under assumptions.

        Raises `NothingFound`, `BadUsage` or `DatabaseUnavailable`.
        """
        _kind_of("selfhost-vs-api", question)
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            return _marked(snapshot, selfhost_vs_api(snapshot, question, what_if))

    def demand(self, question: Question, *, days: int) -> MeasuredDemand:
        """Return the demand of the last days, from which `engine plan` sizes engines.

        Raises `NothingFound` without any, or `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            found = measured_demand(snapshot, question, days=days)
            if question.dataset is Dataset.DEMO or not is_demo_ledger(snapshot):
                return found
            return replace(found, notes=(DEMO_LEDGER_NOTE, *found.notes))

    def receipt(
        self,
        request_id: UUID,
        *,
        team: str | None = None,
        dataset: Dataset = Dataset.REAL,
        recent: Sequence[UsageEvent] = (),
    ) -> Receipt | None:
        """Return one request's receipt, of any team or only of `team`.

        Raises `DatabaseUnavailable`.

        `recent` are events of the request that may not be in the ledger yet.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            found = receipt(snapshot, request_id, dataset=dataset, team=team, recent=recent)
            return None if found is None else _marked(snapshot, found)

    def stored_responses(self, team: str, response_id: str) -> Sequence[StoredResponse]:
        """Return the responses of a team that upstreams gave this id. Raises
        `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return stored_responses(snapshot, team=team, response_id=response_id)

    def usage_me(
        self,
        *,
        team: str,
        key_id: str,
        now: datetime,
        dataset: Dataset = Dataset.REAL,
        accounts: Sequence[Account] = (),
    ) -> OwnUsage:
        """Return a caller's spending this month and today, and the state of its budgets.

        `accounts` are the budgets that its requests are charged to. Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return usage_me(
                snapshot, team=team, key_id=key_id, now=now, dataset=dataset, accounts=accounts
            )

    def budgets(self, now: datetime, *, has_past: bool = False) -> list[BudgetStanding]:
        """Return each declared budget's running period, or every budget's periods so far with
        `has_past`.

        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return (all_budgets if has_past else running_budgets)(snapshot, now)

    def budget_names(self) -> list[NamedBudget]:
        """Return the names of every budget, by which users may call it. Raises
        `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return budget_names(snapshot)

    def budget(self, account_id: str, now: datetime) -> BudgetDetail | None:
        """Return one budget with its grants, alerts, spenders and periods; None if none has that
        name.

        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return budget_detail(snapshot, account_id, now)

    def month_status(
        self, month: date, *, billed: Sequence[BilledSpan] | None = None
    ) -> MonthStatus:
        """Return the items of a month that are open before it is closed; the month is given by its
        first day, and `billed` are the GPU hours that the policies declare (None: read them).
        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return month_status(snapshot, month, billed=billed)

    def currency_rates(self) -> Sequence[CurrencyRate]:
        """Return the rates of display currencies that count. Raises `DatabaseUnavailable`."""
        with self._reader.snapshot(self._scope) as snapshot:
            return currency_rates(snapshot)

    def reallocations(self, month: date | None = None) -> Sequence[Reallocation]:
        """Return all re-allocations, or those of the month that begins on a day, oldest first.
        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return reallocations(snapshot, month=month)

    def schedules(self) -> Sequence[ListedSchedule]:
        """Return the schedules of statements, by name. Raises `DatabaseUnavailable`."""
        with self._reader.snapshot(self._scope) as snapshot:
            return schedules(snapshot)

    def residency_month(
        self, *, team: str, first: datetime, next_first: datetime
    ) -> ResidencyMonth:
        """Return the destinations of a team's data between two moments, and the refused requests.
        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return residency_month(snapshot, team=team, first=first, next_first=next_first)

    def residency_evidence(self, *, team: str, month: date) -> ResidencyEvidence:
        """Return a team's month with each sent attempt decided again; the month is given by its
        first day. Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return residency_evidence(snapshot, team=team, month=month)

    def audit_chain(self) -> AuditChain:
        """Return the result of checking the whole audit log. Raises `DatabaseUnavailable`."""
        with self._reader.snapshot(self._scope) as snapshot:
            return audit_chain(snapshot)

    @contextmanager
    def past_traffic(
        self, *, since: datetime, until: datetime, dataset: Dataset = Dataset.REAL
    ) -> Iterator[Past]:
        """Open the past requests between two moments for a replay.

        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            snapshot.take_time()
            yield Past(snapshot=snapshot, since=since, until=until, dataset=dataset)

    def recent_traffic(self, since: datetime) -> Mapping[tuple[str, str], int]:
        """Return each team's number of attempts on each route since a moment.

        Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return recent_traffic(snapshot, since)

    def dashboard_roles(self) -> DashboardRoles | None:
        """Return the roles of the dashboard by the policy in force; None if it gives none, or if
        this release cannot read it. Raises `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            policy = current_policy(snapshot)
            return None if policy is None else policy.dashboard

    def team_page(self, team: str, now: datetime) -> TeamPage:
        """Return a team's keys, limits, budgets, spending and last errors. Raises
        `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return team_page(snapshot, team, now)

    def end_by(self, end_s: float) -> None:
        """Let every question fail at that monotonic time: the process is about to end."""
        self._reader.end_by(end_s)

    def newest_event(self, dataset: Dataset) -> datetime | None:
        """Return the time of a dataset's newest event, None without any. Raises
        `DatabaseUnavailable`.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return read_newest(snapshot, dataset)

    def is_demo_ledger(self) -> bool:
        """Return True if this database's ledger was generated by `demo-data --as-ledger`."""
        with self._reader.snapshot(self._scope) as snapshot:
            return is_demo_ledger(snapshot)

    def hours_not_summed(self) -> int:
        """Return the number of hours that are not summed yet; reports read their events one by
        one.
        """
        with self._reader.snapshot(self._scope) as snapshot:
            return int(
                snapshot.row("SELECT count(DISTINCT hour) AS hours FROM finance.dirty_hours")[
                    "hours"
                ]
            )

    def close(self) -> None:
        """Close all connections."""
        self._reader.close()

    def __enter__(self) -> Reports:
        """Return these reports; the block's end closes all connections."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()


def _marked(snapshot: ReadSnapshot, answer: Answer) -> Answer:
    """Return an answer with the mark of a demo ledger, if it is from one."""
    if answer.dataset != Dataset.REAL or not is_demo_ledger(snapshot):
        return answer
    return replace(answer, dataset=DEMO_LEDGER, notes=(DEMO_LEDGER_NOTE, *answer.notes))


def _answer(kind: ReportKind, snapshot: ReadSnapshot, question: Question) -> Report:
    """Return a report's answer, in the question's currency."""
    report = kind.run(snapshot, question)
    return report if question.currency is None else in_currency(snapshot, report, question.currency)


def _kind_of(name: str, question: Question) -> ReportKind:
    """Return the definition of the report with a name. Raises `NothingFound` if there is none,
    `BadUsage` if the question splits one that cannot be split.
    """
    kind = REPORTS.get(name)
    if kind is None:
        raise NothingFound(f"No report '{name}'. There are: {', '.join(REPORTS)}.")
    if question.is_as_closed and (not kind.reproduces or question.compared is not None):
        shown = ", ".join(one.name for one in REPORTS.values() if one.reproduces)
        raise BadUsage(
            f"--as-closed shows one month from its booked facts alone, in {shown}. It goes with "
            "neither --compare nor --why."
        )
    if question.asks_why and not kind.explains:
        raise BadUsage(f"Report {name} has no reasons of a change. Try `report spend --why`.")
    if question.compared is not None and not kind.compares:
        raise BadUsage(
            f"Report {name} cannot be compared with an earlier time. Try `report spend`."
        )
    if question.currency is not None and kind.usd_alone:
        able = ", ".join(one.name for one in REPORTS.values() if not one.usd_alone)
        raise BadUsage(
            f"Report {name} has no other currency: {kind.usd_alone}. In another currency: {able}."
        )
    if kind.by is None and question.by:
        raise BadUsage(
            f"Report {name} cannot be split by {', '.join(question.by)}. Try `report spend`."
        )
    return kind


def open_reports(
    dsn: str,
    *,
    scope: Scope,
    limit_s: float = inf,
    renew: Callable[[], str] | None = None,
    setting: str = "TOLLGATE_DATABASE_URL",
) -> Reports:
    """Open the reports of a Postgres URL, as readers of a scope see them.

    Raises `BadUsage` if the URL is invalid; connects at the first question.

    `limit_s` limits each question of a waiting caller. `renew` returns the current URL, if its
    password may change meanwhile. `setting` is the variable that has it, for messages.
    """
    return Reports(Reader(dsn, limit_s=limit_s, renew=renew, setting=setting), scope)
