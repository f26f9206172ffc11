"""Composes an alert's mail; sends none."""

from __future__ import annotations

from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import format_datetime

from gateway.domain.alerts.delivery import AlertMessage

MOST_SUBJECT = 200


def compose(message: AlertMessage, *, sender: str, recipients: Sequence[str]) -> EmailMessage:
    """Return an alert's mail, the same at every try: receivers can tell a repeated one by its id.

    Both kinds of address were checked by `is_mail_address`. Names of budgets and models may have
    any characters: they become one printable line, which the header encodes.
    """
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = _one_line(f"Tollgate: {message.about}")
    mail["Date"] = format_datetime(message.raised_at)
    mail["Message-ID"] = f"<{message.alert_id}@{sender.rpartition('@')[2]}>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834 §5: no holiday notice comes back
    mail.set_content(f"{message.text}\n\n{message.kind} {message.alert_id}\n", cte="base64")
    for place, file in enumerate(message.files):
        main, _, sub = file.media_type.partition("/")
        mail.add_attachment(file.content, maintype=main, subtype=sub, filename=file.name)
        if place == 0:
            # Python draws it by chance; a repeated mail is the same one.
            mail.set_boundary(f"=_{message.alert_id.hex}")
    return mail


def _one_line(text: str) -> str:
    """Return a text as one printable line of bounded length."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:MOST_SUBJECT]
