"""Adds up the lines of an export by day, account, project, key, model and kind of token, as its
reader yields them; memory is bounded by the number of sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

from gateway.domain.money import EXACT, nusd_from_usd
from gateway.domain.reconciliation.bills import AccountDay, BilledLine, BilledTo, BillFileKind
from gateway.wire.bills.exports.cells import PrintedAmount
from gateway.wire.bills.exports.text import WrongExport

MOST_SUMS = 500_000
MOST_USD = 9 * 10**9  # 64 bits hold more nano-dollars
MOST_TOTAL = Decimal(10) ** 20


class ReadLine(NamedTuple):
    """A line as its reader found it, or a day without lines if `token_kind` is None.

    `account`, `project` and `key` are None if the line does not name them.
    """

    number: int
    day: date
    account: str | None
    project: str | None
    key: str | None
    model: str
    token_kind: str | None
    quantity: Decimal | None
    amount: PrintedAmount | None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedExport:
    """The lines of an export, and its days with the number of lines in the file of each.

    A day may be without lines.
    """

    kind: BillFileKind
    lines: tuple[BilledLine, ...]
    days: Mapping[AccountDay, int]

    @property
    def first_day(self) -> date:
        """Return the first day of the export."""
        return min(at.day for at in self.days)

    @property
    def last_day(self) -> date:
        """Return the last day of the export."""
        return max(at.day for at in self.days)

    @property
    def rows(self) -> int:
        """Return the number of lines in the file."""
        return sum(self.days.values())

    @property
    def amount_nusd(self) -> int:
        """Return the sum of all amounts."""
        return sum(line.amount_nusd or 0 for line in self.lines)


class _Place(NamedTuple):
    """The place of a sum."""

    day: date
    account: str
    project: str | None
    key: str | None
    model: str
    token_kind: str
    text: str


@dataclass(slots=True)
class _Sum:
    """The sum of the lines of one place; `number` is the first one's."""

    number: int
    quantity: Decimal | None = None
    usd: Decimal | None = None
    slack_nusd: int = 0


def collected(
    lines: Iterable[ReadLine],
    kind: BillFileKind,
    *,
    account: str | None,
    models: Mapping[str, str],
    most_sums: int = MOST_SUMS,
) -> ParsedExport:
    """Return the sums of an export's lines. `account` stands for one that a line does not name,
    `models` are our names by theirs.

    Raises `WrongExport` if a line has no account, or the file has no line.
    """
    sums: dict[_Place, _Sum] = {}
    days: dict[AccountDay, int] = {}
    empty: set[date] = set()
    for line in lines:
        if line.token_kind is None:
            empty.add(line.day)
            continue
        owner = line.account or account
        if owner is None:
            raise WrongExport(line.number, "it names no account. Name it: --account ACCOUNT")
        _add(sums, line, owner, models)
        at = AccountDay(owner, line.day)
        days[at] = days.get(at, 0) + 1
        if len(sums) > most_sums:
            raise WrongExport(
                line.number, f"the file has more than {most_sums:,} sums by day. Split it"
            )
    accounts = {at.account for at in days} or ({account} if account else set())
    if empty and not accounts:
        raise WrongExport(1, "it names no account. Name it: --account ACCOUNT")
    for day in empty:
        for owner in accounts:
            days.setdefault(AccountDay(owner, day), 0)
    if not days:
        raise WrongExport(1, "it has no line of a day")
    return ParsedExport(kind=kind, lines=tuple(_lines_of(sums, kind)), days=days)


def _add(sums: dict[_Place, _Sum], line: ReadLine, account: str, models: Mapping[str, str]) -> None:
    """Add a line to the sum of its place. Raises `WrongExport` if the sum is too large."""
    place = _Place(
        line.day,
        account,
        line.project,
        line.key,
        models.get(line.model, line.model),
        line.token_kind or "",
        line.text,
    )
    found = sums.setdefault(place, _Sum(line.number))
    if line.quantity is not None:
        found.quantity = (found.quantity or Decimal(0)) + line.quantity
    if line.amount is not None:
        found.usd = EXACT.add(found.usd or Decimal(0), line.amount.usd)
        found.slack_nusd += line.amount.slack_nusd
    if abs(found.usd or Decimal(0)) > MOST_USD or abs(found.quantity or Decimal(0)) > MOST_TOTAL:
        raise WrongExport(line.number, "the sum of its day is too large to be true")


def _lines_of(sums: Mapping[_Place, _Sum], kind: BillFileKind) -> Iterable[BilledLine]:
    """Yield the lines of sums. If no line of the export names a project, it has no such member; the
    same for keys.
    """
    has_project = any(place.project is not None for place in sums)
    has_key = any(place.key is not None for place in sums)
    for number, (place, one) in enumerate(sorted(sums.items(), key=lambda item: item[1].number), 1):
        yield BilledLine(
            number=number,
            kind=kind,
            day=place.day,
            billed_to=BilledTo(
                place.account,
                (place.project or "") if has_project else None,
                (place.key or "") if has_key else None,
                place.model,
            ),
            token_kind=place.token_kind,
            quantity=one.quantity,
            amount_nusd=None if one.usd is None else nusd_from_usd(one.usd),
            slack_nusd=one.slack_nusd,
            text=place.text,
        )
