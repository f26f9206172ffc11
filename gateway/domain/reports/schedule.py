"""Declares the schedule of statements: its receiver, read from text, and the message that carries a
month's statements; sends nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from urllib.parse import urlsplit
from uuid import UUID

from gateway.domain.alerts.delivery import AlertMessage, AttachedFile
from gateway.domain.alerts.mail import MOST_RECIPIENTS, is_mail_address
from gateway.domain.names import NAME, file_part
from gateway.domain.places.addresses import address_problem
from gateway.errors import BadUsage

ALL = "all"
"""The word for a statement of each cost centre with an amount in the month."""
TYPE = "cost.statement"
MOST_PATH = 1_000
_FORMS = "Write folder:/absolute/path, https://host/path or mailto:name@example.com."


class ReceiverKind(StrEnum):
    """A way to a receiver of statements."""

    FOLDER = "folder"
    WEBHOOK = "webhook"
    EMAIL = "email"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """A receiver of statements. `place` is a folder's path, an address, or mail addresses with
    commas.
    """

    kind: ReceiverKind
    place: str

    @property
    def shown(self) -> str:
        """Return the receiver for people. The path of a webhook may hold a token, so it is not in
        it.
        """
        if self.kind is ReceiverKind.FOLDER:
            return f"folder:{self.place}"
        if self.kind is ReceiverKind.EMAIL:
            return f"mailto:{self.place}"
        parts = urlsplit(self.place)
        return f"{parts.scheme}://{parts.netloc}" + ("/…" if parts.path != "" else "")

    @property
    def stored(self) -> str:
        """Return the text that `receiver_of` reads."""
        return self.place if self.kind is ReceiverKind.WEBHOOK else self.shown

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the mail addresses of a receiver of mails."""
        return tuple(self.place.split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule to be stored. Without a cost centre it is for each of them."""

    name: str
    cost_centre: str | None
    receiver: Receiver


@dataclass(frozen=True, slots=True, kw_only=True)
class DueStatement:
    """A closed version of a month whose statements a schedule is to send now; `tries` counts its
    failed tries so far.
    """

    delivery_id: UUID
    opened_at: datetime
    schedule: str
    cost_centre: str | None
    receiver: Receiver
    month: date
    version: int
    tries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentStatement:
    """The result of the last of `tries` to send a delivery: sent, given up, or to be retried at
    `next_try_at`.

    `error` of a sent one names the part that was refused, such as one of several recipients.
    """

    delivery_id: UUID
    tries: int
    error: str | None = None
    delivered_at: datetime | None = None
    next_try_at: datetime | None = None
    given_up_at: datetime | None = None


def new_schedule(*, name: str, cost_centre: str, every: str, to: str) -> NewSchedule:
    """Return a valid schedule from user input. Raises `BadUsage`."""
    if not re.fullmatch(NAME, name):
        raise BadUsage(
            f"'{name}' is no name of a schedule. Use up to 63 letters, digits, dots, dashes and "
            "underscores. Nothing was added."
        )
    if every != "month":
        raise BadUsage(f"Statements are of months: write --every month; got '{every}'.")
    centre = cost_centre.strip()
    if not centre:
        raise BadUsage("--cost-centre is a cost centre of the policy, or all.")
    return NewSchedule(
        name=name, cost_centre=None if centre == ALL else centre, receiver=receiver_of(to)
    )


def receiver_of(text: str) -> Receiver:
    """Return the receiver that a text names. Raises `BadUsage`, which never quotes an address."""
    scheme, _, rest = text.partition(":")
    match scheme.lower():
        case "folder":
            return Receiver(kind=ReceiverKind.FOLDER, place=_folder(rest))
        case "mailto":
            return Receiver(kind=ReceiverKind.EMAIL, place=_mail_addresses(rest))
        case "https" | "http":
            problem = address_problem(text)
            if problem is not None:
                words = problem.replace("sends prompts unencrypted", "sends amounts unencrypted")
                raise BadUsage(f"The address of --to {words}.")
            return Receiver(kind=ReceiverKind.WEBHOOK, place=text)
        case _:
            raise BadUsage(f"--to names no receiver. {_FORMS}")


def _folder(path: str) -> str:
    """Return the path of a folder. Raises `BadUsage`."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise BadUsage(f"The folder of --to is an absolute path without '..'. {_FORMS}")
    if not path.isprintable() or len(path) > MOST_PATH:
        raise BadUsage(f"The folder of --to has at most {MOST_PATH:,} characters, all printable.")
    return path.rstrip("/") or "/"


def _mail_addresses(text: str) -> str:
    """Return mail addresses with commas. Raises `BadUsage`."""
    addresses = text.split(",")
    if len(addresses) > MOST_RECIPIENTS:
        raise BadUsage(f"A schedule mails to at most {MOST_RECIPIENTS} addresses.")
    if not all(is_mail_address(address) for address in addresses):
        raise BadUsage(f"--to mailto: takes plain addresses, separated by commas. {_FORMS}")
    return ",".join(addresses)


def file_name(
    cost_centre: str, *, among: Sequence[str] = (), month: date, version: int, suffix: str
) -> str:
    """Return the name of a statement's file; `among` are all cost centres of the month."""
    part = file_part(cost_centre, among=among)
    return f"statement-{part}-{month:%Y-%m}-v{version}{suffix}"


def message_of(due: DueStatement, files: Sequence[AttachedFile]) -> AlertMessage:
    """Return the message that carries the statements of a schedule, the same at every try."""
    count = "the statement" if len(files) == 1 else f"{len(files)} statements"
    of = "each cost centre" if due.cost_centre is None else due.cost_centre
    month = f"{due.month:%Y-%m}"
    text = (
        f"Attached: {count} of {of} for {month}, as its version {due.version} was closed.\n"
        f"Schedule {due.schedule}; tollgate report schedule remove {due.schedule} ends it."
    )
    return AlertMessage(
        alert_id=due.delivery_id,
        raised_at=due.opened_at,
        about=f"cost statement {month}, {of}",
        text=text,
        payload={
            "id": due.delivery_id,
            "type": TYPE,
            "created_at": due.opened_at,
            "schedule": due.schedule,
            "cost_centre": due.cost_centre or ALL,
            "month": month,
            "version": due.version,
            "files": [
                {
                    "name": one.name,
                    "media_type": one.media_type,
                    "sha256": hashlib.sha256(one.content).hexdigest(),
                    "content_base64": base64.b64encode(one.content).decode(),
                }
                for one in files
            ],
        },
        files=tuple(files),
        kind="Statement",
    )
