"""Maps each request error to its HTTP status, retry headers and body in the caller's dialect; every
error body is made here.
"""

from __future__ import annotations

from math import ceil

from gateway import errors
from gateway.api.routes import DEFAULT_DIALECT
from gateway.wire.dialect import ErrorShape

STATUSES: dict[type[errors.RequestError], int] = {
    errors.InvalidApiKey: 401,
    errors.KeyNotSeen: 401,
    errors.UnpricedModel: 402,
    errors.BudgetExhausted: 402,
    errors.RouteNotAllowed: 403,
    errors.ResidencyDenied: 403,
    errors.ModelNotFound: 404,
    errors.NotSupported: 404,
    errors.InvalidRequest: 400,
    errors.Untranslatable: 400,
    errors.Unbounded: 400,
    errors.IdempotencyMismatch: 400,
    errors.IdempotencyConflict: 409,
    errors.ContextLengthExceeded: 400,
    errors.RequestTooLarge: 413,
    errors.HeadersTooLarge: 431,
    errors.UriTooLong: 414,
    errors.UnsupportedMediaType: 415,
    errors.RequestTimeout: 408,
    errors.RateLimited: 429,
    errors.QuotaExhausted: 429,
    errors.ConcurrencyLimited: 429,
    errors.Overloaded: 503,
    errors.JournalFull: 503,
    errors.Unavailable: 503,
    errors.UpstreamUnreachable: 502,
    errors.UpstreamNotCalled: 502,
    errors.UpstreamError: 502,
    errors.ModelMissing: 502,
    errors.UpstreamAuth: 502,
    errors.UpstreamTimeout: 504,
}
# Official SDKs retry these by themselves; retrying anything else only costs time.
RETRYING_HELPS = frozenset({408, 429, 502, 503, 504})
MOST_RETRY_AFTER_S = 120  # with a longer wait, official SDKs give up at once

Headers = list[tuple[bytes, bytes]]


def error_answer(
    error: errors.RequestError,
    dialect: ErrorShape = DEFAULT_DIALECT,
    *,
    request_id: str | None = None,
) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error's answer, in the caller's dialect, which may
    repeat the request's id.
    """
    status = STATUSES[type(error)]
    headers: Headers = [(b"content-type", b"application/json")]
    # No time helps a request that exceeds a limit by itself, or one whose twin has ended.
    is_worth_it = (
        error.retry_after_s is not None if status in (409, 429) else status in RETRYING_HELPS
    )
    if not is_worth_it or error.is_retry_useless:
        headers.append((b"x-should-retry", b"false"))
    if error.retry_after_s is not None:
        wait_s = min(error.retry_after_s, MOST_RETRY_AFTER_S)
        headers.append((b"retry-after", b"%d" % max(ceil(wait_s), 1)))
        headers.append((b"retry-after-ms", b"%d" % ceil(wait_s * 1000)))
    body = dialect.error_body(error.code, error.message, param=error.param, request_id=request_id)
    return status, headers, body
