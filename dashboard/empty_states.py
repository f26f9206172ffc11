"""Shows the texts that replace a page without figures, each with the next step: no data, no budget,
no match, database unavailable or too slow, or not configured.
"""

from __future__ import annotations

import streamlit as st

from dashboard.source import URL_VARIABLE
from gateway.reports.report import Dataset

FIRST_REQUEST = """tollgate key create TEAM          # prints the key once
curl http://127.0.0.1:8080/v1/chat/completions \\
  -H "Authorization: Bearer $TOLLGATE_KEY" -H "Content-Type: application/json" \\
  -d '{"model": "ROUTE", "messages": [{"role": "user", "content": "Hello"}]}'"""


FIRST_BUDGET = """teams:
  - name: payments
    time_zone: Europe/Berlin          # when its periods begin
    budgets:
      - {period: month, limit_usd: 5000}
      - {period: day, limit_usd: 400, kind: soft}"""


FIRST_GPU = """deployments:
  - name: qwen-eu
    gpu: {type: H200, count: 1, usd_per_gpu_hour: 3.10, target_utilisation: 0.5,
          input_tok_per_s: 40000, output_tok_per_s: 2500}"""


def show_no_data(dataset: Dataset) -> None:
    """Explain on an empty page how to get the first event."""
    if dataset is Dataset.DEMO:
        st.subheader("No demo data in this database")
        st.write("Make ninety days of it; real reports are not touched:")
        st.code("tollgate demo-data", language="bash")
        return
    st.subheader("No requests yet")
    st.write("Send the first one through the gateway. It is here a second after it was answered.")
    st.code(FIRST_REQUEST, language="bash")
    st.caption(
        "The routes of a team are listed by: tollgate team show TEAM. Or look at the demo "
        "data: switch in the menu."
    )


def show_no_budget(dataset: Dataset) -> None:
    """Explain on an empty page how to declare the first budget."""
    if dataset is Dataset.DEMO:
        show_no_data(dataset)
        return
    st.subheader("No budget yet")
    st.write(
        "A hard budget refuses what does not fit, a soft one only counts. Declare one in the "
        "policy and apply it:"
    )
    st.code(FIRST_BUDGET, language="yaml")
    st.code("tollgate policy apply policy.yaml", language="bash")
    st.caption(
        "It is here as soon as it is applied. Grants for a running period: tollgate budget grant."
    )


def show_no_gpu_bill(dataset: Dataset) -> None:
    """Explain on an empty page how the cost of own GPUs becomes known."""
    if dataset is Dataset.DEMO:
        st.subheader("The demo's GPUs have no bill")
        st.write("Switch to real data in the menu: bills are not generated.")
        return
    st.subheader("No GPU hours yet")
    st.write(
        "Declare the GPUs of a self-hosted deployment in the policy: a running gateway looks at it "
        "every minute, and an hour costs uptime × rate. An invoice counts instead:"
    )
    st.code(FIRST_GPU, language="yaml")
    st.code("tollgate engine bill import november.csv", language="bash")


def show_nothing_matches(month: str, *, is_filtered: bool) -> None:
    """Explain that no event matches the month or the filters, although the dataset has events.

    `month` is in its form for people.
    """
    text = f"No data in {month}. Choose another month."
    if is_filtered:
        text = (
            f"No events match these filters ({month}). Choose another month, or take a filter away."
        )
    st.info(text, icon=":material/filter_alt:")


def show_away(message: str) -> None:
    """Show the message that the database could not be asked.

    The message is for the operator and may name hosts, so it is shown as plain text.
    """
    st.error(
        "The database cannot be asked right now. No figure is shown rather than a wrong one.",
        icon=":material/cloud_off:",
    )
    st.code(message, language=None, wrap_lines=True)
    st.write("Requests are not affected by this page. When the database is back, look again:")
    st.button("Try again", icon=":material/refresh:")


def show_too_slow(hours: int | None) -> None:
    """Show the message that a question took too long, and how to make it fast.

    `hours` wait for their sums, None if unknown.
    """
    st.error(
        "The database answers, but this question took too long. No figure is shown rather than "
        "a wrong one.",
        icon=":material/hourglass_disabled:",
    )
    if hours:
        st.write(
            f"{hours:,} hours are not summed up yet, so their events are read one by one. A "
            "gateway sums them up:"
        )
        st.code("tollgate serve", language="bash")
    else:
        st.write(
            "Choose a shorter time, or ask an admin to look for long transactions in Postgres."
        )
    st.button("Try again", icon=":material/refresh:")


def show_not_configured() -> None:
    """Explain how the dashboard is started with the address of the reports."""
    st.error("The dashboard does not know which database to ask.", icon=":material/settings:")
    st.write(
        "Start it with the command below, which knows the address, or set the variable to a "
        "Postgres URL:"
    )
    st.code(f"tollgate dashboard\n# or\nexport {URL_VARIABLE}=postgresql://…", language="bash")
