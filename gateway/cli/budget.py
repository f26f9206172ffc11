"""Declares `tollgate budget list`, `show` and `grant`, which print the state of budgets and add
money to a running period; a policy declares the limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.operator import TakesYesOption
from gateway.cli.terminal.output import (
    Format,
    FormatOption,
    Table,
    moment,
    note,
    show,
    show_record,
    write,
)
from gateway.domain.budgets.messages import moment_text
from gateway.domain.budgets.names import find_budget
from gateway.domain.money import format_usd, usd_from_nusd
from gateway.errors import BadUsage
from gateway.reports.budgets.budgets import NO_BUDGET
from gateway.reports.reports import open_reports
from gateway.reports.scope import WHOLE_ORGANISATION
from gateway.storage.budgets.budgets import BudgetStore

if TYPE_CHECKING:
    from gateway.cli.toolbox import Toolbox
    from gateway.domain.budgets.grants import Granted, WorkerLease
    from gateway.reports.budgets.budget_detail import BudgetDetail, BudgetGrant, RaisedAlert
    from gateway.reports.budgets.budgets import BudgetStanding
    from gateway.reports.reports import Reports
    from gateway.storage.budgets.budgets import BudgetStore

MOST_USD = 9_000_000_000  # the most that 64 bits of nano-dollars hold
_DURATION = re.compile(r"([1-9][0-9]{0,4})([hdw])")
_UNITS = {"h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
FIELDS = (
    "budget",
    "kind",
    "period",
    "limit_usd",
    "granted_usd",
    "spent_usd",
    "held_usd",
    "leased_usd",
    "taken_over_usd",
    "remaining_usd",
    "used_share",
    "forecast_usd",
    "starts_at",
    "resets_at",
    "time_zone",
    "scope",
    "team",
    "owner",
    "is_current",
    "is_running",
)
HEADS = (
    "budget",
    "kind",
    "period",
    "limit",
    "granted",
    "spent",
    "held",
    "leased",
    "left",
    "used",
    "forecast",
    "resets",
)
MONEY = ("limit_usd", "granted_usd", "spent_usd", "held_usd", "leased_usd", "remaining_usd")
FORECAST_NOTE = "forecast: at the end of the period, at the present rate"

BudgetArgument = Annotated[
    str,
    typer.Argument(
        metavar="BUDGET", help="An account, such as payments/month; or just the team if it has one."
    ),
]
app = typer.Typer(
    name="budget", help="See budgets, and grant more.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(
    "list",
    short_help="List how budgets stand.",
    epilog="\b\nExamples:\n  tollgate budget list\n  tollgate budget list --team payments "
    "--format json\n"
    "  tollgate budget list --all --format csv > budgets.csv",
)
def list_budgets(
    ctx: typer.Context,
    team: Annotated[str | None, typer.Option("--team", help="Only this team's.")] = None,
    has_past: Annotated[
        bool, typer.Option("--all", help="Past periods and undeclared budgets too.")
    ] = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """List each budget's running period: limit, spent, held, left, and the forecast to its end.

    Left is limit and grants minus spent and leased. Gateways hold the leased part; requests in
    flight reserved the held part of it. A budget resets in its own time zone; JSON and CSV have the
    moment in UTC.
    """
    toolbox: Toolbox = ctx.obj
    with toolbox.open_reports() as reports:
        found = reports.budgets(toolbox.now(), has_past=has_past)
    chosen = [one for one in found if team is None or one.team == team]
    if format is not Format.TABLE:
        show(Table(FIELDS, [tuple(_json_record(one).values()) for one in chosen]), format, empty="")
        return
    empty = (
        NO_BUDGET
        if not found
        else f"Team '{team}' has no budget. tollgate budget list shows all of them."
    )
    show(Table(HEADS, [_table_row(one) for one in chosen]), format, empty=empty)
    if chosen:
        note(FORECAST_NOTE)


@app.command(
    "show",
    short_help="Show one budget in full.",
    epilog="\b\nExamples:\n  tollgate budget show payments/month\n"
    "  tollgate budget show payments                    (if the team has one budget of its own)\n"
    "  tollgate budget show payments/project:checkout/week --format json",
)
def show_budget(
    ctx: typer.Context, budget: BudgetArgument, format: FormatOption = Format.TABLE
) -> None:
    """Show one budget: its rule, forecast, grants with reasons, alerts, spenders, leases and recent
    periods.

    CSV has only the budget's own figures.
    """

    toolbox: Toolbox = ctx.obj
    with _open_store_and_reports(toolbox) as (store, reports):
        account_id = find_budget(budget, reports.budget_names())
        found = reports.budget(account_id, toolbox.now())
        assert found is not None, "its name was just read"
        leases = store.leases(account_id, found.standing.starts_at)
    if format is Format.JSON:
        show_record(_detail_record(found, leases), format)
    elif format is Format.CSV:
        show_record(_json_record(found.standing), format)
    else:
        _print_detail(found, leases)


@app.command(
    "grant",
    short_help="Add money to a budget's running period.",
    epilog="\b\nExamples:\n  tollgate budget grant payments/month 500 --reason 'launch week, "
    "agreed with Ada'\n"
    "  tollgate budget grant payments 50 --reason 'load test' --expires 12h\n"
    "  tollgate budget grant payments/month 500 --reason audit --expires 2026-11-27 --format json",
)
def grant(
    ctx: typer.Context,
    budget: BudgetArgument,
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT_USD", help="In US dollars, such as 500 or 0.25.")
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")],
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires",
            metavar="WHEN",
            help="12h, 3d, 2026-11-27 or 2026-11-27T18:00 (UTC); else at the period's end.",
        ),
    ] = None,
    yes: TakesYesOption = False,
    format: FormatOption = Format.TABLE,
) -> None:
    """Add money to a budget's running period; gateways admit from it within seconds.

    The grant keeps your reason and your database login, and cannot be changed. It ends with the
    period: for more in each period, raise limit_usd in the policy.
    """
    toolbox: Toolbox = ctx.obj
    if not reason.strip():
        raise BadUsage("--reason must give the reason. Nothing was granted.")
    amount_nusd, now = _amount(amount), toolbox.now()
    until = None if expires is None else expiry(expires, now)
    with _open_store_and_reports(toolbox) as (store, reports):
        account_id = find_budget(budget, reports.budget_names())
        before = _standing(reports, account_id, now)
        granted = store.grant(
            account_id, amount_nusd, expires_at=until, reason=reason.strip(), now=now
        )
        after = _standing(reports, account_id, now)
    record = _grant_record(granted, reason=reason.strip())
    stood = {"before": _money(before), "after": _money(after)}
    if format is Format.JSON:
        show_record(record | stood, format)
    elif format is Format.CSV:
        show_record(record, format)
    else:
        show_record(record, format)
        note("")
        show(
            Table(("", *MONEY), [(name, *figures.values()) for name, figures in stood.items()]),
            format,
            empty="",
        )
        note(f"Gateways admit from it within seconds. {_expiry_text(granted, after)}")


def expiry(text: str, now: datetime) -> datetime:
    """Parse the end of a grant: `12h`, `3d`, `2w`, a date or a date with a time; UTC without an
    offset.

    Raises `BadUsage`.
    """
    length = _DURATION.fullmatch(text)
    if length is not None:
        return now + int(length[1]) * _UNITS[length[2]]
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadUsage(
            f"'{text}' is no moment. Write a length of time (12h, 3d, 2w), a date (2026-11-27) or "
            "a date and time (2026-11-27T18:00). Nothing was granted."
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _amount(text: str) -> int:
    """Parse an amount of dollars as nano-dollars. Raises `BadUsage`."""
    try:
        usd = Decimal(text.removeprefix("$"))
    except InvalidOperation:
        raise BadUsage(
            f"'{text}' is not an amount in USD such as 500 or 0.25. Nothing was granted."
        ) from None
    nusd = usd.scaleb(9) if usd.is_finite() and abs(usd) <= MOST_USD else Decimal(-1)
    if nusd <= 0 or nusd != nusd.to_integral_value():
        raise BadUsage(
            f"A grant is more than 0 and at most {MOST_USD:,} USD, with at most nine decimals; got "
            f"{text}. Nothing was granted."
        )
    return int(nusd)


@contextmanager
def _open_store_and_reports(toolbox: Toolbox) -> Iterator[tuple[BudgetStore, Reports]]:
    """Yield the store of budgets, and reports on the same database: a read replica would not have
    the grant yet.
    """

    with (
        toolbox.open_admin() as database,
        open_reports(database.url, scope=WHOLE_ORGANISATION) as opened,
    ):
        yield BudgetStore(database), opened


def _standing(reports: Reports, account_id: str, now: datetime) -> BudgetStanding:
    """Return the figures of a budget's running period; the budget is known to exist."""
    found = reports.budget(account_id, now)
    assert found is not None, "its name was just read"
    return found.standing


def _json_record(one: BudgetStanding) -> dict[str, Any]:
    """Return a budget's fields as `budget list --format json` has them."""
    return {name: getattr(one, "ends_at" if name == "resets_at" else name) for name in FIELDS}


def _table_row(one: BudgetStanding) -> tuple[Any, ...]:
    """Return a budget's row in the table for people."""
    return (
        one.budget,
        one.kind,
        one.period,
        one.limit_usd,
        one.granted_usd,
        one.spent_usd,
        one.held_usd,
        one.leased_usd,
        one.remaining_usd,
        _share(one.used_share),
        one.forecast_usd,
        _resets(one),
    )


def _share(share: Decimal | None) -> str:
    """Return a share as a percentage for people: never 0.0 % for a positive one, never 100.0 % for
    an incomplete one.
    """
    if share is None:
        return "—"
    text = f"{share * 100:.1f}"
    if share > 0 and text == "0.0":
        return "< 0.1 %"
    return "> 99.9 %" if share < 1 and text == "100.0" else f"{text} %"


def _resets(one: BudgetStanding) -> str:
    """Return the moment when a budget's period ends as text in the budget's own time zone; `never`
    for a budget without periods.
    """
    if one.ends_at is None:
        return "never"
    return moment_text(one.ends_at, one.time_zone)


def _money(one: BudgetStanding) -> dict[str, Decimal | None]:
    """Return a budget's amounts by name, for the record of a grant."""
    return {name: getattr(one, name) for name in MONEY}


def _grant_record(granted: Granted, *, reason: str) -> dict[str, Any]:
    """Return a new grant as a record for output."""
    return {
        "grant_id": str(granted.grant_id),
        "budget": granted.account_id,
        "amount_usd": usd_from_nusd(granted.amount_nusd),
        "starts_at": granted.starts_at,
        "expires_at": granted.expires_at,
        "reason": reason,
        "author": granted.author,
    }


def _expiry_text(granted: Granted, one: BudgetStanding) -> str:
    """Return the sentence that tells a grant's author how long the new grant lasts."""
    if granted.expires_at is None:
        return "It stays as long as the budget does."
    return f"It ends {moment_text(granted.expires_at, one.time_zone)}."


def _detail_record(found: BudgetDetail, leases: Sequence[WorkerLease]) -> dict[str, Any]:
    """Return a budget with its grants, alerts, leases and periods as a record for programs."""
    one = found.standing
    return _json_record(one) | {
        "rule": one.rule,
        "rate_since": one.rate_since,
        "recent_usd": one.recent_usd,
        "grants": [
            {
                "grant_id": str(given.grant_id),
                "amount_usd": given.amount_usd,
                "author": given.author,
                "reason": given.reason,
                "created_at": given.created_at,
                "expires_at": given.expires_at,
                "is_expired": given.is_expired,
            }
            for given in found.grants
        ],
        "alerts": [
            {
                "threshold": alert.threshold,
                "spent_usd": alert.spent_usd,
                "raised_at": alert.raised_at,
                "delivered_at": alert.delivered_at,
                "given_up_at": alert.given_up_at,
                "last_error": alert.last_error,
            }
            for alert in found.alerts
        ],
        "spenders": [
            {
                "route": spender.route,
                "key_id": spender.key_id,
                "attempts": spender.attempts,
                "spent_usd": spender.spent_usd,
            }
            for spender in found.spenders
        ],
        "leases": [
            {
                "journal": str(lease.journal_id),
                "replica": lease.replica,
                "leased_usd": usd_from_nusd(lease.outstanding_nusd),
                "held_usd": usd_from_nusd(lease.held_nusd),
                "renewed_at": lease.renewed_at,
            }
            for lease in leases
        ],
        "periods": [_json_record(period) for period in found.periods],
    }


def _print_detail(found: BudgetDetail, leases: Sequence[WorkerLease]) -> None:
    """Print a budget in full for people, part by part."""
    show_record(_summary(found.standing), Format.TABLE)
    _print_part(
        "Grants",
        ("amount", "by", "why", "given", "until"),
        [
            (g.amount_usd, g.author, g.reason, g.created_at, _grant_end_text(g))
            for g in found.grants
        ],
        empty="none: tollgate budget grant adds one",
    )
    _print_part(
        "Alerts",
        ("reached", "spent", "at", "told"),
        [
            (_share(alert.threshold), alert.spent_usd, alert.raised_at, _delivery_of(alert))
            for alert in found.alerts
        ],
        empty="none in this period",
    )
    _print_part(
        "Spent by route and key" + (" (UTC days)" if found.spenders_by_day else ""),
        ("route", "key", "attempts", "spent"),
        [
            (spender.route, spender.key_id, spender.attempts, spender.spent_usd)
            for spender in found.spenders
        ],
        empty="nothing yet",
    )
    _print_part(
        "Leased by gateways",
        ("replica", "journal", "leased", "held", "heard of"),
        [
            (
                lease.replica,
                str(lease.journal_id),
                usd_from_nusd(lease.outstanding_nusd),
                usd_from_nusd(lease.held_nusd),
                lease.renewed_at,
            )
            for lease in leases
        ],
        empty="nothing",
    )
    _print_part(
        "Recent periods",
        ("from", "to", "limit", "granted", "spent", "used"),
        [
            (
                _begin_text(p),
                _resets(p),
                p.limit_usd,
                p.granted_usd,
                p.spent_usd,
                _share(p.used_share),
            )
            for p in found.periods
        ],
        empty="none was used yet",
    )


def _print_part(
    title: str, heads: tuple[str, ...], rows: Sequence[tuple[Any, ...]], *, empty: str
) -> None:
    """Print one titled table of a budget's details, or a line if it has no rows."""
    if not rows:
        write(f"\n{title}: {empty}\n")
        return
    write(f"\n{title}\n")
    show(Table(heads, rows), Format.TABLE, empty="")


def _summary(one: BudgetStanding) -> dict[str, str]:
    """Return a budget's facts for people, by name: rule, period, limit, spending and forecast."""
    return {
        "budget": one.budget
        + ("" if one.is_current else " (not declared any more: nothing is held from it)"),
        "rule": one.rule or "not known any more",
        "kind": one.kind or "unknown",
        "of": _owner_text(one),
        "period": f"{one.period or 'unknown'}, from {_begin_text(one)} to {_resets(one)}",
        "limit": format_usd(one.limit_usd),
        "granted": format_usd(one.granted_usd),
        "spent": f"{format_usd(one.spent_usd)}, {_share(one.used_share)} of limit and grants",
        "leased": f"{format_usd(one.leased_usd)}, {format_usd(one.held_usd)} of it held by "
        "requests under way",
        **(
            {"taken over": f"{format_usd(one.taken_over_usd)}, of windows that overlap this one"}
            if one.taken_over_usd
            else {}
        ),
        "left": format_usd(one.remaining_usd),
        "forecast": _forecast(one),
    }


def _owner_text(one: BudgetStanding) -> str:
    """Return the owner of a budget in words, such as `project a of team b`."""
    if one.scope is None:
        return "unknown"
    of_team = f" of team {one.team}" if one.team not in (None, one.owner) else ""
    return f"{one.scope.replace('_', ' ')} {one.owner}{of_team}"


def _forecast(one: BudgetStanding) -> str:
    """Return a budget's forecast in words, or the reason why there is none."""
    if not one.is_running:
        return "none: this period is not running"
    if one.ends_at is None:
        return "none: it never ends"
    if one.rate_since is None:
        return "none yet: too early in its period"
    return (
        f"{format_usd(one.forecast_usd)} at the end of the period: the spending so far plus the "
        f"present rate, {format_usd(one.recent_usd)} since {moment(one.rate_since)}"
    )


def _begin_text(one: BudgetStanding) -> str:
    """Return the begin of a budget's period for people."""
    return "its first request" if one.ends_at is None else moment_text(one.starts_at, one.time_zone)


def _delivery_of(alert: RaisedAlert) -> str:
    """Return the delivery state of a budget alert in words: when, not yet or given up."""
    if alert.delivered_at is not None:
        return moment(alert.delivered_at)
    failure = f": {alert.last_error}" if alert.last_error else ""
    return f"{'given up' if alert.given_up_at is not None else 'not yet'}{failure}"


def _grant_end_text(given: BudgetGrant) -> str:
    """Return the moment when a grant ends, as text for people."""
    if given.expires_at is None:
        return "always"
    return f"{moment(given.expires_at)}{' (over)' if given.is_expired else ''}"
