"""Reads the errors of Google's APIs: `{"error": {"code", "message", "status", "details"}}`.

Each of the `details` names its type (google.rpc.ErrorInfo, RetryInfo, QuotaFailure:
https://cloud.google.com/apis/design/errors, looked up 2026-11-24).
"""

from __future__ import annotations

import re
from typing import Any

from gateway.wire.error_body import ErrorBody
from gateway.wire.foreign_json import object_in, object_of, objects_in, text_in

MAX_MESSAGE_CHARS = 1000
NO_REASON = "The upstream gave no readable reason."
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")


def read_error(body: bytes) -> ErrorBody:
    """Return Google's error from a body; never raises. `type` is its status (`NOT_FOUND`), `code`
    the reason in its details (`API_KEY_INVALID`).
    """
    error = _error_in(body)
    message = text_in(error, "message")[:MAX_MESSAGE_CHARS] or NO_REASON
    reasons = [text_in(one, "reason") for one in objects_in(error, "details")]
    reason = next((one for one in reasons if one), None)
    status = text_in(error, "status")[:MAX_MESSAGE_CHARS] or None
    return ErrorBody(message, status, None, None if reason is None else reason[:MAX_MESSAGE_CHARS])


def retry_delay_s(body: bytes) -> float | None:
    """Return the seconds of the error's `RetryInfo.retryDelay`, None without one."""
    for one in objects_in(_error_in(body), "details"):
        found = _SECONDS.fullmatch(text_in(one, "retryDelay"))
        if found is not None:
            return float(found[1])
    return None


def _error_in(body: bytes) -> dict[str, Any]:
    """Return the error object of a body, which some streams put into a list; an empty one if there
    is none.
    """
    held = object_of(b'{"body":' + body.strip() + b"}") or {}
    listed = objects_in(held, "body")
    return object_in(listed[0] if listed else object_in(held, "body"), "error")
