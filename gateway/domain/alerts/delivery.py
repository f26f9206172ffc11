"""Declares an alert as its receivers get it, the channels, the result of a try, and the rules of
retries; sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

GIVE_UP_AFTER = timedelta(hours=24)
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 600.0
# No next try is this far ahead. One that is was written by a clock that went wrong, so it is due:
# else the delivery would wait for years after the clock is right again.
FARTHEST_TRY = timedelta(hours=1)
_MOST_DOUBLINGS = 16  # far beyond the longest pause


class Channel(StrEnum):
    """A way to people. Each has a delivery of its own of each alert."""

    WEBHOOK = "webhook"
    EMAIL = "email"


class NotDelivered(Exception):
    """The receiver did not accept an alert.

    The message gives the reason, and never quotes a secret, or the webhook's full address.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedFile:
    """A file that a message carries. `media_type` is its type, such as `application/pdf`."""

    name: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertMessage:
    """An alert as its receivers get it, the same at every try.

    `about` names it in one line. `text` is for people; its last line may be a command. `payload` is
    the webhook's JSON body. `files` go with a mail, whose last line has the `kind` and the id.
    """

    alert_id: UUID
    raised_at: datetime
    about: str
    text: str
    payload: Mapping[str, Any]
    files: tuple[AttachedFile, ...] = ()
    kind: str = "Alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueAlert:
    """A message that one channel is to send now; `tries` counts its failed tries so far."""

    message: AlertMessage
    tries: int

    def is_too_old(self, now: datetime) -> bool:
        """Return True if the alert was raised so long ago that it is not delivered any more."""
        return now - self.message.raised_at >= GIVE_UP_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The result of one of `tries` deliveries by a channel: delivered, to be retried at
    `next_try_at`, or given up.

    `error` of a delivered one names the part that was refused, such as one of several recipients.
    """

    alert_id: UUID
    channel: Channel
    tries: int
    error: str | None = None
    delivered_at: datetime | None = None
    next_try_at: datetime | None = None
    given_up_at: datetime | None = None


def retry_pause_s(tries: int, *, draw: float) -> float:
    """Return the pause in seconds before an alert is delivered again, after `tries` failed
    deliveries.

    `draw` is from 0 to 1: full jitter.
    """
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, _MOST_DOUBLINGS), MAX_PAUSE_S) * draw
