"""Generated bills and bills with mistakes, without a database: the readers and the causes alone."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from uuid import UUID

import pytest

from gateway.domain.policy.policy import Billing
from gateway.domain.reconciliation.bills import AccountDay, BillFileKind, bill_of
from gateway.domain.reconciliation.causes import reconciled
from gateway.domain.reconciliation.metered import (
    MeteredAt,
    MeteredSum,
    MeteredUsage,
    OddAttempts,
    OverMidnight,
    Owner,
)
from gateway.domain.reconciliation.statement import Cause
from gateway.domain.reconciliation.true_ups import TrueUpKey, true_ups_of
from gateway.errors import BillRejected
from gateway.wire.bills.exports.readers import parse_export, parse_mapping
from tests.invoices.generator import ACCOUNT, DAYS, KEY, PROJECT, RATES, Month, make_month
from tests.invoices.ledger import OURS
from tests.invoices.test_bill_import import HOSTILE

PAYMENTS = Owner("payments", "CC-1207")


def usage_of(month: Month) -> MeteredUsage:
    """Return the metered usage of a month's calls."""
    sums, odd, late = [], [], []
    for one in month.calls:
        at, day = MeteredAt(one.model, one.model), one.at.date()
        lines = {
            OURS[kind].value: (count, count * RATES[one.model][kind])
            for kind, count in one.tokens.items()
        }
        sums += [
            MeteredSum(
                day=day,
                at=at,
                token_kind=OURS[kind].value,
                owner=PAYMENTS,
                quantity=count,
                cost_nusd=count * RATES[one.model][kind],
                rates=frozenset({Decimal(RATES[one.model][kind]) / 1000}),
                lines=1,
            )
            for kind, count in one.tokens.items()
        ]
        if one.outcome != "ok":
            ids = (UUID(int=1),)
            odd.append(OddAttempts(day=day, at=at, owner=PAYMENTS, attempts=1, request_ids=ids))
        if (one.at + timedelta(seconds=one.duration_s)).date() > day:
            late.append(OverMidnight(day=day, at=at, request_id=UUID(int=2), lines=lines))
    billing = {model: Billing(account=ACCOUNT, project=PROJECT, key=KEY) for model in RATES}
    return MeteredUsage(sums=sums, odd=odd, over_midnight=late, billing=billing)


@pytest.mark.parametrize("seed", range(12))
def test_the_planted_differences_are_named_without_a_database(seed: int) -> None:
    """And approved once each."""
    month = make_month(seed)
    mapping = parse_mapping(month.mapping.encode() or b"models: {}", name="map.yaml")
    exports = [
        parse_export(
            [text.encode()],
            kind=BillFileKind(kind),
            name=kind,
            account=ACCOUNT,
            mapping=mapping,
        )
        for kind, text in month.files.items()
    ]
    bill = bill_of(
        [line for export in exports for line in export.lines],
        {export.kind: export.days.keys() for export in exports},
        {AccountDay(ACCOUNT, day) for day in DAYS},
    )
    rows = reconciled(bill, usage_of(month), first=DAYS[0], last=DAYS[-1])
    sums: dict[str, int] = {}
    for row in rows:
        if row.cause is not Cause.NONE or row.difference_nusd:
            sums[row.cause.value] = sums.get(row.cause.value, 0) + row.difference_nusd
    assert sums == month.planted

    causes = (Cause.FEE, Cause.PRICE)
    found = true_ups_of(rows, causes=causes, unallocated_to=None, booked={})
    assert sum(one.amount_nusd for one in found) == sums["fee"] + sums["price"]
    booked: dict[TrueUpKey, int] = {one.at: one.amount_nusd for one in found}
    assert true_ups_of(rows, causes=causes, unallocated_to=PAYMENTS, booked=booked) == []
    gone = true_ups_of([], causes=causes, unallocated_to=None, booked=booked)
    assert sum(one.amount_nusd for one in gone) == -sums["fee"] - sums["price"]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_mistake_is_named_with_its_line(name: str) -> None:
    """For any size of the pieces in which the file comes."""
    kind, content, line, finding = HOSTILE[name]
    data = content if isinstance(content, bytes) else content.encode()
    for size in (61, 2**20):
        pieces = [data[at : at + size] for at in range(0, min(len(data), 10**5), size)]
        if len(data) > 10**5:
            pieces = [data[at : at + 2**20] for at in range(0, len(data), 2**20)]
        with pytest.raises(BillRejected, match=f"line {line}: ") as refused:
            parse_export(pieces, kind=BillFileKind(kind), name="bill", account="a-1")
        assert finding in str(refused.value)
