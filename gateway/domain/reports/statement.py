"""Declares the statement of a cost centre for one month, and words it as a page; reads nothing and
draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal

from gateway.domain.money import format_amount

MOST_LINES = 8
"""Teams, and models, that are listed; the others are one line, so that the page stays one."""
MOST_ADJUSTMENTS = 6
MOST_REASON = 110
"""Characters of a reason: two lines of the page."""
UNKNOWN_SHARE = "—"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """The amount of one team or model, the part of it that is compared, and that of the month
    before; None is unknown.
    """

    name: str
    amount: Decimal | None
    compared: Decimal | None
    previous: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementAdjustment:
    """The part of one adjustment that the cost centre bears. `day` is that of the adjusted
    usage.
    """

    day: date
    kind: str
    team: str
    reason: str
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementMonth:
    """The state of a month when a statement was made: `open`, `provisional` or `closed`.

    A closed one has its version and hash. `as_of` is the moment of the close, or of the newest
    event; None before the first one.
    """

    first_day: date
    state: str
    version: int | None = None
    sha256: str | None = None
    as_of: datetime | None = None

    @property
    def label(self) -> str:
        """Return the month as `November 2026`."""
        return f"{self.first_day:%B %Y}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCentreStatement:
    """The cost of one cost centre in one month, in one currency. None is an unknown amount.

    `total` is `cost` and `adjusted`. `all_total` and `all_idle` are those of all cost centres
    together. `idle` (GPU time that no request paid for) and `held` (the most that attempts of
    unknown cost can cost) are in no total. `previous_total` is None without a statement before.
    `compared_total` is the part of the total that is compared with it: the whole, or the complete
    days of a month that still runs. Then `comparison` says which days these are.
    `adjustments` are the largest of `adjustment_count`, which add up to `adjusted`. Attempts of
    unknown cost, and those whose usage was derived, are counted among `attempts`.
    """

    cost_centre: str
    title: str | None
    owner: str | None
    month: StatementMonth
    previous: StatementMonth | None
    currency: str
    cost: Decimal | None
    adjusted: Decimal
    total: Decimal | None
    all_total: Decimal | None
    idle: Decimal | None
    all_idle: Decimal | None
    held: Decimal
    compared_total: Decimal | None
    previous_total: Decimal | None
    by_team: tuple[StatementLine, ...]
    by_model: tuple[StatementLine, ...]
    adjustments: tuple[StatementAdjustment, ...]
    adjustment_count: int
    attempts: int
    unknown_attempts: int
    derived_attempts: int
    rate_source: str | None
    comparison: str | None = None
    demo_note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementTable:
    """A table of a page: its rows have a text for each column, and `total` is the last one.

    The columns in `figures`, by number, are aligned to the right. `note` stands below.
    """

    title: str
    columns: tuple[str, ...]
    figures: frozenset[int]
    rows: tuple[tuple[str, ...], ...]
    total: tuple[str, ...] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementPage:
    """A statement in words, for every format alike.

    `facts` and `sums` pair a label with a text. `is_final` is True for a closed month. `created_at`
    dates the file: the same statement has the same bytes.
    """

    title: str
    cost_centre: str
    month: str
    state: str
    is_final: bool
    warning: str | None
    total: str
    total_label: str
    change: str
    share: str
    facts: tuple[tuple[str, str], ...]
    sums: tuple[tuple[str, str], ...]
    beside: tuple[tuple[str, str], ...]
    by_team: StatementTable
    by_model: StatementTable
    adjustments: StatementTable
    notes: tuple[str, ...]
    signatures: tuple[str, ...]
    created_at: datetime | None


def page_of(statement: CostCentreStatement) -> StatementPage:
    """Return the page of a statement."""
    month = statement.month
    named = statement.cost_centre
    if statement.title is not None:
        named = f"{statement.title} · {named}"
    return StatementPage(
        title="Cost statement",
        cost_centre=named,
        month=month.label,
        state=_state(month),
        is_final=month.state == "closed",
        warning=statement.demo_note,
        total=format_amount(statement.total, statement.currency),
        total_label=f"Total for {month.label}",
        change=_change_text(statement),
        share=f"{percent(statement.total, statement.all_total)} of all spending",
        facts=(
            ("Cost centre", statement.cost_centre),
            ("Title", statement.title or UNKNOWN_SHARE),
            ("Owner", statement.owner or UNKNOWN_SHARE),
            ("Month", f"{month.first_day:%Y-%m} (UTC)"),
            ("Currency", statement.currency),
        ),
        sums=(
            ("Usage", format_amount(statement.cost, statement.currency)),
            ("Adjustments", format_amount(statement.adjusted, statement.currency)),
            ("Total", format_amount(statement.total, statement.currency)),
        ),
        beside=(
            ("Idle GPU time", _idle_text(statement)),
            ("Held for unknown costs", format_amount(statement.held, statement.currency)),
        ),
        by_team=_lines_table("By team", "Team", statement.by_team, statement),
        by_model=_lines_table("By model", "Model", statement.by_model, statement),
        adjustments=_adjustments_table(statement),
        notes=_notes(statement),
        signatures=("Owner of the cost centre", "Finance"),
        created_at=month.as_of,
    )


def percent(part: Decimal | None, whole: Decimal | None) -> str:
    """Return a share as a percentage with one decimal. A positive share never prints as 0.0 %, and
    one below 1 never as 100.0 %.
    """
    if part is None or not whole:
        return UNKNOWN_SHARE
    share = part / whole * 100
    text = f"{share:.1f}"
    if share > 0 and text == "0.0":
        return "< 0.1 %"
    if share < 0 and text == "-0.0":
        return "> -0.1 %"
    return "> 99.9 %" if share < 100 and text == "100.0" else f"{text} %"


def _idle_text(statement: CostCentreStatement) -> str:
    """Return the idle cost that the cost centre bears, and its share of all of it."""
    text = format_amount(statement.idle, statement.currency)
    share = percent(statement.idle, statement.all_idle)
    return text if share == UNKNOWN_SHARE else f"{text} ({share} of all idle time)"


def _state(month: StatementMonth) -> str:
    """Return the state of a month in words."""
    if month.state == "closed":
        return f"Closed, version {month.version}"
    return "Provisional" if month.state == "provisional" else "Provisional, the month is not over"


def _change_text(statement: CostCentreStatement) -> str:
    """Return the difference to the statement before, in words."""
    if statement.previous is None:
        return "There is no statement before this one"
    change = _difference(statement.compared_total, statement.previous_total)
    if change is None:
        return f"The change since {statement.previous.label} is unknown"
    share = ""
    if statement.previous_total:
        share = f" ({change / abs(statement.previous_total) * 100:+.1f} %)"
    since = f"since {statement.previous.label}"
    if statement.comparison is not None:
        since = f"in its complete days, against {statement.previous.label}"
    return f"{_signed(change, statement.currency)}{share} {since}"


def _difference(now: Decimal | None, before: Decimal | None) -> Decimal | None:
    """Return a change; None if an amount is unknown."""
    return None if now is None or before is None else now - before


def _signed(change: Decimal | None, currency: str) -> str:
    """Return a change with its sign."""
    text = format_amount(change, currency)
    return f"+{text}" if change is not None and change > 0 else text


def _lines_table(
    title: str, noun: str, lines: Sequence[StatementLine], statement: CostCentreStatement
) -> StatementTable:
    """Return the table of the largest lines, the others as one, and the total."""
    has_before = statement.previous is not None
    # One line too many fits into the line of the others.
    listed = len(lines) if len(lines) == MOST_LINES + 1 else MOST_LINES
    shown, rest = [*lines[:listed]], lines[listed:]
    if rest:
        shown.append(
            StatementLine(
                name=f"{len(rest)} others",
                amount=_sum([line.amount for line in rest]),
                compared=_sum([line.compared for line in rest]),
                previous=_sum([line.previous for line in rest]),
            )
        )

    def cells(line: StatementLine) -> tuple[str, ...]:
        change = _signed(_difference(line.compared, line.previous), statement.currency)
        return (
            line.name,
            format_amount(line.amount, statement.currency),
            percent(line.amount, statement.total),
            *((change,) if has_before else ()),
        )

    total = StatementLine(
        name="Total",
        amount=statement.total,
        compared=statement.compared_total,
        previous=statement.previous_total,
    )

    return StatementTable(
        title=title,
        columns=(noun, "Amount", "Share", *(("Change",) if has_before else ())),
        figures=frozenset({1, 2, 3}),
        rows=tuple(cells(line) for line in shown),
        total=cells(total),
    )


def _adjustments_table(statement: CostCentreStatement) -> StatementTable:
    """Return the table of the largest adjustments, and the rest as one line."""
    rest = statement.adjustment_count - len(statement.adjustments)
    rows = [
        (
            one.day.isoformat(),
            one.kind.replace("_", " "),
            one.team,
            _shortened(one.reason),
            format_amount(one.amount, statement.currency),
        )
        for one in statement.adjustments
    ]
    month = statement.month.first_day
    if rest:
        left = statement.adjusted - sum((one.amount for one in statement.adjustments), Decimal(0))
        name = f"{rest:,} smaller {'one' if rest == 1 else 'ones'}"
        rows.append(("", "", "", name, format_amount(left, statement.currency)))
    return StatementTable(
        title="Adjustments",
        columns=("Day", "Kind", "Team", "Reason", "Amount"),
        figures=frozenset({4}),
        rows=tuple(rows),
        total=("Total", "", "", "", format_amount(statement.adjusted, statement.currency)),
        note=f"All, in full: tollgate export adjustments --month {month:%Y-%m}"
        if rows
        else "None in this month.",
    )


def _notes(statement: CostCentreStatement) -> tuple[str, ...]:
    """Return the small print: the state of the month, the currency, and the certainty."""
    month = statement.month
    if month.state == "closed":
        state = (
            f"{month.label} is closed: version {month.version} of {month.as_of:%Y-%m-%d %H:%M} "
            f"UTC, SHA-256 {month.sha256}. These figures do not change any more."
        )
    else:
        until = "no event" if month.as_of is None else f"{month.as_of:%Y-%m-%d %H:%M} UTC"
        state = f"{month.label} is provisional, complete until {until}: its figures can change."
    rates = statement.rate_source or (
        "Amounts are in US dollars, the currency of the ledger: nothing was converted."
    )
    idle = "Idle GPU time, and money held for attempts of unknown cost, are in no total."
    if statement.idle is None:
        idle += " The idle time is unknown until the GPU bill of each hour is known."
    return (
        state,
        *(() if statement.comparison is None else (f"Changes: {statement.comparison}",)),
        rates,
        _certainty(statement),
        idle,
        "Of a team that several cost centres share, this statement has their share of each day.",
    )


def _certainty(statement: CostCentreStatement) -> str:
    """Return the number of attempts, and of those whose cost or usage is not the provider's."""
    attempts, unknown = statement.attempts, statement.unknown_attempts
    text = f"{attempts:,} attempts"
    if unknown:
        held = format_amount(statement.held, statement.currency)
        text += f"; the cost of {unknown:,} is unknown, at most {held}"
    if statement.derived_attempts:
        text += f"; the usage of {statement.derived_attempts:,} is the gateway's own count"
    return f"{text}."


def _shortened(reason: str) -> str:
    """Return a reason as one line of bounded length."""
    line = " ".join(reason.split())
    return line if len(line) <= MOST_REASON else f"{line[: MOST_REASON - 1]}…"


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    """Return the sum of the known amounts, as reports do; None if none is known."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known, Decimal(0)) if known else None
