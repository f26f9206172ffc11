"""Draws the page *Residency*: the regions that data was sent to, by class and rule, the refused
requests, and the verdict on each sent attempt of one team.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import count, counted, inert
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.shell.period import ALL
from dashboard.source import answer, residency_evidence
from dashboard.tables import show_cells, show_report
from dashboard.views.records.pickers import rows_with, values_of
from gateway.domain.residency.attempt_verification import Doubt
from gateway.reports.dimensions import Dimension
from gateway.reports.report import Cell, Dataset, Report

APPLIES = Applies(
    filters=(
        Dimension.TEAM,
        Dimension.REGION,
        Dimension.DEPLOYMENT,
        Dimension.DESTINATION,
        Dimension.DAY,
    )
)
SENT = ("team", "data_class", "region", "destination", "deployment", "attempts", "share", "rules")
REFUSED = ("team", "data_class", "route", "rules", "refused_requests")
DOUBTS = {
    "Day (UTC)": "day",
    "Deployment": "deployment",
    "Class": "data_class",
    "Policy version": "policy_version",
    "Attempts": "attempts",
    "Why": "why",
}


def page() -> st.Page:
    """Return the page *Residency* for the menu."""
    return st.Page(show, title="Residency", icon=":material/public:", url_path="residency")


def show() -> None:
    """Show the page: headlines, places, refusals, and the verdict on one team."""
    st.title("Residency")
    choices = show_bar(APPLIES, values=_places)
    report = answer("residency", choices.question())
    if not report.rows:
        empty_states.show_nothing_matches(choices.label, is_filtered=bool(choices.where))
        return
    sent, refused = rows_with(report, decision="sent"), rows_with(report, decision="refused")
    _show_headlines(report, sent)
    _show_sent(sent, choices)
    _show_refused(refused, choices)
    _show_verdict(choices)
    show_notes(report)


def _places(choices: Choices, one: Dimension) -> list[str]:
    """Return the values of a dimension that data was sent to or refused for."""
    asked = choices.unfiltered.question(has_currency=False)
    return values_of(answer("residency", asked), one.value)


def _show_headlines(report: Report, sent: Report) -> None:
    """Show the number of sent attempts, of regions, and of refused requests."""
    records = sent.records()
    own = sum(_count(row) for row in records if row["destination"] == "self-hosted")
    cards = st.columns(4)
    cards[0].metric("Sent attempts", count(report.total["attempts"]), border=True)
    cards[1].metric("Of these to own engines", count(own), border=True)
    regions = {row["region"] for row in records}
    listed = ", ".join(sorted(map(str, regions)))
    cards[2].metric("Regions", count(len(regions)), border=True, help=inert(listed) or None)
    cards[3].metric(
        "Refused by a rule",
        count(report.total["refused_requests"]),
        border=True,
        help="Requests that were sent nowhere, because rules kept every deployment away.",
    )


def _show_sent(sent: Report, choices: Choices) -> None:
    """Show the places of sent attempts as bars by region and as a table."""
    st.subheader("Where it was sent")
    if not sent.rows:
        st.info("Nothing was sent.")
        return
    charts.bars(
        _by_region(sent.records()),
        group="region",
        size="attempts",
        size_title="Attempts",
        read=count,
        size_format=",d",
        alt_text="Sent attempts by region",
        group_title="Region",
    )
    show_report(sent, SENT)
    csv_button(st, sent, name=f"residency-{choices.file_label}-sent")


def _show_refused(refused: Report, choices: Choices) -> None:
    """Show the requests that rules refused."""
    st.subheader("Refused by a rule")
    if {*choices.where} - {Dimension.TEAM, Dimension.DAY}:
        st.caption("A refused request went to no place: take the filters of places away.")
        return
    if not refused.rows:
        st.caption("No request was refused for residency.")
        return
    show_report(refused, REFUSED)
    csv_button(st, refused, name=f"residency-{choices.file_label}-refused")


def _show_verdict(choices: Choices) -> None:
    """Show the verdict on each attempt of a team in a month, decided again."""
    st.subheader("Was all of it allowed?")
    if dataset() is Dataset.DEMO:
        st.caption("Demo data were sent nowhere, so nothing can be decided again.")
        return
    team, month = choices.where.get(Dimension.TEAM), choices.time.month
    if team is None or month is None or month == ALL:
        st.caption(
            "Choose a team and a month: each of its attempts is decided again by the policy "
            "version that it was sent under."
        )
        return
    with st.spinner("Deciding each attempt again …", show_time=True):
        evidence = residency_evidence(team, date.fromisoformat(f"{month}-01"))
    verified = evidence.verified
    outside, unverified = _sum(verified.outside), _sum(verified.unverified)
    if not verified.attempts:
        st.info("This team sent nothing in the month.")
    elif not outside and not unverified:
        st.success(
            f"All {counted(verified.attempts, 'attempt')} went where the rules of their policy "
            "version allow.",
            icon=":material/verified_user:",
        )
    else:
        st.error(
            f"{count(outside)} of {counted(verified.attempts, 'attempt')} broke a rule, and "
            f"{count(unverified)} cannot be verified.",
            icon=":material/gpp_bad:",
        )
        for name, doubts in (
            ("Broke a rule", verified.outside),
            ("Not verified", verified.unverified),
        ):
            if doubts:
                st.markdown(f"**{name}**")
                _show_doubts(doubts)
    st.caption("The auditor's document, with the facts about each place and the audit log:")
    st.code(
        f"tollgate audit residency --team {team} --month {month} --out {team}-{month}.html",
        language="bash",
        wrap_lines=True,
    )


def _show_doubts(doubts: Sequence[Doubt]) -> None:
    """Show attempts that broke a rule or cannot be verified, as a table."""
    show_cells(
        {heading: [getattr(doubt, name) for doubt in doubts] for heading, name in DOUBTS.items()},
        {"Attempts": count},
        numbers=("Policy version", "Attempts"),
    )


def _by_region(records: Sequence[Mapping[str, Cell]]) -> list[dict[str, object]]:
    """Return the attempts of each region and destination, most first, for the bars."""
    sums: dict[str, int] = {}
    for row in records:
        place = f"{row['region']} ({row['destination']})"
        sums[place] = sums.get(place, 0) + _count(row)
    ranked = sorted(sums.items(), key=lambda pair: -pair[1])
    return [{"region": place, "attempts": attempts} for place, attempts in ranked]


def _count(row: Mapping[str, Cell]) -> int:
    """Return the attempts of a row; a refused request has none."""
    return int(str(row["attempts"] or 0))


def _sum(doubts: Sequence[Doubt]) -> int:
    """Return the number of attempts in doubt."""
    return sum(doubt.attempts for doubt in doubts)
