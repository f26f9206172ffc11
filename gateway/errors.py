"""Declares every error that Tollgate raises on purpose; its message gives the next step to the
person who can act on it.

    TollgateError
    ├── RequestError                 answered to the caller, in the caller's dialect
    │   ├── InvalidApiKey            invalid_api_key
    │   │   └── KeyNotSeen           invalid_api_key: unless it is newer than the snapshot
    │   ├── UnpricedModel            unpriced_model
    │   ├── BudgetExhausted          budget_exhausted
    │   ├── RouteNotAllowed          route_not_allowed
    │   ├── ResidencyDenied          residency_denied
    │   ├── ModelNotFound            model_not_found
    │   ├── InvalidRequest           invalid_request
    │   │   ├── Untranslatable       invalid_request: a dialect has no place for a field
    │   │   └── Unbounded            invalid_request: a hard budget needs a bound
    │   ├── IdempotencyMismatch      idempotency_mismatch
    │   ├── IdempotencyConflict      idempotency_conflict
    │   ├── ContextLengthExceeded    context_length_exceeded
    │   ├── NotSupported             not_supported
    │   ├── RequestTooLarge          request_too_large
    │   ├── HeadersTooLarge          headers_too_large
    │   ├── UriTooLong               uri_too_long
    │   ├── UnsupportedMediaType     unsupported_media_type
    │   ├── RequestTimeout           request_timeout: the caller was too slow
    │   ├── RateLimited              rate_limited
    │   │   └── QuotaExhausted       rate_limited: the gateway's own account upstream is used up
    │   ├── ConcurrencyLimited       concurrency_limited
    │   ├── Overloaded               overloaded
    │   │   └── JournalFull          overloaded: this machine's journal is full
    │   ├── Unavailable              unavailable
    │   ├── UpstreamUnreachable      upstream_unreachable
    │   │   └── UpstreamNotCalled    upstream_unreachable: the gateway had no free connection
    │   ├── UpstreamError            upstream_error
    │   │   └── ModelMissing         upstream_error: a deployment does not serve its declared model
    │   ├── UpstreamAuth             upstream_auth
    │   └── UpstreamTimeout          upstream_timeout
    └── OperatorError                printed by the command that failed
        ├── PolicyRejected           a document with findings (exit 1)
        │   └── CasesRejected        a file of cases with findings
        ├── BillRejected             a bill with findings (exit 1)
        ├── NothingFound             a name that does not exist (exit 1)
        ├── BadUsage                 a wrong option or setting (exit 2)
        └── DatabaseUnavailable      could not find out (exit 3)
            ├── DatabaseTooSlow      could not find out in time (exit 3)
            └── UnsuitableDatabase   a pooler that keeps no sessions (exit 2)
                └── ReadOnlyDatabase a standby or a replica (exit 2)

HTTP statuses are decided in `api/errors.py`, exit codes in `cli/app.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar
from uuid import UUID

MOST_BILL_FINDINGS = 20  # listed; a file in another format has one for each line


class TollgateError(Exception):
    """Root of the tree. `message` is for the person who can act on it."""

    def __init__(self, message: str) -> None:
        """Keep the message for the person who can act on it."""
        super().__init__(message)
        self.message = message


class RequestError(TollgateError):
    """A request that gets an error answer. `code` is stable; `param` names the field at fault.

    `asked_wait_s` is the pause that an upstream requested. `is_same_again`: the same deployment
    would return the error again. `is_retry_useless`: a retry by the caller would only make the
    problem worse. `is_final`: an upstream did the work and bills it, so no other attempt is made.
    `is_refused_content`: an upstream refused the content or its length, which some bill.
    `rules` are the names of the budget, limit or rules that refuse, for the count of refusals.
    """

    code: ClassVar[str]
    asked_wait_s: float | None = None
    is_same_again: bool = False
    is_retry_useless: bool = False
    is_final: bool = False
    is_refused_content: bool = False
    rules: tuple[str, ...] = ()

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float | None = None
    ) -> None:
        """Keep the message, the wrong field and the seconds after which a retry may succeed."""
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s
        self.attempts = 0  # upstream attempts before the request failed


class InvalidApiKey(RequestError):
    """`of_team` and `of_key` are set if the key was right: then a team's refusal is counted."""

    code = "invalid_api_key"
    of_team = ""
    of_key = ""


class KeyNotSeen(InvalidApiKey):
    pass


class UnpricedModel(RequestError):
    code = "unpriced_model"


class BudgetExhausted(RequestError):
    code = "budget_exhausted"


class RouteNotAllowed(RequestError):
    code = "route_not_allowed"


class ResidencyDenied(RequestError):
    code = "residency_denied"


class ModelNotFound(RequestError):
    code = "model_not_found"


class InvalidRequest(RequestError):
    code = "invalid_request"


class Untranslatable(InvalidRequest):
    """A field has no place in the dialect of one deployment; another deployment may take it."""


class Unbounded(InvalidRequest):
    """A hard budget cannot bound the cost at one deployment; another deployment may bound it."""


class IdempotencyMismatch(RequestError):
    code = "idempotency_mismatch"


class IdempotencyConflict(RequestError):
    """The key's request is in flight (then `retry_after_s` is set) or has finished.

    `request_id` names it.
    """

    code = "idempotency_conflict"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        request_id: UUID | None = None,
    ) -> None:
        """Keep the id of the request that used the idempotency key first, if it is known."""
        super().__init__(message, param=param, retry_after_s=retry_after_s)
        self.request_id = request_id


class ContextLengthExceeded(RequestError):
    code = "context_length_exceeded"


class NotSupported(RequestError):
    code = "not_supported"


class RequestTooLarge(RequestError):
    code = "request_too_large"


class HeadersTooLarge(RequestError):
    code = "headers_too_large"


class UriTooLong(RequestError):
    code = "uri_too_long"


class UnsupportedMediaType(RequestError):
    code = "unsupported_media_type"


class RequestTimeout(RequestError):
    """The caller did not send its request in time."""

    code = "request_timeout"


class RateLimited(RequestError):
    code = "rate_limited"


class QuotaExhausted(RateLimited):
    """The gateway's account at a provider is used up: only an admin or another deployment helps,
    not a pause.
    """

    is_same_again = True


class ConcurrencyLimited(RequestError):
    code = "concurrency_limited"


class Overloaded(RequestError):
    code = "overloaded"


class JournalFull(Overloaded):
    """The journal has no room for another attempt."""


class Unavailable(RequestError):
    code = "unavailable"


class UpstreamUnreachable(RequestError):
    code = "upstream_unreachable"


class UpstreamNotCalled(UpstreamUnreachable):
    """All allowed connections are in use. This is no evidence against the upstream."""


class UpstreamError(RequestError):
    code = "upstream_error"


class ModelMissing(UpstreamError):
    """A deployment does not serve the model that the policy declares for it: only an admin or
    another deployment helps.
    """

    is_same_again = True


class UpstreamAuth(RequestError):
    """The upstream refused our credential.

    `may_be_this_request`: an HTTP 403, which a provider also sends for one prompt or one
    permission.
    """

    code = "upstream_auth"
    is_same_again = True
    may_be_this_request = False


class UpstreamTimeout(RequestError):
    code = "upstream_timeout"


class OperatorError(TollgateError):
    """An error of a command, printed to standard error without a traceback."""

    @property
    def for_callers(self) -> str:
        """Return the message for a person without a key, who reads it in `/readyz` or in a 503."""
        return self.message


def place_text(file: str, line: int) -> str:
    """Return a place in a document for a message: its line, and its file if there are several."""
    return f"{file}, line {line}" if file else f"line {line}"


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a note about a document: its place, the problem, and the correction.

    `file` is set if the document is in several files; `line` and `field` are then of that file.
    """

    line: int
    field: str
    message: str
    is_error: bool = True
    file: str = ""

    def __str__(self) -> str:
        """Return the finding as one line for people: place, kind and message."""
        kind = "error" if self.is_error else "note"
        place = place_text(self.file, self.line)
        return f"{place}: {kind}: {self.field}: {self.message}"


class PolicyRejected(OperatorError):
    """A policy document with at least one error. Raised before anything changed."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        """Make the message from the number of errors; the notes among the findings are kept, not
        counted.
        """
        errors = sum(f.is_error for f in findings)
        super().__init__(f"The policy was rejected: {errors} error(s). Nothing changed.")
        self.findings = findings


class CasesRejected(PolicyRejected):
    """A file of cases with at least one error. Raised before any case ran."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        """Make the message from the number of errors in the file of cases; keep all findings."""
        super().__init__(findings)
        errors = sum(finding.is_error for finding in findings)
        self.message = f"The cases cannot be read: {errors} error(s). Nothing was tested."


class BillRejected(OperatorError):
    """A bill with at least one finding, each with its line. Nothing was imported."""

    def __init__(self, name: str, findings: Sequence[str]) -> None:
        """Make the message from the file's name and the first of the findings."""
        shown = [*findings[:MOST_BILL_FINDINGS]]
        if len(findings) > len(shown):
            shown.append(f"and {len(findings) - len(shown):,} more")
        super().__init__(
            f"{name} is refused; nothing was imported.\n" + "\n".join(f"  {one}" for one in shown)
        )


class NothingFound(OperatorError):
    """A key, version, request or report that does not exist."""


class BadUsage(OperatorError):
    """A wrong option, setting or environment. The message names it."""


class DatabaseUnavailable(OperatorError):
    """Postgres could not be asked. The answer may be different when it is back.

    `has_details` is set if the message has an address, a login or Postgres's own words.
    """

    has_details = False

    @property
    def for_callers(self) -> str:
        """Return the kind of the problem alone, if the message has more."""
        if not self.has_details:
            return self.message
        return (
            "Postgres cannot be asked: the gateway's log has the reason, and so does tollgate "
            "doctor on its machine"
        )


class DatabaseTooSlow(DatabaseUnavailable):
    """Postgres did not answer within a statement's time limit."""


class UnsuitableDatabase(DatabaseUnavailable):
    """The address leads to a pooler that keeps no session, or to a server that takes no writes."""


class ReadOnlyDatabase(UnsuitableDatabase):
    """The address leads to a standby or a replica."""
