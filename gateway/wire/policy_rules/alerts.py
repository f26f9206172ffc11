"""Reports errors between the fields of the alerts block."""

from __future__ import annotations

from gateway.domain.alerts.mail import MOST_RECIPIENTS
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy.teams import AlertsBlock


def check_alerts(document: PolicyDocument) -> None:
    """Report an error for an empty block, a webhook without its secret or the reverse, and too many
    addresses.
    """
    alerts = document.of("alerts")
    if not isinstance(alerts, AlertsBlock):
        return
    if alerts.is_empty:
        document.error("alerts", "is empty: name a webhook and its secret, or email")
    for name, other, example in (
        ("webhook", "secret", "https://hooks.example/x"),
        ("secret", "webhook", "env:TOLLGATE_ALERT_SECRET"),
    ):
        if alerts.has(other) and not alerts.has(name):
            alerts.error(name, f"is missing; write for example '{name}: {example}'")
    if len(alerts.of("email") or ()) > MOST_RECIPIENTS:
        alerts.error(
            "email", f"lists more than {MOST_RECIPIENTS} addresses; name a mailing list instead"
        )
