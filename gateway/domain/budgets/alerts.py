"""Computes the thresholds that a budget has reached, and an alert's webhook body and text; stores
and sends no alert.

A threshold is a share of the limit and its grants. The store ensures that each is raised once a
period.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from msgspec import Raw

from gateway.domain.alerts.delivery import AlertMessage
from gateway.domain.budgets.budgets import BudgetKind, BudgetPeriod, BudgetRule, BudgetScope
from gateway.domain.budgets.grants import grant_command
from gateway.domain.budgets.messages import GRANT_SHARE, moment_text
from gateway.domain.money import EXACT, format_usd, plain_usd, usd_from_nusd

TYPE = "budget.threshold"
# Events of a period are written shortly after its end, and later after an outage.
LOOK_BACK = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetAlert:
    """One threshold of one budget's period, as it was when it was raised."""

    alert_id: UUID
    account_id: str
    scope: BudgetScope
    team: str | None  # None for a cost centre's
    owner: str
    kind: BudgetKind
    period: BudgetPeriod
    time_zone: str
    starts_at: datetime
    ends_at: datetime | None
    threshold: Decimal
    limit_nusd: int
    granted_nusd: int
    spent_nusd: int
    raised_at: datetime

    @property
    def is_refusing(self) -> bool:
        """Return True if the alerted budget now refuses requests: it is hard, and all of it is
        spent.
        """
        return self.kind is BudgetKind.HARD and self.threshold >= 1


def crossed(
    rule: BudgetRule, *, starts_at: datetime, spent_nusd: int, granted_nusd: int, now: datetime
) -> tuple[Decimal, ...]:
    """Return all alert thresholds that an account's spending has reached in a period, lowest first,
    those alerted before included; none for a period long over.

    Also none for a period that the rule would not begin at that moment. If a name changes from a
    month to a day, the month's sum stays behind, and it does not count against the new limit.
    """
    if starts_at not in {rule.period_at(moment).starts_at for moment in (now, now - LOOK_BACK)}:
        return ()
    available_nusd = Decimal(rule.limit_nusd + granted_nusd)
    return tuple(
        threshold
        for threshold in sorted(set(rule.alert_at))
        if spent_nusd >= EXACT.multiply(threshold, available_nusd)
    )


def plain_share(threshold: Decimal) -> str:
    """Return an alert threshold, a share of the limit, as a decimal with a single spelling:
    `0.8`.
    """
    return f"{threshold.normalize():f}"


def message_of(alert: BudgetAlert) -> AlertMessage:
    """Return the alert as its receivers get it."""
    return AlertMessage(
        alert_id=alert.alert_id,
        raised_at=alert.raised_at,
        about=f"budget {alert.account_id} at {plain_share(alert.threshold * 100)}%",
        text=text(alert),
        payload=payload(alert),
    )


def payload(alert: BudgetAlert) -> dict[str, Any]:
    """Return the JSON body that the webhook receives for an alert, in a fixed order; it uses only
    stored values, so every retry posts the same.
    """
    return {
        "id": alert.alert_id,
        "type": TYPE,
        "created_at": alert.raised_at,
        "budget": alert.account_id,
        "scope": alert.scope,
        "team": alert.team,
        "owner": alert.owner,
        "kind": alert.kind,
        "period": alert.period,
        "starts_at": alert.starts_at,
        "ends_at": alert.ends_at,
        "threshold": _number(plain_share(alert.threshold)),
        "limit_usd": _number(plain_usd(alert.limit_nusd)),
        "granted_usd": _number(plain_usd(alert.granted_nusd)),
        "spent_usd": _number(plain_usd(alert.spent_nusd)),
        "text": text(alert),
    }


def text(alert: BudgetAlert) -> str:
    """Return an alert's text for people: the spending, its consequence, the reset time and who can
    grant more.
    """
    return " ".join(
        part
        for part in (_reached(alert), _consequence(alert), _resets(alert), _grant_command(alert))
        if part
    )


def _reached(alert: BudgetAlert) -> str:
    """Return the sentence of an alert's text on the threshold that is reached, with the spending
    and the limit.
    """
    share = plain_share(alert.threshold * 100)
    available = _usd(alert.limit_nusd + alert.granted_nusd)
    of = f"{available} ({_usd(alert.limit_nusd)} limit, {_usd(alert.granted_nusd)} granted)"
    return (
        f"Budget {alert.account_id} has reached {share}% of its limit: {_usd(alert.spent_nusd)} of "
        f"{of if alert.granted_nusd else available} spent."
    )


def _consequence(alert: BudgetAlert) -> str:
    """Return the sentence of an alert's text on whether requests are refused now; empty for a hard
    budget with money left.
    """
    if alert.kind is BudgetKind.SOFT:
        return "It is soft: nothing is refused."
    return "It is hard: requests that do not fit are refused." if alert.is_refusing else ""


def _resets(alert: BudgetAlert) -> str:
    """Return the sentence of an alert's text on the time when the spending resets, or that it never
    does.
    """
    return (
        "It never resets."
        if alert.ends_at is None
        else f"Resets {moment_text(alert.ends_at, alert.time_zone)}."
    )


def _grant_command(alert: BudgetAlert) -> str:
    """Return the sentence of an alert's text with the command that grants more; empty while the
    budget refuses nothing.
    """
    if not alert.is_refusing:
        return ""
    suggested = plain_usd(max(alert.limit_nusd // GRANT_SHARE, 1))
    return f"For more: {grant_command(alert.account_id, suggested)}"


def _number(plain: str) -> Raw:
    """Return a decimal's text as an exact JSON number: through a float it would differ from the
    ledger's sum.
    """
    return Raw(plain.encode())


def _usd(nusd: int) -> str:
    """Return an amount of nano-dollars as dollars for people: `$1,234.56`."""
    return format_usd(usd_from_nusd(nusd))
