"""Draws the receipt page of one request: its cost, and each attempt with its priced lines and the
recorded reasons for its deployment; it computes no price.
"""

from __future__ import annotations

from typing import NoReturn
from uuid import UUID

import streamlit as st

from dashboard import address
from dashboard.display import NOTHING, UNKNOWN, count, exact_money, inert, moment, seconds
from dashboard.filters import DATASET_KEY, dataset
from dashboard.notes import show_notes
from dashboard.shell.viewer import zone_name
from dashboard.source import find_receipt
from dashboard.tables import show_cells
from gateway.domain.money import usd_from_nusd
from gateway.reports.plain_decimal import plain_decimal
from gateway.reports.receipts.attempt import AttemptReceipt
from gateway.reports.receipts.receipt import Receipt, arithmetic
from gateway.reports.report import Dataset

REQUEST_KEY, FACTS_IN_ROW = "request", 4


def page() -> st.Page:
    """Return the receipt page for the menu."""
    return st.Page(show, title="Receipt", icon=":material/receipt_long:", url_path="receipt")


def open_receipt(request_id: UUID) -> NoReturn:
    """Open the receipt page of a request."""
    address.opens(page().url_path)
    chosen = {DATASET_KEY: Dataset.DEMO.value} if dataset() is Dataset.DEMO else {}
    st.switch_page(page(), query_params=chosen | {REQUEST_KEY: str(request_id)})


def show() -> None:
    """Show the receipt page: a field for the request id, and the receipt of that request."""
    st.title("Receipt")
    text = st.text_input(
        "Request id",
        st.query_params.get(REQUEST_KEY, ""),
        placeholder="0197…",
        help="The x-request-id header of an answer, or pick a row under Requests.",
    ).strip()
    if not text:
        st.query_params.pop(REQUEST_KEY, None)
        st.info(
            "Enter the x-request-id of an answer, or pick a row under Requests.",
            icon=":material/search:",
        )
        return
    try:
        request_id = UUID(text)
    except ValueError:
        st.warning("That is not a request id. It looks like 01a1ab37-a1a2-79e7-9e0f-19be4e3393d0.")
        return
    st.query_params[REQUEST_KEY] = text
    found = find_receipt(request_id, dataset())
    if found is None:
        other = "real" if dataset() is Dataset.DEMO else "demo"
        st.warning(
            f"No such request in the {dataset()} data. It may be younger than a second, or "
            f"{other} data."
        )
        return
    _show_request(found)
    for attempt in found.attempts:
        _show_attempt(attempt, all_attempts=len(found.attempts))
    show_notes(found)


def _show_request(found: Receipt) -> None:
    """Show a request's cost, team and month, and the facts that all its attempts share."""
    cards = st.columns(4)
    held = f"at most {inert(exact_money(found.held_usd))} more" if found.held_usd else None
    cards[0].metric(
        "Total, USD",
        inert(exact_money(found.total_usd)),
        border=True,
        height="stretch",
        delta=held,
        delta_color="off",
        delta_arrow="off",
    )
    cards[1].metric("Attempts", count(len(found.attempts)), border=True, height="stretch")
    cards[2].metric("Team", inert(found.team), border=True, height="stretch")
    cards[3].metric("Month it is posted to", found.posted_period, border=True, height="stretch")
    tags = ", ".join(f"{name}={value}" for name, value in sorted(found.tags.items()))
    _show_facts(
        {
            f"Received ({zone_name()})": moment(found.occurred_at),
            "Project": found.project,
            "Cost centre": found.cost_centre,
            "Key": found.key_id,
            "End user": found.end_user,
            "Tags": tags,
            "Data class": found.data_class,
            "Policy version": count(found.policy_version),
            "Operation": found.operation,
        }
    )


def _show_attempt(attempt: AttemptReceipt, *, all_attempts: int) -> None:
    """Show one attempt of a request: its deployment, latency, priced lines and decision."""
    event = attempt.event
    place = "self-hosted" if event.is_self_hosted else "external"
    with st.container(border=True):
        st.subheader(
            f"Attempt {event.attempt} of {all_attempts}: {inert(event.deployment)}, "
            f"{inert(event.outcome)}"
        )
        _show_facts(
            {
                "Model": f"{event.model} ({event.provider}, {place})",
                "Region": event.region,
                "HTTP status": NOTHING if event.http_status is None else str(event.http_status),
                "Usage from": event.usage_source,
                "TTFT": seconds(event.ttft_s),
                "TPOT": seconds(event.tpot_s),
                "Duration": seconds(event.duration_s),
                "Price source": attempt.price.source if attempt.price else UNKNOWN,
            }
        )
        _show_lines(attempt)
        for one in attempt.adjustments:
            st.markdown(
                f"**Adjusted by {inert(exact_money(one.amount_usd))}** ({inert(one.kind)}, posted "
                f"to {one.posted_period}) by {inert(one.author)}: {inert(one.reason)}"
            )
        _show_decision(attempt)


def _show_lines(attempt: AttemptReceipt) -> None:
    """Show an attempt's priced lines and their sum, or the amount held for unknown usage."""
    if attempt.cost_usd is None:
        unknown = "Usage unknown: nobody reported what was used."
        held = inert(exact_money(attempt.held_usd))
        if attempt.total_usd is None:
            st.warning(f"{unknown} {held} is held, which is the most it can cost.")
        else:
            st.write(f"{unknown} Its cost was entered later.")
        return
    if not attempt.event.lines:
        st.write("Nothing was served, nothing is charged.")
        return
    parts = attempt.event.lines
    show_cells(
        {
            "Tokens of kind": [line.kind.value.replace("_", " ") for line in parts],
            "Tokens": [line.tokens for line in parts],
            "USD per 1M tokens": [line.usd_per_mtok for line in parts],
            "Arithmetic": [arithmetic(line) for line in parts],
            "Cost (USD)": [usd_from_nusd(line.cost_nusd) for line in parts],
        },
        {"Tokens": count, "USD per 1M tokens": plain_decimal, "Cost (USD)": exact_money},
        numbers=("Tokens", "USD per 1M tokens", "Cost (USD)"),
    )
    st.markdown(
        f"**Attempt total {inert(exact_money(attempt.cost_usd))}**, the sum of these lines."
    )
    saving = attempt.cache_saving_usd
    if saving and attempt.cached_share is not None:
        st.caption(
            f"{attempt.cached_share:.0%} of the prompt came from the provider's cache: "
            f"{inert(exact_money(abs(saving)))} {'less' if saving > 0 else 'more'} than at the "
            "rate of plain input."
        )


def _show_decision(attempt: AttemptReceipt) -> None:
    """Show each candidate's recorded verdict, and why this attempt's deployment was chosen; nothing
    without a record.
    """
    if not attempt.verdicts:
        return
    decision = attempt.event.decision
    rule, objective = (
        inert(word or UNKNOWN) for word in (decision.get("rule"), decision.get("objective"))
    )
    st.markdown(f"**Why here:** data class rule {rule}, objective {objective}")
    verdicts = attempt.verdicts
    show_cells(
        {
            "Deployment": [v.deployment for v in verdicts],
            "Region": [v.region for v in verdicts],
            "Verdict": [v.reason for v in verdicts],
        },
        {},
    )


def _show_facts(facts: dict[str, str | None]) -> None:
    """Show named facts in rows of `FACTS_IN_ROW` columns."""
    names = list(facts)
    for start in range(0, len(names), FACTS_IN_ROW):
        for place, name in zip(
            st.columns(FACTS_IN_ROW), names[start : start + FACTS_IN_ROW], strict=False
        ):
            with place.container(gap=None):
                st.caption(name)
                st.text(facts[name] or NOTHING)
