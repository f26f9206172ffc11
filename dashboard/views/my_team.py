"""Draws the page of a team's own keys, limits, budgets, spending and last errors, for developers
and team leads; it changes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from dashboard import access, empty_states
from dashboard.display import NOTHING, change, count, inert, moment, money, share
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.source import page_of_team
from dashboard.tables import show_cells
from dashboard.views import receipt
from gateway.reports.report import Dataset, Report
from gateway.reports.teams.team_page import TeamPage

TEAM_KEY = "my_team"
NO_LIMIT = "no limit"


def page() -> st.Page:
    """Return the page of the reader's own team for the menu."""
    return st.Page(show, title="My team", icon=":material/group:", url_path="my-team")


def show() -> None:
    """Show the page of the reader's team; with several teams, of the chosen one."""
    head, picker = st.columns([6, 2], vertical_alignment="bottom")
    head.title("My team")
    if dataset() is Dataset.DEMO:
        st.info("This page shows real data only. Switch to it at the left.")
        return
    with picker:
        team = _choose_team(sorted(access.viewer().access.teams))
    with st.spinner("Reading…", show_time=True):
        found = page_of_team(team)
    if found.is_empty:
        empty_states.show_no_data(dataset())
        return
    _show_spending(found.spent)
    _show_keys(found)
    _show_limits(found)
    _show_budgets(found)
    _show_errors(found)
    _show_refusals(found)
    show_notes(found.spent)


def _choose_team(teams: Sequence[str]) -> str:
    """Show the picker of the reader's teams if there are several, and return the chosen one."""
    if len(teams) == 1:
        st.markdown(f"**{inert(teams[0])}**")
        return teams[0]
    wanted = st.query_params.get(TEAM_KEY)
    place = teams.index(wanted) if wanted in teams else 0
    team = st.selectbox("Team", teams, index=place)
    st.query_params[TEAM_KEY] = team
    return team


def _show_spending(spent: Report) -> None:
    """Show the cards of this month so far, and its change against the month before."""
    total, compared = spent.total, spent.comparison
    assert compared is not None, "the page of a team compares its month"
    changed = total["change_share"]
    cards = st.columns(3)
    cards[0].metric(
        "Spent this month",
        money(total["total_usd"]).replace("$", "\\$"),
        delta=None if changed is None else change(changed),
        delta_color="inverse",
        border=True,
        height="stretch",
        help=f"This month so far, in UTC. The change: {compared.sentence}",
    )
    cards[1].metric("Attempts", count(total["attempts"]), border=True, height="stretch")
    unknown = count(total["unknown_attempts"])
    cards[2].metric("Of unknown cost", unknown, border=True, height="stretch")


def _show_keys(found: TeamPage) -> None:
    """Show the table of the team's keys; the key itself is known to its holder alone."""
    st.subheader("Keys")
    if not found.keys:
        st.write("No key yet. An administrator makes one:")
        st.code(f"tollgate key create {found.team}", language="bash")
        return
    show_cells(
        {
            "Key": [f"tg_{one.key_id}_…" for one in found.keys],
            "State": [one.state for one in found.keys],
            "Project": [one.project or NOTHING for one in found.keys],
            "Last used (UTC)": [moment(one.last_used_at) for one in found.keys],
            "Expires (UTC)": [moment(one.expires_at) for one in found.keys],
            "Made (UTC)": [moment(one.created_at) for one in found.keys],
        },
        {},
    )


def _show_limits(found: TeamPage) -> None:
    """Show the cards of the team's limits."""
    st.subheader("Limits")
    limits = found.limits
    if limits is None:
        st.caption("Not known before the policy is applied again: tollgate policy apply FILE")
        return
    if limits.is_shadow:
        st.caption("These limits are in shadow mode: they refuse nothing.")
    shown = {
        "Requests a minute": limits.requests_per_minute,
        "Tokens a minute": limits.tokens_per_minute,
        "At the same time": limits.concurrent,
    }
    for card, (name, limit) in zip(st.columns(3), shown.items(), strict=True):
        card.metric(name, NO_LIMIT if limit is None else count(limit), border=True)


def _show_budgets(found: TeamPage) -> None:
    """Show the table of the team's budgets, with the amount that is left."""
    st.subheader("Budgets")
    if not found.budgets:
        st.write("This team has no budget.")
        return
    budgets = found.budgets
    show_cells(
        {
            "Budget": [one.budget for one in budgets],
            "Left": [money(one.remaining_usd) for one in budgets],
            "Limit": [money(one.limit_usd) for one in budgets],
            "Spent": [money(one.spent_usd) for one in budgets],
            "Used": [share(one.used_share) for one in budgets],
            "Kind": [one.kind or NOTHING for one in budgets],
            "Resets (UTC)": [moment(one.ends_at) if one.ends_at else "never" for one in budgets],
        },
        {},
        numbers=("Left", "Limit", "Spent", "Used"),
    )


def _show_errors(found: TeamPage) -> None:
    """Show the team's last attempts that did not end well; a picked row opens its receipt."""
    st.subheader("Last errors")
    if not found.errors:
        st.write("None in the last seven days.")
        return
    errors = found.errors
    picked = show_cells(
        {
            "At (UTC)": [moment(one.occurred_at) for one in errors],
            "Outcome": [one.outcome for one in errors],
            "Status": [str(one.http_status or NOTHING) for one in errors],
            "Key": [f"tg_{one.key_id}_…" for one in errors],
            "Route": [one.route for one in errors],
            "Model": [one.model for one in errors],
            "Deployment": [one.deployment for one in errors],
            "Request": [str(one.request_id) for one in errors],
        },
        {},
        key=f"errors_of_{found.team}",
    )
    if picked is not None:
        receipt.open_receipt(errors[picked].request_id)


def _show_refusals(found: TeamPage) -> None:
    """Show the team's refused requests by code, rule and route."""
    st.subheader("Refused requests")
    if not found.refusals:
        st.write("None in the last seven days.")
        return
    refusals = found.refusals
    show_cells(
        {
            "Code": [one.code for one in refusals],
            "Budget, limit or rule": [one.rule or NOTHING for one in refusals],
            "Route": [one.route or NOTHING for one in refusals],
            "Requests": [count(one.requests) for one in refusals],
            "Last hour (UTC)": [moment(one.last_hour) for one in refusals],
        },
        {},
        numbers=("Requests",),
    )
