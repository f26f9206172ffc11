"""Draws the page of self-hosted economics: the GPU bill as a waterfall by deployment, the teams
that bear its idle part, own GPUs beside an API with the break-even, the hours, and the engines now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import streamlit as st

from dashboard import charts, empty_states
from dashboard.display import UNKNOWN, count, inert, money, share
from dashboard.downloads import csv_button
from dashboard.filters import dataset
from dashboard.notes import show_notes
from dashboard.shell.bar import Applies, show_bar
from dashboard.shell.choices import Choices
from dashboard.shell.leading import refusals_shown
from dashboard.source import answer, compare_with_api
from dashboard.tables import show_cells, show_report
from dashboard.views import engines
from gateway.errors import NothingFound
from gateway.reports.dimensions import UNALLOCATED, Dimension
from gateway.reports.report import Cell, Dataset, Report
from gateway.reports.selfhost.versus_api import WhatIf

HOURS = (
    "day",
    "deployment",
    "gpu_hours",
    "bill_usd",
    "applied_usd",
    "empty_usd",
    "underfilled_usd",
    "variance_usd",
    "estimated_usd",
    "imported_usd",
    "applied_without_bill_usd",
)
COMPARED = (
    "route",
    "deployment",
    "verdict",
    "api_model",
    "total_tokens",
    "selfhost_usd",
    "api_usd",
    "difference_usd",
    "utilisation",
    "break_even_tokens_per_day",
    "break_even_utilisation",
)
APPLIED = "Applied to teams"
OWN_LINES = {"empty": "Empty", "underfilled": "Underfilled", "variance": "Variance"}
MOST_TEAMS = 4  # of the bars: with the other lines, as many as there are colours
MOST_PRICE = 10_000.0


def page() -> st.Page:
    """Return the page of self-hosted economics for the menu."""
    return st.Page(
        show, title="Self-hosted economics", icon=":material/memory:", url_path="self-hosted"
    )


def show() -> None:
    """Show the page: headlines, the waterfall of the bill, its idle part by team, the comparison,
    the hours, and the engines.
    """
    st.title("Self-hosted economics")
    if dataset() is Dataset.DEMO:
        empty_states.show_no_gpu_bill(dataset())
        return
    choices = show_bar(Applies(filters=(Dimension.DEPLOYMENT,)))
    with refusals_shown(choices):
        _show_figures(choices)


def _show_figures(choices: Choices) -> None:
    """Show headlines, the waterfall of the bill, the comparison, and the hours."""
    asked = choices.question()
    hours, lines = answer("gpu", asked), answer("gpu-bill", asked)
    has_bill = hours.total["bill_usd"] is not None
    if not has_bill:
        empty_states.show_no_gpu_bill(dataset())
    else:
        _show_headlines(hours.total)
        _show_waterfall(lines, choices)
        show_notes(lines)
        _show_idle(choices, idle=hours.total["idle_usd"])
    _show_comparison(choices)
    if has_bill:
        st.subheader("Hours and bills by day")
        show_report(hours, HOURS)
        csv_button(st, hours, name=f"gpu-hours-{choices.file_label}")
        st.caption(
            "The bill is the imported one, else uptime × rate. Import an invoice: "
            "`tollgate engine bill import FILE`."
        )
        show_notes(hours)
    st.subheader("Engines now")
    engines.show_samples()


def _show_headlines(total: Mapping[str, Cell]) -> None:
    """Show the bill and its lines, each with its share of the bill."""
    bill = total["bill_usd"]
    cards = st.columns(5)
    cards[0].metric(
        "GPU bill",
        inert(money(bill)),
        border=True,
        height="stretch",
        delta=f"{_hours_text(total['gpu_hours'])} GPU hours",
        delta_color="off",
        delta_arrow="off",
    )
    helps = {
        "applied": "Charged to teams.",
        "empty": "No request was in flight.",
        "underfilled": "Requests were in flight, with less work than the declared capacity.",
        "variance": "The bill's difference to the declared rate, and charges beyond the GPU hours.",
    }
    for place, (name, help_text) in zip(cards[1:], helps.items(), strict=True):
        amount = total[f"{name}_usd"]
        place.metric(
            name.capitalize(),
            inert(money(amount)),
            border=True,
            height="stretch",
            help=help_text,
            delta=_share_text(amount, bill),
            delta_color="off",
            delta_arrow="off",
        )


def _hours_text(hours: Cell) -> str:
    """Return GPU hours for people, with one decimal; `unknown` for None."""
    return UNKNOWN if hours is None else f"{Decimal(str(hours)):,.1f}"


def _share_text(part: Cell, whole: Cell) -> str | None:
    """Return a part's share of the bill for people; None if either is unknown or the bill is 0."""
    if part is None or not whole:
        return None
    return f"{share(Decimal(str(part)) / Decimal(str(whole)))} of the bill"


def _show_waterfall(lines: Report, choices: Choices) -> None:
    """Show one bar for each deployment from its lines, and the lines as a table."""
    st.subheader("Where the bill went")
    if not lines.rows:
        st.info("No bill is known for these hours, so nothing can be divided.")
        return
    charts.waterfall(
        _steps(lines.records()),
        kinds=(APPLIED, *OWN_LINES.values(), charts.WHOLE),
        size_title="USD",
        alt_text="The GPU bill of each deployment: applied by team, empty, underfilled, variance",
    )
    with st.expander("The lines as a table"):
        show_report(lines, ("deployment", "line", "team", "amount_usd", "share"))
        csv_button(st, lines, name=f"gpu-bill-{choices.file_label}")


def _show_idle(choices: Choices, *, idle: Cell) -> None:
    """Show the teams that bear the idle part of the bill: empty and underfilled together."""
    st.subheader("Who bears the idle time")
    if not idle:
        st.caption("No idle time is known for these hours.")
        return
    report = answer("spend", choices.question(by=(Dimension.TEAM,), has_currency=False))
    bearing = sorted(
        ((str(row["team"] or UNALLOCATED), row["idle_usd"]) for row in report.records()),
        key=lambda pair: -_decimal(pair[1]),
    )
    bearing = [(team, amount) for team, amount in bearing if amount]
    whole = sum((_decimal(amount) for _, amount in bearing), Decimal(0))
    show_cells(
        {
            "Team": [team for team, _ in bearing],
            "Idle, USD": [amount for _, amount in bearing],
            "Share": [_decimal(amount) / whole for _, amount in bearing] if whole else [],
        },
        {"Idle, USD": money, "Share": share},
        numbers=("Idle, USD", "Share"),
    )
    st.caption(
        f"Together {inert(money(whole))}: empty and underfilled of the bill. The rule is "
        "`idle_cost` of each deployment in the policy; without one it stays unallocated. It is in "
        "no team's cost. As a file: `tollgate report spend --by team`, column `idle_usd`."
    )


def _decimal(amount: Cell) -> Decimal:
    """Return an amount as a decimal, 0 for none."""
    return Decimal(str(amount or 0))


def _steps(records: Sequence[Mapping[str, Cell]]) -> list[charts.Step]:
    """Return the steps of each deployment's bar: its largest teams, the other teams, then the lines
    without a team; they add up to the bill.
    """
    found: list[charts.Step] = []
    for deployment in dict.fromkeys(str(row["deployment"]) for row in records):
        own = [row for row in records if row["deployment"] == deployment]
        teams = [row for row in own if row["line"] == "applied"]
        steps = [(str(row["team"]), _amount(row)) for row in teams[:MOST_TEAMS]]
        rest = sum((_amount(row) for row in teams[MOST_TEAMS:]), Decimal(0))
        if rest:
            steps.append(("Other teams", rest))
        steps += [
            (OWN_LINES[str(row["line"])], _amount(row)) for row in own if row["line"] in OWN_LINES
        ]
        until = Decimal(0)
        for name, amount in steps:
            is_team = name not in OWN_LINES.values()
            found.append(
                charts.Step(
                    deployment=deployment,
                    name=name,
                    kind=APPLIED if is_team else name,
                    begin=until,
                    end=until + amount,
                    words=money(amount),
                )
            )
            until += amount
        found.append(
            charts.Step(
                deployment=deployment,
                name=charts.WHOLE,
                kind=charts.WHOLE,
                begin=Decimal(0),
                end=until,
                words=money(until),
            )
        )
    return found


def _amount(row: Mapping[str, Cell]) -> Decimal:
    """Return the amount of a line."""
    return Decimal(str(row["amount_usd"]))


def _show_comparison(choices: Choices) -> None:
    """Show own GPUs beside an API, with pickers for the what-ifs."""
    st.subheader("Own GPUs or an API")
    what_if = _choose_what_if()
    try:
        found = compare_with_api(choices.without(*choices.where).question(), what_if)
    except NothingFound as wrong:
        st.warning(inert(wrong.message), icon=":material/search_off:")
        return
    if found.rows:
        _show_verdicts(found.records())
        show_report(found, COMPARED)
        csv_button(st, found, name=f"selfhost-vs-api-{choices.file_label}")
    else:
        st.info("No traffic of a route and no own deployment to compare in this month.")
    show_notes(found)


def _choose_what_if() -> WhatIf:
    """Show the fields of the what-ifs, and return the assumptions; empty fields are the present."""
    with st.expander("What if …", icon=":material/tune:"):
        fields = st.columns(5)
        api = fields[0].text_input(
            "API", placeholder="model or deployment", help="Prices the traffic of own GPUs."
        )
        model = fields[1].text_input(
            "Own model",
            placeholder="deployment or model",
            help="All traffic of each route on this deployment.",
        )
        price = fields[2].number_input(
            "USD per GPU hour", min_value=0.0, max_value=MOST_PRICE, value=None, placeholder="now"
        )
        use = fields[3].number_input(
            "Utilisation, %", min_value=1, max_value=100, value=None, placeholder="now"
        )
        ops = fields[4].number_input(
            "Operations, USD a month", min_value=0.0, max_value=1e9, value=None, placeholder="0"
        )
    return WhatIf(
        api=api.strip() or None,
        model=model.strip() or None,
        usd_per_gpu_hour=Decimal(str(price)) if price else None,
        utilisation=Decimal(use) / 100 if use else None,
        ops_usd_per_month=Decimal(str(ops or 0)),
    )


def _show_verdicts(records: Sequence[Mapping[str, Cell]]) -> None:
    """Say in words what is cheaper, and how many comparisons lack a figure."""
    texts = {
        "selfhost": "own GPUs cost less",
        "api": "the API costs less",
        "never": "own GPUs never pay at this price",
        None: "unknown",
    }
    found = [record["verdict"] for record in records]
    parts = [
        f"**{count(found.count(verdict))}** × {text}"
        for verdict, text in texts.items()
        if verdict in found
    ]
    st.markdown(" · ".join(parts))
