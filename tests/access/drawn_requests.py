"""Draws requests from every report, split, filter and address parameter, asks them as the readers
of some teams, and finds each foreign row in the answers.

A twin database never had the foreign rows: its answer to the same request is the oracle. So a
figure that counts a foreign row is found although it names none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any

from gateway.errors import OperatorError
from gateway.reports.dimensions import UNALLOCATED, Dimension
from gateway.reports.exports.focus.columns import FocusVersion
from gateway.reports.exports.focus.focus import focus_export
from gateway.reports.exports.rows import ADJUSTMENTS, EVENTS
from gateway.reports.json_and_csv import csv_lines, to_json
from gateway.reports.question import ask
from gateway.reports.registry import REPORTS
from gateway.reports.report import Dataset, Report
from gateway.reports.reports import Reports
from tests.access.planted import FOREIGN, MARK, NOW, OWN, planted_ids
from tests.storage.factories import request_id

_LEDGERS = {
    "events": EVENTS,
    "adjustments": ADJUSTMENTS,
    "focus": focus_export(FocusVersion.V1_2, is_billed_elsewhere=False),
}
# Reports on the GPUs of all teams and on the audit log: only the twin's reader sees these.
OF_ORGANISATION = {"gpu", "gpu-bill", "gpu-waterfall", "engines", "selfhost-vs-api", "audit"}
_UNITS = ("usd", "eur")
_VOLATILE = {"age_s", "forecast_usd", *(f"idle_{unit}" for unit in _UNITS)}
_OF_POLICY = {"residency": {"rules"}}  # columns of the policy's text, which a team does not see
_IDLE_NOTES = ("Idle GPU cost", "idle_usd")
_MONTHS = ("all", "2026-08", "2026-09", "2026-10", "2026-11", "2026-12")
_TAGS = ("tag:app", "tag:task", "tag:foreign-x")
_VALUES: Mapping[str, Sequence[str | None]] = {
    "team": (*OWN, *FOREIGN, "nobody"),
    "project": ("checkout", "foreign-checkout", None),
    "cost_centre": ("CC-1", "CC-2", "CC-3", "foreign-cc"),
    "key": ("k000000001", "k000000002", "foreignkey"),
    "end_user": ("u-1", "foreign-u-1", None),
    "tag": ("app=bot", "app=foreign-bot", "foreign-x=y", None),
    "route": ("assistant", "foreign-assistant"),
    "model": ("m-1", "foreign-m-1"),
    "provider": ("openai", "vllm"),
    "region": ("eu", "foreign-eu"),
    "deployment": ("gpt-eu", "qwen-eu", "foreign-gpt-eu"),
    "destination": ("eu", "foreign-eu"),
    "outcome": ("ok", "upstream_error"),
    "usage_source": ("provider", "unknown"),
    "day": ("2026-11-18", "2026-10-02"),
    "hour": ("2026-11-18T10:00Z",),
    "week": ("2026-W46",),
    "month": ("2026-10", "2026-11"),
    "quarter": ("2026-Q4",),
    "tag:app": ("bot", "foreign-bot", None),
    "tag:task": ("t", "foreign-t"),
    "tag:foreign-x": ("y",),
}
_BUDGETS = (
    "payments/month",
    "foreign-team/month",
    "foreign-other/day",
    "foreign-team/project:foreign-project/month",
)


@dataclass(frozen=True, slots=True)
class DrawnRequest:
    """One request: its words for a message, and the question itself. `has_twin`: its answer must be
    that of the twin.
    """

    words: str
    run: Callable[[Reports], object]
    has_twin: bool = True


def draw(rng: Random) -> DrawnRequest:
    """Return a random request."""
    return rng.choices((_report, _export, _ledger_export, _other), (14, 2, 1, 3))[0](rng)


def problem_of(asked: DrawnRequest, seen: Reports, twin: Reports | None) -> str | None:
    """Return the foreign rows of an answer in words, None without any. `twin` are the reports of
    the database without foreign rows.
    """
    answer = _answer(asked, seen)
    if MARK in answer:
        place = answer.index(MARK)
        return f"{asked.words}: {answer[max(place - 80, 0) : place + 80]}"
    if twin is not None and asked.has_twin and answer != _answer(asked, twin):
        return f"{asked.words}: not the answer of the twin"
    return None


def _answer(asked: DrawnRequest, reports: Reports) -> str:
    """Return an answer or an error as text; the words of the request itself are taken out of an
    error.
    """
    try:
        found = asked.run(reports)
    except OperatorError as error:
        return re.sub(r"foreign[\w-]*(?==|')|tag:foreign-x", "", error.message)
    answer = _of_report(found) if isinstance(found, Report) else str(found)
    return answer.replace("tag:foreign-x", "")  # the heading of a split that was asked for


def _of_report(report: Report) -> str:
    """Return a report as JSON, without the columns and notes that depend on the moment, on the GPU
    bill of all teams, or on the policy's text.
    """
    left_out = _VOLATILE | _OF_POLICY.get(report.name, set())
    kept = [n for n, column in enumerate(report.columns) if column.name not in left_out]
    return to_json(
        replace(
            report,
            columns=tuple(report.columns[n] for n in kept),
            rows=tuple(
                tuple(row[n] for n in kept)
                for row, named in zip(report.rows, report.records(), strict=True)
                if not _is_idle_alone(named)
            ),
            total={name: cell for name, cell in report.total.items() if name not in left_out},
            notes=tuple(note for note in report.notes if not note.startswith(_IDLE_NOTES)),
        )
    )


def _is_idle_alone(row: Mapping[str, object]) -> bool:
    """Return True for a row of idle cost alone: the twin's reader sees that of no team, too."""
    return any(
        f"idle_{unit}" in row and not row["attempts"] and not row[f"total_{unit}"]
        for unit in _UNITS
    )


def _words(rng: Random) -> dict[str, Any]:
    """Return the words of a random question, as an address or a command has them."""
    names = [*(str(one) for one in Dimension), *_TAGS]
    chosen = rng.sample(names, rng.choice((0, 1, 1, 2)))
    words: dict[str, Any] = {
        "where": {
            name: rng.choice((*_VALUES[name], UNALLOCATED) if rng.random() < 0.2 else _VALUES[name])
            for name in chosen
        },
        "demo": rng.random() < 0.1,
        "limit": rng.choice((1, 7, 100, 1000)),
        "offset": rng.choice((0, 0, 0, 3)),
        "currency": rng.choice((None, None, None, "EUR")),
    }
    if rng.random() < 0.7:
        words["by"] = rng.sample(names, rng.choice((0, 1, 1, 2)))
    if rng.random() < 0.7:
        words["month"] = rng.choice(_MONTHS)
    else:
        first = NOW.date() - timedelta(days=rng.randrange(80))
        words |= {"first": str(first), "last": str(first + timedelta(days=rng.randrange(40)))}
    if rng.random() < 0.3:
        words["compare"] = rng.choice(("previous", "year"))
    if rng.random() < 0.1:
        words["why"] = True
    return words


def _report(rng: Random) -> DrawnRequest:
    """Return a report with a random question."""
    name, words = rng.choice(sorted(REPORTS)), _words(rng)
    return DrawnRequest(
        f"report {name} {words}",
        lambda reports: reports.run(name, ask(**words)),
        has_twin=name not in OF_ORGANISATION,
    )


def _export(rng: Random) -> DrawnRequest:
    """Return the whole CSV of a report with a random question."""
    name, words = rng.choice(sorted(REPORTS)), _words(rng)

    def run(reports: Reports) -> str:
        with reports.export(name, ask(**words)) as export:
            return "".join(csv_lines(export))

    return DrawnRequest(f"export {name} {words}", run, has_twin=False)


def _ledger_export(rng: Random) -> DrawnRequest:
    """Return an export of the ledger of a random month."""
    name, month = rng.choice(sorted(_LEDGERS)), rng.choice(_MONTHS[1:])

    def run(reports: Reports) -> str:
        with reports.export_ledger(_LEDGERS[name], ask(month=month)) as opened:
            return "".join(csv_lines(opened.export))

    return DrawnRequest(f"export {name} {month}", run, has_twin=False)


def _other(rng: Random) -> DrawnRequest:
    """Return a question that is not a report: a receipt, a budget, a team's page."""
    team, at = rng.choice((*OWN, *FOREIGN)), NOW - timedelta(days=rng.randrange(60))
    wanted = rng.choice((*planted_ids(), request_id(2, NOW)))
    budget = rng.choice(_BUDGETS)
    dataset = rng.choice(list(Dataset))
    asked: tuple[tuple[str, Callable[[Reports], object]], ...] = (
        (f"receipt {wanted}", lambda reports: reports.receipt(wanted, dataset=dataset)),
        (f"budget {budget}", lambda reports: reports.budget(budget, NOW)),
        ("budgets", lambda reports: reports.budgets(NOW, has_past=True)),
        ("budget names", lambda reports: reports.budget_names()),
        (f"page of {team}", lambda reports: _without_team(reports.team_page(team, NOW), team)),
        (
            f"residency of {team}",
            lambda reports: reports.residency_month(team=team, first=at, next_first=NOW),
        ),
        ("responses", lambda reports: reports.stored_responses(team, "up-1")),
        ("traffic", lambda reports: reports.recent_traffic(at)),
        ("month status", lambda reports: reports.month_status(at.date().replace(day=1))),
        ("reallocations", lambda reports: reports.reallocations()),
        ("rates", lambda reports: reports.currency_rates()),
        ("roles", lambda reports: reports.dashboard_roles()),
        ("own GPUs", lambda reports: reports.selfhost_vs_api(ask(**_words(rng)))),
        ("demand", lambda reports: reports.demand(ask(month="all"), days=30)),
    )
    words, run = rng.choice(asked)
    has_twin = words.split()[0] in ("receipt", "responses", "traffic")
    return DrawnRequest(words, run, has_twin=has_twin)


def _without_team(page: Any, team: str) -> Any:
    """Return a team's page without the name that was asked for."""
    return replace(page, team="") if page.team == team else page
