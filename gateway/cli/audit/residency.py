"""Runs `tollgate audit residency`: has each attempt of a team's month decided again under its own
policy version, and writes the report as HTML, CSV or JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.audit.residency_page import Section, page
from gateway.cli.price.terms import month_of
from gateway.cli.terminal.output import Table, csv_of, moment, note, write
from gateway.cli.terminal.replaced_file import replaced_file
from gateway.domain.calendar_months import next_month
from gateway.domain.ledger.audit_chain import ChainFinding, ChainWalk
from gateway.domain.residency.attempt_verification import Doubt, Verified, verify_sent
from gateway.errors import NothingFound, PolicyRejected
from gateway.services.policy.apply import version_of
from gateway.storage.deployments.ejections import EjectionStore
from gateway.storage.policy.audit import AuditLog
from gateway.storage.policy.policies import PolicyStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.policy.policy import PolicyVersion
    from gateway.domain.policy.stored_policy import StoredPolicy
    from gateway.domain.residency.ejection import Ejection
    from gateway.reports.records.residency_month import ResidencyMonth
    from gateway.storage.policy.audit import AuditLog

DOUBT_COLUMNS = ("day", "deployment", "data_class", "policy_version", "attempts", "why")


class PageFormat(StrEnum):
    """The report's file format."""

    HTML = "html"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chain:
    """The result of verifying the audit log's hash chain."""

    rows: int
    head: str
    findings: Sequence[ChainFinding]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """The content of the residency report."""

    team: str
    month: date
    made_at: datetime
    past: ResidencyMonth
    verified: Verified
    policies: Sequence[StoredPolicy]
    ejections: Sequence[Ejection]
    chain: _Chain

    @property
    def is_good(self) -> bool:
        """Return True if every attempt was allowed and verified, and the audit log is unchanged."""
        return not (self.verified.outside or self.verified.unverified or self.chain.findings)

    @property
    def verdict(self) -> str:
        """Return the report's verdict in two sentences: how many attempts broke a rule or cannot be
        verified, and whether the audit log is unchanged.
        """
        outside = sum(doubt.attempts for doubt in self.verified.outside)
        unverified = sum(doubt.attempts for doubt in self.verified.unverified)
        chain = "is as it was written" if not self.chain.findings else "is NOT as it was written"
        return (
            f"{outside:,} of {self.verified.attempts:,} attempts broke a rule"
            + (f", {unverified:,} that cannot be verified" if unverified else "")
            + f". The audit log {chain}."
        )


def residency(
    ctx: typer.Context,
    team: Annotated[str, typer.Option("--team", help="Whose data.")],
    month: Annotated[
        str,
        typer.Option("--month", metavar="YYYY-MM", help="A month (UTC), by when requests came."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write a file instead of standard output.")
    ] = None,
    format: Annotated[
        PageFormat, typer.Option("--format", help="html prints well; csv has a row a kind.")
    ] = (PageFormat.HTML),
) -> None:
    """Report where a team's data went in a month, and whether all of it was allowed.

    Every attempt is decided again by the policy version that it was sent under. Exit 1 if one broke
    a rule, cannot be verified, or the audit log was changed.
    """
    toolbox: Toolbox = ctx.obj
    evidence = _gather(toolbox, team, month_of(month))
    text = _RENDERED[format](evidence)
    if out is None:
        write(text)
    else:
        with replaced_file(out) as file:
            file.write(text.encode())
        note(f"Written to {out}.")
    note(evidence.verdict)
    if not evidence.is_good:
        raise typer.Exit(1)


def _gather(toolbox: Toolbox, team: str, month: date) -> _Evidence:
    """Read a team's month from reports and tables, verify it, and return the report's content."""

    first = datetime.combine(month, time(), UTC)
    next_first = datetime.combine(next_month(month), time(), UTC)
    with toolbox.open_reports() as reports:
        past = reports.residency_month(team=team, first=first, next_first=next_first)
    with toolbox.open_admin() as database:
        numbers = {one.policy_version for one in past.sent}
        history = PolicyStore(database).history()
        if not past.sent:
            _require_known(team, history)
        versions = _readable_versions([stored for stored in history if stored.version in numbers])
        shown = [
            stored
            for stored in history
            if stored.version in numbers or first <= stored.applied_at < next_first
        ]
        ejections = EjectionStore(database).between(first, next_first)
        chain = _checked_chain(AuditLog(database))
    return _Evidence(
        team=team,
        month=month,
        made_at=toolbox.now(),
        past=past,
        verified=verify_sent(past.sent, versions, team=team),
        policies=shown,
        ejections=ejections,
        chain=chain,
    )


def _require_known(team: str, history: Sequence[StoredPolicy]) -> None:
    """Refuse a team that no policy ever named: its clean report would prove nothing.

    Raises `NothingFound` with the teams of the current policy.
    """
    versions = list(_readable_versions(history).values())
    if versions and not any(team in version.policy.teams for version in versions):
        raise NothingFound(
            f"There is no team '{team}' in any policy version. There is: "
            f"{', '.join(versions[0].policy.teams)}."
        )


def _readable_versions(stored: Sequence[StoredPolicy]) -> Mapping[int, PolicyVersion]:
    """Return the policy versions that this release can parse; print a note for the others."""
    found = {}
    for one in stored:
        try:
            found[one.version] = version_of(one)
        except PolicyRejected:
            note(
                f"Policy version {one.version} cannot be read by this Tollgate: its attempts "
                "cannot be verified."
            )
    return found


def _checked_chain(log: AuditLog) -> _Chain:
    """Return the result of verifying the whole audit log's hash chain."""
    walk = ChainWalk()
    findings = list(walk.findings(log.rows()))
    return _Chain(rows=walk.rows, head=str(walk.head or "none"), findings=findings)


def _html(evidence: _Evidence) -> str:
    """Return the residency report as an HTML page."""
    until = evidence.past.until
    about = (
        f"Attempts of requests received in {evidence.month:%B %Y} (UTC), from the ledger as of "
        f"{moment(evidence.made_at)}; the newest event was recorded "
        f"{moment(until) if until else 'never'}."
    )
    title = f"Where the data of team {evidence.team} went, {evidence.month:%Y-%m}"
    return page(
        title,
        about=about,
        verdict=evidence.verdict,
        is_good=evidence.is_good,
        sections=_sections(evidence),
    )


def _sections(evidence: _Evidence) -> list[Section]:
    """Return the report's tables: places, doubts, refusals, facts, contradictions, policy versions
    and audit log.
    """
    verified, past = evidence.verified, evidence.past
    return [
        Section(
            title="Where it was sent",
            about="Attempts by region, host and class of data.",
            columns=("region", "host", "deployment", "class", "data tags", "attempts"),
            rows=[
                (p.region, p.host, p.deployment, p.data_class, p.data_tags, p.attempts)
                for p in verified.places
            ],
            empty="Nothing was sent.",
        ),
        _doubt_section(
            "Outside of the rules",
            "Attempts that a rule of their own policy version did not allow.",
            verified.outside,
        ),
        _doubt_section(
            "Not verified",
            "Attempts that cannot be decided again, because their policy lacks a fact.",
            verified.unverified,
        ),
        Section(
            title="Refused",
            about="Requests that residency rules kept from being sent anywhere.",
            columns=("route", "class", "rules", "requests"),
            rows=[(r.route, r.data_class, r.rules, r.requests) for r in past.refused],
            empty="No request was refused for residency.",
        ),
        Section(
            title="Known facts about the deployments",
            about="Each fact with its source and date; unknown means denied.",
            columns=("deployment", "fact", "value", "source", "as of", "policy versions"),
            rows=[
                (f.deployment, f.fact, f.value, f.source, f.as_of, f.versions)
                for f in verified.facts
            ],
            empty="No deployment was used.",
        ),
        Section(
            title="Contradictions",
            about="Upstreams that reported another place than promised.",
            columns=("deployment", "promised", "stated", "request", "taken out", "taken in again"),
            rows=[
                (
                    e.deployment,
                    e.promised,
                    e.stated,
                    str(e.request_id),
                    moment(e.ejected_at),
                    f"{moment(e.readmitted_at)} by {e.readmitted_by}: {e.reason}"
                    if e.readmitted_at
                    else None,
                )
                for e in evidence.ejections
            ],
            empty="None.",
        ),
        Section(
            title="Policy versions",
            about="Those in force for these attempts, and those applied in the month.",
            columns=("version", "applied", "by", "why", "sha256"),
            rows=[
                (str(p.version), moment(p.applied_at), p.author, p.message, p.sha256)
                for p in evidence.policies
            ],
            empty="None.",
        ),
        Section(
            title="Audit log",
            about=f"{evidence.chain.rows:,} rows; its head is {evidence.chain.head}.",
            columns=("row", "finding"),
            rows=[(str(finding.seq), finding.what) for finding in evidence.chain.findings],
            empty="Each row is bound to the one before it, and none was changed.",
        ),
    ]


def _doubt_section(title: str, about: str, doubts: Sequence[Doubt]) -> Section:
    """Return a table of the attempts that broke a rule, or of those that cannot be verified."""
    rows = [tuple(getattr(doubt, name) for name in DOUBT_COLUMNS) for doubt in doubts]
    return Section(title=title, about=about, columns=DOUBT_COLUMNS, rows=rows, empty="None.")


def _csv(evidence: _Evidence) -> str:
    """Return the report as CSV: a row for each kind of attempt, doubt, refusal and finding, marked
    in the first column.
    """
    columns = (
        "kind",
        "day",
        "region",
        "host",
        "deployment",
        "data_class",
        "data_tags",
        "policy_version",
        "count",
        "why",
    )
    rows: list[tuple[object, ...]] = [
        (
            "attempts",
            s.day,
            s.region,
            s.host,
            s.deployment,
            s.data_class,
            sorted(s.data_tags),
            s.policy_version,
            s.attempts,
            None,
        )
        for s in evidence.past.sent
    ]
    for kind, doubts in (
        ("outside", evidence.verified.outside),
        ("unverified", evidence.verified.unverified),
    ):
        rows += [
            (
                kind,
                d.day,
                None,
                None,
                d.deployment,
                d.data_class,
                None,
                d.policy_version,
                d.attempts,
                d.why,
            )
            for d in doubts
        ]
    rows += [
        (
            "refused",
            None,
            None,
            None,
            r.route,
            r.data_class,
            None,
            None,
            r.requests,
            " ".join(r.rules),
        )
        for r in evidence.past.refused
    ]
    rows += [
        ("audit log", *[None] * 7, finding.seq, finding.what) for finding in evidence.chain.findings
    ]
    return csv_of(Table(columns, rows))


def _json(evidence: _Evidence) -> str:
    """Return the report's tables as JSON, with their columns as names."""
    sections = {
        section.title: [dict(zip(section.columns, row, strict=True)) for row in section.rows]
        for section in _sections(evidence)
    }
    record = {
        "team": evidence.team,
        "month": f"{evidence.month:%Y-%m}",
        "verdict": evidence.verdict,
        **sections,
    }
    return json.dumps(record, indent=2, default=str, ensure_ascii=False) + "\n"


_RENDERED: Mapping[PageFormat, Callable[[_Evidence], str]] = {
    PageFormat.HTML: _html,
    PageFormat.CSV: _csv,
    PageFormat.JSON: _json,
}
