"""Builds the error messages for callers whose request a budget refuses or cannot decide on, with
the reset time and the next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from gateway.domain.budgets.budgets import Account, PeriodSpan
from gateway.domain.budgets.grants import grant_command
from gateway.domain.money import usd_from_nusd
from gateway.domain.words import listed_text

GRANT_SHARE = 10  # suggested: a tenth of the limit
CENT_NUSD = 10_000_000


def exhausted(
    account: Account,
    span: PeriodSpan,
    *,
    limit_nusd: int,
    spent_nusd: int,
    held_nusd: int,
    hold_nusd: int,
) -> str:
    """Return the error message that a budget lacks room for a request: its figures, the request's
    cost, the reset time, and the command that grants more.

    `held_nusd` is reserved by attempts in flight and leased to replicas.
    """
    short_nusd = spent_nusd + held_nusd + hold_nusd - limit_nusd
    left_nusd = max(hold_nusd - short_nusd, 0)
    state = "has too little left" if left_nusd else "is used up"
    smaller = " A smaller max_tokens needs less." if left_nusd else ""
    # Every figure has the digits of the smallest: "$0.09 limit, $0.09 spent" would hide the reason.
    decimals = _decimals(
        min(nusd for nusd in (limit_nusd, left_nusd, short_nusd, hold_nusd) if nusd > 0)
    )
    limit, spent, held, hold = (
        _usd(nusd, decimals) for nusd in (limit_nusd, spent_nusd, held_nusd, hold_nusd)
    )
    suggested = _suggested_grant_usd(account.rule.limit_nusd, short_nusd)
    return (
        f"Budget {account.account_id} {state}: {limit} limit, {spent} spent, "
        f"{held} held or being booked; this request may cost up to {hold}.{smaller} "
        f"{_resets(span.ends_at, account.rule.time_zone)} "
        f"Ask an admin for: {grant_command(account.account_id, suggested)}"
    )


def away(account: Account) -> str:
    """Return the error message for a request refused because this replica's lease is used up while
    Postgres is away.
    """
    return (
        f"Budget {account.account_id} has nothing left here: this replica's lease is used up, and "
        "the database does not answer. Nothing was sent. Try again shortly."
    )


def slow(account: Account) -> str:
    """Return the error message for a request refused because Postgres did not answer in time
    whether the budget has room.
    """
    return (
        f"Budget {account.account_id} has too little leased here, and Postgres did not answer in "
        "time whether there is more. Nothing was sent. Try again in a second; an admin whose "
        "Postgres is always slower raises TOLLGATE_BUDGET_WAIT_S."
    )


def wrong_clock(account: Account) -> str:
    """Return the error message for a request refused because this replica's clock differs too much
    from the database's.
    """
    return (
        f"Budget {account.account_id} leases nothing to this replica: its clock and the database's "
        "differ by more than 5 minutes. Nothing was sent. Try again at another replica; an admin "
        "finds the difference in /readyz and runs a time service (chrony) on both machines."
    )


def ask_refused(account: Account) -> str:
    """Return the error message for a request refused because Postgres rejected the lease's ask with
    an error; the budget may have room.
    """
    return (
        f"Postgres refused the question whether budget {account.account_id} has room for this "
        "request. Nothing was sent. Ask for fewer output tokens; an admin finds the reason in the "
        "gateway's log (budget_ask_refused)."
    )


def unbounded(account: Account, deployment: str) -> str:
    """Return the error message for a request that a hard budget refuses because its cost at a
    deployment has no upper bound.
    """
    return (
        f"Budget {account.account_id} is hard, and this request's cost at {deployment} has no "
        "upper bound. Set max_tokens (in responses: max_output_tokens), or ask an admin to declare "
        "max_output_tokens or context_window for the deployment. Pictures, files and tools that "
        "the provider runs need context_window. Prompts must be strings or token ids."
    )


def unbounded_member(
    account: Account, deployment: str, *, where: str, listed_as: str | None
) -> str:
    """Return the error message for a request that a hard budget refuses because of a member beside
    which another model, price or maximum may count. `listed_as` is the name to list it by.
    """
    listed = _listed(listed_as)
    remedy = f"`{listed}` (it does nothing to the cost), or " if listed else ""
    return (
        f"Budget {account.account_id} is hard, and '{where}' at {deployment} may let another "
        "model, price or maximum count, so that the cost has no upper bound. Nothing was sent. "
        "Leave it out, use a route that has a bound for it, or ask an admin for one of these at "
        f"the deployment: {remedy}"
        "`unlisted: {factor: N}` (it multiplies the cost at most N times, and so much is held)."
    )


def unbounded_rounds(
    account: Account,
    deployment: str,
    *,
    tool: str,
    can_drop: bool,
    most_rounds: int | None,
    rate: str | None = None,
    listed_as: str | None = None,
) -> str:
    """Return the error message for a request that a hard budget refuses because of a tool that the
    provider runs in rounds without a bound. `most_rounds` is the bound that the provider itself
    states; `can_drop` is False for a tool inside the prompt. `rate` is the field of the price for a
    fee that nothing states either, and `listed_as` the name of a tool without one.
    """
    drop = "`hosted_tools: drop` (does not send the tool), or " if can_drop else ""
    stated = (
        "`hosted_tools: hold` with `hosted_rounds: N` (holds N + 1 context windows, on the "
        "admin's word that there are no more rounds)"
        if most_rounds is None
        else f"`hosted_rounds: {most_rounds}` (the most rounds that the provider states)"
    )
    listed = _listed(listed_as)
    covered = f", or `{listed}` (the fee is covered, or there is none)" if listed else ""
    fee = (
        f" A tool that is sent needs its fee too: `{rate}` in the `price` there{covered}."
        if rate is not None
        else ""
    )
    return (
        f"Budget {account.account_id} is hard, and nothing bounds how often '{tool}' makes "
        f"{deployment} read its context window. Nothing was sent. Leave the tool out, use a route "
        f"that bounds it, or ask an admin for this at the deployment: {drop}{stated}.{fee}"
    )


def unpriced(
    account: Account,
    deployment: str,
    *,
    where: str,
    rate: str | None,
    can_drop: bool,
    listed_as: str | None,
    is_argument: bool = False,
) -> str:
    """Return the error message for a request that a hard budget refuses because it may be billed
    for a kind without a rate. `rate` is the field of the price, `can_drop` is True for a tool that
    can be left out, and `listed_as` is the name to list what is known to cost nothing. `rate` is
    None for a thing that is stored at the provider. `is_argument` is True for an argument of a tool
    whose calls have the rate.
    """
    listed = _listed(listed_as)
    if rate is None:
        remedy = f", or ask an admin for `{listed}` at the deployment (it brings none of them)"
        return (
            f"Budget {account.account_id} is hard, and '{where}' at {deployment} is stored at the "
            "provider: it may bring tools, a model or a maximum of its own, whose cost has no "
            "bound. Nothing was sent. Write its content and its tools in the request"
            f"{remedy if listed else ''}."
        )
    if is_argument:
        ways = [f"`{listed}` (the price covers it)"] if listed else []
        if can_drop:
            ways.append("`hosted_tools: drop` (the tool is not sent)")
        asked = f", or ask an admin for this at the deployment: {', or '.join(ways)}"
        return (
            f"Budget {account.account_id} is hard, and '{where}' may change the fee of a call at "
            f"{deployment}, for which its price has one `{rate}`. Nothing was sent. Leave the "
            f"argument out{asked if ways else ''}."
        )
    remedies = [f"`{rate}` in its `price` (or by `tollgate price add`)"]
    if can_drop:
        remedies.append("`hosted_tools: drop` (it is not sent)")
    if listed:
        remedies.append(f"`{listed}` (it costs no more than its tokens)")
    return (
        f"Budget {account.account_id} is hard, and the price of {deployment} does not say how much "
        f"'{where}' costs. Nothing was sent. Leave it out, use a route whose price says it, or ask "
        f"an admin for one of these at the deployment: {', or '.join(remedies)}."
    )


def all_needs(*, rates: Iterable[str], names: Iterable[str | None]) -> str:
    """Return the sentence with all `rates` and listed `names` that a refused request needs, so that
    its admin adds them at once; empty for a single one.
    """
    named = list(dict.fromkeys(name for name in names if name is not None))
    needs = [f"`{rate}`" for rate in dict.fromkeys(rates)]
    if len(needs) + len(named) < 2:
        return ""
    if listed := listed_text(named):
        needs.append(f"`{listed}`")
    return f" The rates and names of all that it asks for: {', '.join(needs)}."


def _listed(name: str | None) -> str | None:
    """Return the line of a policy that lists a name, None if no line can."""
    return None if name is None else listed_text([name])


def moment_text(moment: datetime, time_zone: str) -> str:
    """Return a time in a budget's own time zone: `1 Dec 00:00 Europe/Berlin`."""
    local = moment.astimezone(ZoneInfo(time_zone))
    return f"{local.day} {local:%b %H:%M} {time_zone}"


def _resets(ends_at: datetime | None, time_zone: str) -> str:
    """Return the sentence on the time when a budget resets, or that it never does."""
    return "It never resets." if ends_at is None else f"Resets {moment_text(ends_at, time_zone)}."


def _suggested_grant_usd(limit_nusd: int, short_nusd: int) -> str:
    """Return the amount in USD of the grant to ask for: a tenth of the limit, at least the missing
    amount, rounded up to two digits.
    """
    nusd = max(limit_nusd // GRANT_SHARE, short_nusd, 1)
    digits = 2 if nusd > CENT_NUSD else 1
    step = max(10 ** (len(str(nusd)) - digits), 1)
    return _usd(-(-nusd // step) * step, 9).replace("$", "").replace(",", "")


def _decimals(nusd: int) -> int:
    """Return the number of decimals that shows four digits of an amount below a cent; two for a
    larger amount.
    """
    return 2 if nusd >= CENT_NUSD else min(9 - len(str(nusd)) + 4, 9)


def _usd(nusd: int, decimals: int) -> str:
    """Return dollars with two decimals, and further ones only if they are not zero."""
    cents, more = f"{usd_from_nusd(nusd):,.{decimals}f}".partition(".")[::2]
    return f"${cents}.{more[:2]}{more[2:].rstrip('0')}"
