"""Builds the readiness checks that show if this replica shares budgets and limits with all others
through Postgres, or works alone, and if its clock is Postgres's.
"""

from __future__ import annotations

from gateway.domain.checks import Check, Status

SKEW_WARN_S = 2.0  # of seconds between this machine's clock and Postgres's
MOST_SKEW_S = 300.0  # beyond these no budget is leased to this machine
_REMEDY = "bring Postgres back, see docs/runbooks/database-away.md; this replica goes on by itself"


def allowance_checks(
    *, budgets_away_s: float | None, lease_s: float, is_alone: bool
) -> tuple[Check, ...]:
    """Return readiness's checks on budgets and limits: whether this replica shares them with all
    others through Postgres.

    `budgets_away_s` is the time since Postgres stopped answering asks for money, None if it
    answers. `is_alone`: this replica applies its own share of the limits.
    """
    return (_budgets(budgets_away_s, lease_s), _limits(is_alone))


def _budgets(away_s: float | None, lease_s: float) -> Check:
    """Return the check on budgets: OK if Postgres answers, else a warning with the time that the
    leased money lasts.
    """
    if away_s is None:
        return Check("budgets", Status.OK, "money is leased as it is needed")
    left_s = max(lease_s - away_s, 0.0)
    finding = (
        f"Postgres has not answered for {away_s:,.0f} s: the leased money serves for another "
        f"{left_s:,.0f} s at most, then requests under a hard budget get 503, never 402"
    )
    return Check("budgets", Status.WARN, finding, _REMEDY)


def clock_check(skew_s: float | None) -> Check:
    """Return readiness's check on this machine's clock: a warning if it is more than two seconds
    off, with the effects if it is more than five minutes off.

    `skew_s` is how far it is ahead of Postgres's, None if that is not known.
    """
    if skew_s is None:
        return Check("clock", Status.OK, "Postgres has not stated its time yet")
    side = "ahead of" if skew_s > 0 else "behind"
    finding = f"this machine's clock is {abs(skew_s):,.3f} s {side} Postgres's"
    if abs(skew_s) <= SKEW_WARN_S:
        return Check("clock", Status.OK, finding)
    if abs(skew_s) > MOST_SKEW_S:
        finding += (
            ": nothing is leased, requests under a hard budget get 503, and other events carry a "
            "wrong time"
        )
    return Check("clock", Status.WARN, finding, "run a time service (chrony) on both machines")


def _limits(is_alone: bool) -> Check:
    """Return the check on limits: a warning if this replica enforces only its own part of them
    because Postgres does not answer.
    """
    if not is_alone:
        return Check("limits", Status.OK, "kept together with all replicas")
    return Check(
        "limits",
        Status.WARN,
        "Postgres does not answer: this replica keeps to its own part of each",
        _REMEDY,
    )
