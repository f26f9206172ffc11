"""Declares the lines of providers' bills, and chooses those that count if several exports cover one
day: quantities from usage exports, money from cost exports.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import NamedTuple

from gateway.domain.pricing.tokens import CALL_KINDS, TokenKind

# A model's snapshot: `-2026-08-01`, `-20260801` or `@20260801` behind its name.
_DATE_SUFFIX = re.compile(r"[-@]20\d{2}-?(0[1-9]|1[0-2])-?(0[1-9]|[12]\d|3[01])$")


class BillFileKind(StrEnum):
    """The kind of an export's file."""

    OPENAI_USAGE = "openai-usage"
    OPENAI_COSTS = "openai-costs"
    ANTHROPIC_USAGE = "anthropic-usage"
    ANTHROPIC_COST = "anthropic-cost"
    AWS_CUR = "aws-cur"
    GCP_BILLING = "gcp-billing"
    FOCUS = "focus"
    CSV = "csv"


_USAGE = (BillFileKind.OPENAI_USAGE, BillFileKind.ANTHROPIC_USAGE)
_BOTH = (BillFileKind.AWS_CUR, BillFileKind.GCP_BILLING, BillFileKind.FOCUS, BillFileKind.CSV)
# The first kind that has a day of an account is the one that counts.
QUANTITIES = (*_USAGE, *_BOTH, BillFileKind.OPENAI_COSTS)
MONEY = (BillFileKind.OPENAI_COSTS, BillFileKind.ANTHROPIC_COST, *_BOTH)


class BilledTo(NamedTuple):
    """The account, project, key and model of a line.

    `project` and `key` are None if the export has no such member, and empty if a line of an export
    with it has none. `model` is empty for a charge that is for no model.
    """

    account: str
    project: str | None
    key: str | None
    model: str


class AccountDay(NamedTuple):
    """A day of an account."""

    account: str
    day: date


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledLine:
    """The usage or charge of one day, account, project, key, model and kind of token.

    `token_kind` is a `TokenKind`, another word of the provider, or empty for a charge that is for
    no usage. `quantity` is in tokens or calls, None if the export has none; `amount_nusd` is None
    in an export of usage alone. `slack_nusd` is half of the last digits that the provider printed.
    """

    number: int
    kind: BillFileKind
    day: date
    billed_to: BilledTo
    token_kind: str
    quantity: Decimal | None
    amount_nusd: int | None
    slack_nusd: int = 0
    text: str = ""

    @property
    def at(self) -> AccountDay:
        """Return the day and account of the line."""
        return AccountDay(self.billed_to.account, self.day)

    @property
    def is_fee(self) -> bool:
        """Return True for a charge that is for no model's usage."""
        return not self.billed_to.model and self.token_kind not in CALL_KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """The lines of a provider that count, and the days that its exports cover.

    `quantity_days` and `money_days` are the days on which an export has quantities, and money.
    `covered` are the days between the first and the last of an export, absent ones too.
    """

    quantities: Sequence[BilledLine]
    money: Sequence[BilledLine]
    quantity_days: frozenset[AccountDay]
    money_days: frozenset[AccountDay]
    covered: frozenset[AccountDay]


def bill_of(
    lines: Iterable[BilledLine],
    days: Mapping[BillFileKind, Collection[AccountDay]],
    covered: Iterable[AccountDay],
) -> Bill:
    """Return the bill of some stored lines; `days` are those that each kind of export has, with or
    without lines.
    """
    found = list(lines)
    with_quantity = _by_kind(line for line in found if line.quantity is not None)
    with_money = _by_kind(line for line in found if line.amount_nusd is not None)
    # A day without a line is known to be without usage, if the export is of usage or costs alone.
    of_quantity = _kind_by_day(
        {
            kind: days.get(kind, ()) if kind in _USAGE else with_quantity.get(kind, ())
            for kind in QUANTITIES
        },
        QUANTITIES,
    )
    of_money = _kind_by_day(
        {kind: with_money.get(kind, ()) if kind in _BOTH else days.get(kind, ()) for kind in MONEY},
        MONEY,
    )
    return Bill(
        quantities=[
            line
            for line in found
            if line.quantity is not None and line.kind is of_quantity.get(line.at)
        ],
        money=[
            line
            for line in found
            if line.amount_nusd is not None and line.kind is of_money.get(line.at)
        ],
        quantity_days=frozenset(of_quantity),
        money_days=frozenset(of_money),
        covered=frozenset(covered),
    )


def canonical_model(name: str) -> str:
    """Return a model's name without the date of its snapshot."""
    return _DATE_SUFFIX.sub("", name)


def is_same_model(theirs: str, ours: str) -> bool:
    """Return True if two names are equal, or one is the other with a date behind it."""
    return theirs == ours or canonical_model(theirs) == ours or theirs == canonical_model(ours)


def is_known_kind(word: str) -> bool:
    """Return True if a word is one of our kinds of tokens and calls."""
    return word in frozenset(TokenKind)


def _by_kind(lines: Iterable[BilledLine]) -> dict[BillFileKind, set[AccountDay]]:
    """Return the days of lines by their kind of export."""
    found: dict[BillFileKind, set[AccountDay]] = {}
    for line in lines:
        found.setdefault(line.kind, set()).add(line.at)
    return found


def _kind_by_day(
    days: Mapping[BillFileKind, Collection[AccountDay]], order: Sequence[BillFileKind]
) -> dict[AccountDay, BillFileKind]:
    """Return the kind of export that counts on each day of an account: the first in an order."""
    return {at: kind for kind in reversed(order) for at in days.get(kind, ())}
