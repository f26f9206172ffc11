"""Divides the difference between a bill and the metered usage into its causes: quantities first,
money second.

Each place of a row (`RowKey`) is compared on its own; the parts of its difference add up to it
exactly. A part that no cause explains stays, with the cause `none`. Nothing here is a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction

from gateway.domain.deployments.gpu_bills import spread
from gateway.domain.money import plain_usd
from gateway.domain.policy.policy import Billing
from gateway.domain.pricing.pricing import MTOK
from gateway.domain.pricing.tokens import TokenKind
from gateway.domain.reconciliation.bills import (
    AccountDay,
    Bill,
    BilledLine,
    BilledTo,
    is_known_kind,
)
from gateway.domain.reconciliation.groups import LineGroup, Standing, groups_of
from gateway.domain.reconciliation.metered import (
    MeteredAt,
    MeteredSum,
    MeteredUsage,
    OddAttempts,
    OverMidnight,
    Owner,
)
from gateway.domain.reconciliation.statement import Cause, ReconciledRow, RowKey, merged

DAY = timedelta(days=1)
MOST_NAMES = 3  # in one sentence of evidence


@dataclass(slots=True)
class _Cell:
    """One day of a group and a kind of token: both sides, and the facts that may explain a
    difference.

    `own_*` is billed to the group's deployments, `foreign_*` to other keys that the bill's money
    cannot always tell apart. `quantity` is None if no export of the day has quantities.
    """

    key: RowKey
    metered: int = 0
    metered_nusd: int = 0
    quantity: Decimal | None = None
    own_nusd: int = 0
    foreign: Decimal = Decimal(0)
    foreign_nusd: int = 0
    foreign_names: set[str] = field(default_factory=set)
    slack_nusd: int = 0
    is_billed: bool = False
    is_covered: bool = False
    owners: dict[Owner, int] = field(default_factory=dict)
    rates: set[Decimal] = field(default_factory=set)
    odd: list[OddAttempts] = field(default_factory=list)
    moved_out: Decimal = Decimal(0)
    moved_in: Decimal = Decimal(0)
    moved_out_nusd: int = 0
    moved_in_nusd: int = 0
    moved_names: list[str] = field(default_factory=list)

    @property
    def gap(self) -> Decimal:
        """Return the billed less the metered quantity that is not explained yet."""
        if self.quantity is None:
            return Decimal(0)
        return self.quantity - self.metered + self.moved_out - self.moved_in

    def cost_of(self, quantity: Decimal, rate: Fraction) -> int:
        """Return the cost of a quantity at a rate in nano-dollars for each token."""
        return round(Fraction(quantity) * rate)  # half-even

    @property
    def rates_nusd(self) -> list[Fraction]:
        """Return the rates in nano-dollars for each token that its usage was charged by, and at
        last their average.
        """
        found = [Fraction(rate) * 10**9 / MTOK for rate in sorted(self.rates)]
        average = [Fraction(self.metered_nusd, self.metered)] if self.metered else []
        return found or average if len(found) == 1 else found + average


@dataclass(slots=True)
class _Series:
    """The cells of one group and kind of token, by day."""

    group: LineGroup
    token_kind: str
    cells: dict[date, _Cell] = field(default_factory=dict)

    def cell(self, day: date) -> _Cell:
        """Return the cell of a day, a new one if there is none."""
        if day not in self.cells:
            key = RowKey(day, self.group.account, self.group.model, self.token_kind)
            self.cells[day] = _Cell(key)
        return self.cells[day]


def reconciled(bill: Bill, usage: MeteredUsage, *, first: date, last: date) -> list[ReconciledRow]:
    """Return the rows of the days from `first` to `last`.

    The days beside them must be in `bill` and `usage` too, for requests over midnight.
    """
    rows = [*_fees(bill), *_unknown_kinds(bill)]
    folded = _folded_kinds(bill)
    series = _all_series(bill, usage, folded)
    _explain_over_midnight(series, usage.over_midnight, folded)
    for one in series:
        _explain_shortages(one)
        rows.extend(_rows_of(one, usage.premiums))
    return merged(row for row in rows if first <= row.key.day <= last)


def _fees(bill: Bill) -> Iterator[ReconciledRow]:
    """Yield the charges that are for no model's usage."""
    for line in bill.money:
        if line.is_fee:
            amount = line.amount_nusd or 0
            yield ReconciledRow(
                key=RowKey(line.day, line.billed_to.account, "", ""),
                cause=Cause.FEE,
                evidence=f"{line.text or 'A charge'}: {plain_usd(amount)} USD for no usage.",
                billed_nusd=amount,
            )


def _unknown_kinds(bill: Bill) -> Iterator[ReconciledRow]:
    """Yield the lines whose kind of token is not known here: a mapping can name it."""
    for lines, is_money in ((bill.quantities, False), (bill.money, True)):
        for line in lines:
            if line.is_fee or is_known_kind(line.token_kind):
                continue
            to = line.billed_to
            yield ReconciledRow(
                key=RowKey(line.day, to.account, to.model, line.token_kind),
                cause=Cause.UNMAPPED,
                evidence=f"'{line.token_kind}' is no kind of tokens that is known here.",
                billed_quantity=None if is_money else line.quantity,
                billed_nusd=(line.amount_nusd or 0) if is_money else 0,
            )


def _all_series(bill: Bill, usage: MeteredUsage, folded: Mapping[str, str]) -> list[_Series]:
    """Return the cells of all groups and kinds of tokens, filled with both sides."""
    billing: dict[MeteredAt, Billing] = {
        at: usage.billing_of(at)
        for at in (
            *(one.at for one in usage.sums),
            *(one.at for one in usage.odd),
            *usage.stated,
        )
    }
    lines: dict[str, tuple[list[BilledLine], list[BilledLine]]] = {}
    for side, found in enumerate((bill.quantities, bill.money)):
        for line in found:
            if not line.is_fee and is_known_kind(line.token_kind):
                lines.setdefault(line.token_kind, ([], []))[side].append(line)
    for metered in usage.sums:
        lines.setdefault(folded.get(metered.token_kind, metered.token_kind), ([], []))
    result = []
    for kind in sorted(lines):
        quantities, money = lines[kind]
        places = {line.billed_to for line in (*quantities, *money)}
        series = [_Series(group, kind) for group in groups_of(places, billing)]
        by_place = {place: one for one in series for place in one.group.places}
        by_deployment = {at: one for one in series for at in one.group.deployments}
        _add_metered(by_deployment, usage, kind, folded)
        _add_billed(by_place, quantities, money)
        for one in series:
            _note_coverage(one, bill)
        result += series
    return result


def _folded_kinds(bill: Bill) -> Mapping[str, str]:
    """Return the kinds that the bill counts under another kind: no usage export tells reasoning
    from other output.
    """
    has_reasoning = any(line.token_kind == TokenKind.REASONING for line in bill.quantities)
    return {} if has_reasoning else {TokenKind.REASONING.value: TokenKind.OUTPUT.value}


def _add_metered(
    series: Mapping[MeteredAt, _Series],
    usage: MeteredUsage,
    kind: str,
    folded: Mapping[str, str],
) -> None:
    """Add the metered usage of a kind to its cells, and the attempts that may explain more."""
    for one in usage.sums:
        if folded.get(one.token_kind, one.token_kind) != kind:
            continue
        cell = series[one.at].cell(one.day)
        cell.metered += one.quantity
        cell.metered_nusd += one.cost_nusd
        cell.owners[one.owner] = cell.owners.get(one.owner, 0) + one.cost_nusd
        cell.rates |= one.rates
        cell.slack_nusd += _own_slack_nusd(one)
    for odd in usage.odd:
        series[odd.at].cell(odd.day).odd.append(odd)


def _own_slack_nusd(one: MeteredSum) -> int:
    """Return how far the meter's own rounding can lead: half a nano-dollar for each line, if a
    token does not cost whole nano-dollars.
    """
    is_whole = all(rate * 1000 == (rate * 1000).to_integral_value() for rate in one.rates)
    return 0 if is_whole else one.lines // 2 + 1


def _add_billed(
    series: Mapping[BilledTo, _Series],
    quantities: Iterable[BilledLine],
    money: Iterable[BilledLine],
) -> None:
    """Add the billed quantities and amounts of a kind to its cells."""
    for line in quantities:
        one = series[line.billed_to]
        cell = one.cell(line.day)
        quantity = line.quantity or Decimal(0)
        if one.group.places[line.billed_to] is Standing.OWN:
            cell.quantity = (cell.quantity or Decimal(0)) + quantity
        else:
            cell.foreign += quantity
            cell.foreign_names.add(_name_of(line.billed_to))
    for line in money:
        one = series[line.billed_to]
        cell = one.cell(line.day)
        amount = line.amount_nusd or 0
        if one.group.places[line.billed_to] is Standing.OWN:
            cell.own_nusd += amount
            cell.slack_nusd += line.slack_nusd
        else:
            cell.foreign_nusd += amount
            cell.foreign_names.add(_name_of(line.billed_to))


def _note_coverage(one: _Series, bill: Bill) -> None:
    """Note on each cell whether the bill has its day, with quantities and with money.

    A group without an account of its own is compared with every account of the bill.
    """
    accounts = one.group.accounts or {at.account for at in bill.covered}
    if not one.group.accounts and accounts:
        one.group.accounts = set(accounts)
        for cell in one.cells.values():
            cell.key = cell.key._replace(account=one.group.account)
    for day, cell in one.cells.items():
        days = [AccountDay(account, day) for account in accounts]
        cell.is_billed = any(at in bill.money_days for at in days)
        cell.is_covered = any(at in bill.covered for at in days)
        if cell.quantity is None and any(at in bill.quantity_days for at in days):
            cell.quantity = Decimal(0)


def _explain_over_midnight(
    series: Sequence[_Series], attempts: Iterable[OverMidnight], folded: Mapping[str, str]
) -> None:
    """Move the usage of attempts that ended after midnight to the next day, if the bill has them
    there: the next day is over in each kind, and the first one short in at least one.
    """
    places = {(at, one.token_kind): one for one in series for at in one.group.deployments}
    for attempt in attempts:
        usage: dict[str, tuple[int, int]] = {}
        for kind, (tokens, nusd) in attempt.lines.items():
            name = folded.get(kind, kind)
            before = usage.get(name, (0, 0))
            usage[name] = (before[0] + tokens, before[1] + nusd)
        moves = []
        for kind, (tokens, nusd) in usage.items():
            cells = places[attempt.at, kind].cells
            days = cells.get(attempt.day), cells.get(attempt.day + DAY)
            if days[0] is not None and days[1] is not None and tokens:
                moves.append((days[0], days[1], Decimal(tokens), nusd))
        is_moved = (
            len(moves) == sum(1 for tokens, _ in usage.values() if tokens)
            and all(_is_comparable(a) and _is_comparable(b) for a, b, _, _ in moves)
            and all(b.gap >= tokens for _, b, tokens, _ in moves)
            and any(a.gap <= -tokens for a, _, tokens, _ in moves)
        )
        for first, second, moved, nusd in moves if is_moved else ():
            _move(first, second, moved, nusd, f"Request {attempt.request_id} ran over midnight.")


def _explain_shortages(one: _Series) -> None:
    """Move a shortage of one day to the next day, as far as that one has it over."""
    for day in sorted(one.cells):
        first, second = one.cells[day], one.cells.get(day + DAY)
        if second is None or not (_is_comparable(first) and _is_comparable(second)):
            continue
        tokens = min(-first.gap, second.gap)
        if tokens > 0:
            options = [first.cost_of(tokens, rate) for rate in first.rates_nusd]
            if options:
                nusd = min(
                    options,
                    key=lambda cost: (
                        abs(first.own_nusd - first.metered_nusd + cost)
                        + abs(second.own_nusd - second.metered_nusd - cost)
                    ),
                )
                _move(first, second, tokens, nusd, "The next day has as much more.")


def _is_comparable(cell: _Cell) -> bool:
    """Return True if the bill has a day's money and quantities."""
    return cell.is_billed and cell.quantity is not None


def _move(first: _Cell, second: _Cell, tokens: Decimal, nusd: int, name: str) -> None:
    """Record that usage of one day is on the bill of the next."""
    first.moved_out += tokens
    first.moved_out_nusd += nusd
    first.moved_names.append(name)
    second.moved_in += tokens
    second.moved_in_nusd += nusd
    second.moved_names.append(name)


def _rows_of(one: _Series, premiums: Mapping[Decimal, str]) -> Iterator[ReconciledRow]:
    """Yield the rows of a group and kind of token."""
    if not one.group.deployments:
        yield from _foreign_rows(one)
        return
    found = []
    for day in sorted(one.cells):
        cell = one.cells[day]
        if not cell.is_billed:
            yield from _missing_rows(cell)
        elif not one.token_kind:
            if cell.metered_nusd:
                yield _unknown_usage_row(cell)
        else:
            *parts, base = _rows_of_cell(cell)
            yield from parts
            found.append((cell, base))
    yield from _with_money_causes(found, premiums)


def _foreign_rows(one: _Series) -> Iterator[ReconciledRow]:
    """Yield the rows of places of the bill that no deployment has."""
    is_unmapped = Standing.UNMETERED not in one.group.places.values()
    for day in sorted(one.cells):
        cell = one.cells[day]
        names = _listed(cell.foreign_names)
        evidence = (
            f"No deployment has {names}."
            if is_unmapped
            else f"{names}: no deployment is billed to it."
        )
        if not cell.foreign and not cell.foreign_nusd:
            continue
        yield ReconciledRow(
            key=cell.key,
            cause=Cause.UNMAPPED if is_unmapped else Cause.UNMETERED,
            evidence=evidence,
            billed_quantity=cell.foreign or None,
            billed_nusd=cell.foreign_nusd,
        )


def _missing_rows(cell: _Cell) -> Iterator[ReconciledRow]:
    """Yield the row of a day that no export has the money of."""
    if cell.metered or cell.metered_nusd:
        evidence = (
            "The export has no line of this day."
            if cell.is_covered
            else "No imported export covers this day."
        )
        yield ReconciledRow(
            key=cell.key,
            cause=Cause.MISSING_BILL,
            evidence=evidence,
            metered_quantity=Decimal(cell.metered) if cell.metered else None,
            metered_nusd=cell.metered_nusd,
        )


def _unknown_usage_row(cell: _Cell) -> ReconciledRow:
    """Return the row of costs booked for attempts of unknown usage: the bill has their true usage
    among the other kinds.
    """
    return ReconciledRow(
        key=cell.key,
        cause=Cause.ABORTED,
        evidence="Booked for attempts of unknown usage; the bill has them among its tokens.",
        metered_nusd=cell.metered_nusd,
        is_matched=True,
        owners=_shared(-cell.metered_nusd, cell.owners),
    )


def _rows_of_cell(cell: _Cell) -> list[ReconciledRow]:
    """Return the rows of a day that the bill has: a row for each part of the difference in
    quantity, and at last the rest, whose quantities agree if they are known.
    """
    _separate_foreign(cell)
    parts = [_foreign_part(cell)] if cell.foreign or cell.foreign_nusd else []
    parts += _timing_parts(cell)
    if cell.gap:
        parts.append(_quantity_part(cell, parts))
    return [*parts, _rest(cell, parts)]


def _separate_foreign(cell: _Cell) -> None:
    """Take the tokens of other keys out of a deployment's own, if only the money names the keys."""
    if cell.foreign_nusd and not cell.foreign and cell.quantity is not None and cell.gap > 0:
        tokens = [Decimal(round(cell.foreign_nusd / rate)) for rate in cell.rates_nusd if rate]
        cell.foreign = min(cell.gap, *tokens)
        cell.quantity -= cell.foreign


def _foreign_part(cell: _Cell) -> ReconciledRow:
    """Return the row of traffic past the gateway that shares lines with a deployment's own."""
    quantity, nusd = cell.foreign, cell.foreign_nusd
    if not nusd and not (cell.metered or cell.metered_nusd or cell.quantity):
        nusd = cell.own_nusd  # money that names no key, of a day without usage of its own
    elif not nusd:
        nusd = min(
            (cell.cost_of(quantity, rate) for rate in cell.rates_nusd),
            key=lambda cost: abs(cell.own_nusd - cell.metered_nusd - cost),
            default=0,
        )
    return ReconciledRow(
        key=cell.key,
        cause=Cause.UNMETERED,
        evidence=f"{_listed(cell.foreign_names)}: no deployment is billed to it.",
        billed_quantity=quantity or None,
        billed_nusd=nusd,
    )


def _timing_parts(cell: _Cell) -> list[ReconciledRow]:
    """Return the rows of usage that is billed on the day after its request."""
    parts = []
    evidence = " ".join(dict.fromkeys(cell.moved_names[:MOST_NAMES]))
    if cell.moved_out:
        parts.append(
            ReconciledRow(
                key=cell.key,
                cause=Cause.TIMING,
                evidence=f"Billed on the next day. {evidence}",
                metered_quantity=cell.moved_out,
                metered_nusd=cell.moved_out_nusd,
                is_matched=True,
            )
        )
    if cell.moved_in:
        parts.append(
            ReconciledRow(
                key=cell.key,
                cause=Cause.TIMING,
                evidence=f"Metered on the day before. {evidence}",
                billed_quantity=cell.moved_in,
                billed_nusd=cell.moved_in_nusd,
                is_matched=True,
            )
        )
    return parts


def _quantity_part(cell: _Cell, parts: Sequence[ReconciledRow]) -> ReconciledRow:
    """Return the row of tokens that only one side has, at the metered rate that explains the
    amounts best.
    """
    gap = cell.gap
    left_nusd = _left_nusd(cell, parts)
    costs = [cell.cost_of(gap, rate) for rate in cell.rates_nusd]
    nusd = min(costs, key=lambda cost: abs(left_nusd - cost)) if costs else left_nusd
    if gap < 0 and -gap == cell.metered - cell.moved_out:
        nusd = cell.moved_out_nusd - cell.metered_nusd  # all of it: no rate, so no rounding
    is_aborted = gap > 0 and bool(cell.odd)
    owners = cell.owners
    if is_aborted:
        owners = {}
        for odd in cell.odd:
            owners[odd.owner] = owners.get(odd.owner, 0) + odd.attempts
    return ReconciledRow(
        key=cell.key,
        cause=Cause.ABORTED if is_aborted else Cause.QUANTITY,
        evidence=_aborted_evidence(cell.odd) if is_aborted else _quantity_evidence(gap),
        metered_quantity=-gap if gap < 0 else None,
        billed_quantity=gap if gap > 0 else None,
        metered_nusd=-nusd if gap < 0 else 0,
        billed_nusd=nusd if gap > 0 else 0,
        is_matched=True,
        owners=_shared(nusd, owners),
    )


def _left_nusd(cell: _Cell, parts: Iterable[ReconciledRow]) -> int:
    """Return the difference in money that the parts so far do not explain."""
    whole = cell.own_nusd + cell.foreign_nusd - cell.metered_nusd
    return whole - sum(part.difference_nusd for part in parts)


def _rest(cell: _Cell, parts: Sequence[ReconciledRow]) -> ReconciledRow:
    """Return the row of everything that no other part has, still without a cause."""
    metered = cell.metered - sum(
        (part.metered_quantity for part in parts if part.metered_quantity), Decimal(0)
    )
    billed = None
    if cell.quantity is not None:
        billed = cell.quantity + cell.foreign
        billed -= sum((part.billed_quantity for part in parts if part.billed_quantity), Decimal(0))
    return ReconciledRow(
        key=cell.key,
        cause=Cause.NONE,
        evidence="",
        metered_quantity=metered,
        billed_quantity=billed,
        metered_nusd=cell.metered_nusd - sum(part.metered_nusd for part in parts),
        billed_nusd=cell.own_nusd + cell.foreign_nusd - sum(part.billed_nusd for part in parts),
        is_matched=True,
    )


def _with_money_causes(
    found: Sequence[tuple[_Cell, ReconciledRow]], premiums: Mapping[Decimal, str]
) -> Iterator[ReconciledRow]:
    """Yield the rests of a group and kind with the causes of their differences in money.

    An amount within the printed digits is rounding, unless it fits the new rate better by which
    other days are billed.
    """
    priced = [
        (cell, row)
        for cell, row in found
        if row.difference_nusd and row.billed_quantity and not _is_rounding(cell, row)
    ]
    since = min((row.key.day for _, row in priced), default=None)
    _, largest = max(priced, key=lambda pair: pair[1].metered_nusd, default=(None, None))
    for cell, row in found:
        if not row.difference_nusd:
            if row.billed_quantity or row.metered_quantity or row.billed_nusd:
                yield row
            continue
        nusd = _shared(row.difference_nusd, cell.owners)
        if _is_rounding(cell, row) and not (
            since is not None
            and largest is not None
            and row.key.day >= since
            and _fits_rate_of(largest, row)
        ):
            evidence = (
                f"The amount is printed with at most {plain_usd(cell.slack_nusd)} USD of rounding."
            )
            yield replace(row, cause=Cause.ROUNDING, evidence=evidence, owners=nusd)
        elif row.billed_quantity:
            yield replace(
                row, cause=Cause.PRICE, evidence=_price_evidence(row, premiums), owners=nusd
            )
        elif row.billed_quantity is None and row.difference_nusd > 0 and cell.odd:
            yield replace(
                row,
                cause=Cause.ABORTED,
                evidence=_aborted_evidence(cell.odd),
                owners=nusd,
            )
        else:
            unknown = "No export of this day has quantities: import the usage export too."
            evidence = unknown if row.billed_quantity is None else "No tokens are billed with it."
            yield replace(row, evidence=evidence)


def _is_rounding(cell: _Cell, row: ReconciledRow) -> bool:
    """Return True if a difference is within the printed digits of its lines."""
    return bool(cell.slack_nusd) and abs(row.difference_nusd) <= cell.slack_nusd


def _fits_rate_of(largest: ReconciledRow, row: ReconciledRow) -> bool:
    """Return True if an amount is nearer to the rate of another day than to the metered one."""
    if not largest.metered_nusd:
        return False
    ratio = Fraction(largest.billed_nusd, largest.metered_nusd)
    return abs(row.billed_nusd - ratio * row.metered_nusd) < abs(row.difference_nusd)


def _shared(nusd: int, owners: Mapping[Owner, int]) -> Mapping[Owner, int]:
    """Return an amount's parts by team, in proportion to their weights; none without a team."""
    names = sorted(owners)
    weights = [max(0, owners[name]) for name in names]
    return dict(zip(names, spread(nusd, weights), strict=True)) if names else {}


def _name_of(place: BilledTo) -> str:
    """Return a place of a bill as words for people."""
    members = (("model", place.model), ("project", place.project), ("key", place.key))
    named = [f"{name} {value}" for name, value in members if value]
    return ", ".join([*named, f"account {place.account}"])


def _listed(names: Iterable[str]) -> str:
    """Return some names, the first few of many."""
    found = sorted(names)
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return "; ".join(found[:MOST_NAMES]) + more


def _aborted_evidence(odd: Sequence[OddAttempts]) -> str:
    """Return the attempts that did not end well as a sentence."""
    count = sum(one.attempts for one in odd)
    ids = [str(request) for one in odd for request in one.request_ids]
    return f"{count} attempt(s) did not end as ok, such as {', '.join(ids[:MOST_NAMES])}."


def _quantity_evidence(gap: Decimal) -> str:
    """Return a difference in quantity as a sentence."""
    more = "The bill has" if gap > 0 else "The meter has"
    return f"{more} {abs(gap):,f} more; every attempt of the day ended as ok."


def _price_evidence(row: ReconciledRow, premiums: Mapping[Decimal, str]) -> str:
    """Return the billed and the metered rate as a sentence, with the premium of a place that only
    one side has.
    """
    billed = _usd_per_mtok(row.billed_nusd, row.billed_quantity)
    metered = _usd_per_mtok(row.metered_nusd, row.metered_quantity)
    rates = f"Billed at {billed} USD per million, metered at {metered}."
    for factor, place in premiums.items():
        if _is_times(factor, billed, metered):
            return f"{rates} That is the premium of {factor} for {place}; it was not metered."
        if _is_times(factor, metered, billed):
            return f"{rates} The premium of {factor} for {place} was metered and not billed."
    return rates


def _is_times(factor: Decimal, more: str, less: str) -> bool:
    """Return True if a rate is a factor of another, to three decimals."""
    return bool(Decimal(less)) and round(Decimal(more) / Decimal(less), 3) == factor


def _usd_per_mtok(nusd: int, quantity: Decimal | None) -> str:
    """Return a rate in USD per million, to six significant digits."""
    assert quantity, "a difference in price is one of the same tokens on both sides"
    return f"{Decimal(nusd) / 1000 / quantity:.6g}"
