"""Prints a routing decision with its verdict on each candidate, and reads the recorded decision of
a past request; it decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from gateway.cli.terminal.output import Format, Table, note, print_json, show
from gateway.domain.pricing.pricing import Price
from gateway.domain.pricing.tokens import TokenKind
from gateway.errors import NothingFound
from gateway.reports.report import Dataset
from gateway.services.policy.explain import CandidateVerdict, Explanation

if TYPE_CHECKING:
    from gateway.reports.receipts.receipt import Receipt
    from gateway.reports.reports import Reports


def recorded_explanation(reports: Reports, request_id: UUID) -> Explanation:
    """Return the recorded decision of a request, not the one that would be made today.

    Raises `NothingFound`.
    """
    receipt = find_receipt(reports, request_id)
    first = receipt.attempts[0]
    attempts = (
        f"attempt {a.event.attempt} at {a.event.deployment} in {a.event.region}: {a.event.outcome}"
        for a in receipt.attempts
    )
    return Explanation(
        policy_version=receipt.policy_version,
        team=receipt.team,
        route=first.event.route,
        data_class=receipt.data_class,
        outcome="; ".join(attempts)
        + "."
        + (f" Was {first.degraded_because}." if first.degraded_because else ""),
        is_refused=False,
        verdicts=tuple(
            CandidateVerdict(deployment=v.deployment, region=v.region, rank=v.rank, reason=v.reason)
            for v in first.verdicts
        ),
    )


def find_receipt(reports: Reports, request_id: UUID) -> Receipt:
    """Return a request's receipt among real and demo events. Raises `NothingFound`."""
    for dataset in Dataset:
        receipt = reports.receipt(request_id, dataset=dataset)
        if receipt is not None:
            return receipt
    raise NothingFound(
        f"No request {request_id} is in the ledger. A request that was refused leaves no event; "
        "one that just ended appears within a second."
    )


def show_explanation(explanation: Explanation, format: Format) -> None:
    """Print every candidate of a decision with its rank, or the reason why it lost."""
    if format is Format.JSON:
        candidates = [
            record | ({} if verdict.expected is None else {"expected": verdict.expected})
            for record, verdict in zip(
                _table(explanation.verdicts).records(), explanation.verdicts, strict=True
            )
        ]
        print_json(explanation.record() | {"candidates": candidates})
        return
    show(_table(explanation.verdicts), format, empty="No candidate was recorded.")
    note(
        f"Team {explanation.team}, route {explanation.route}, class {explanation.data_class}, "
        f"policy version {explanation.policy_version}. {explanation.outcome}"
    )
    if explanation.basis:
        note(explanation.basis)


def _table(verdicts: tuple[CandidateVerdict, ...]) -> Table:
    """Return the candidates as a table; a column appears only if any candidate has a value in
    it.
    """
    columns = ["rank", "deployment", "region", "reason"]
    rows: list[list[object]] = [[v.rank, v.deployment, v.region, v.reason] for v in verdicts]
    if any(verdict.price for verdict in verdicts):
        columns += ["input_usd_per_mtok", "output_usd_per_mtok"]
        for row, verdict in zip(rows, verdicts, strict=True):
            row += [_rate(verdict.price, TokenKind.INPUT), _rate(verdict.price, TokenKind.OUTPUT)]
    if any(verdict.cost_usd is not None for verdict in verdicts):
        columns.append("cost_usd")
        for row, verdict in zip(rows, verdicts, strict=True):
            row.append(verdict.cost_usd)
    if any(verdict.route for verdict in verdicts):
        columns.append("route")
        for row, verdict in zip(rows, verdicts, strict=True):
            row.append(verdict.route)
    if any(verdict.arithmetic for verdict in verdicts):
        columns.append("arithmetic")
        for row, verdict in zip(rows, verdicts, strict=True):
            row.append(verdict.arithmetic or None)
    return Table(tuple(columns), [tuple(row) for row in rows])


def _rate(price: Price | None, kind: TokenKind) -> object:
    """Return a price's rate for one kind of token in USD per million, at the lowest context tier;
    None without a price.
    """
    return None if price is None else price.rate(kind, input_tokens=0)
