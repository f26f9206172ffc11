"""What a caller reads of a budget that has no room."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from gateway.domain.budgets import Account, Span
from gateway.domain.money import format_usd, usd_from_nusd

GRANT_SHARE = 10  # suggested: a tenth of the limit


def exhausted(account: Account, span: Span, *, limit_nusd: int, spent_nusd: int, held_nusd: int, hold_nusd: int) -> str:
    """Say what is used up, how much room the request needs, when there is more, and who can make room now.

    `held_nusd` is what attempts under way reserved and what replicas have at hand.
    """
    left_nusd = max(limit_nusd - spent_nusd - held_nusd, 0)
    state = "has too little left" if left_nusd else "is used up"
    smaller = " A smaller max_tokens needs less." if left_nusd else ""
    return (
        f"Budget {account.account_id} {state}: {_usd(limit_nusd)} limit, {_usd(spent_nusd)} spent, "
        f"{_usd(held_nusd)} held; this request may cost up to {_usd(hold_nusd)}.{smaller} "
        f"{_resets(span.ends_at, account.rule.time_zone)} Ask an admin for: "
        f"tollgate budget grant {account.account_id} {_suggested(account.rule.limit_nusd)} --reason …"
    )


def away(account: Account) -> str:
    """Say that nobody can be asked whether there is room."""
    return (
        f"Budget {account.account_id} cannot be asked for more: the database does not answer, and what this replica "
        f"had leased is used up. Nothing was sent. Try again shortly."
    )


def unbounded(account: Account, deployment: str) -> str:
    """Say why a request without a bound cannot be held for."""
    return (
        f"Budget {account.account_id} is hard, and what this request may cost at {deployment} has no bound. Set "
        "max_tokens (in responses: max_output_tokens), or ask an admin to declare max_output_tokens or context_window "
        "for the deployment. Pictures and files need context_window. Prompts must be strings or token ids."
    )


def moment_text(moment: datetime, time_zone: str) -> str:
    """A moment in a budget's own time zone: `1 Dec 00:00 Europe/Berlin`."""
    local = moment.astimezone(ZoneInfo(time_zone))
    return f"{local.day} {local:%b %H:%M} {time_zone}"


def _resets(ends_at: datetime | None, time_zone: str) -> str:
    return "It never resets." if ends_at is None else f"Resets {moment_text(ends_at, time_zone)}."


def _suggested(limit_nusd: int) -> str:
    return format_usd(usd_from_nusd(max(limit_nusd // GRANT_SHARE, 1))).replace("$", "").replace(",", "")


def _usd(nusd: int) -> str:
    return format_usd(usd_from_nusd(nusd))
