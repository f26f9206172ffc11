"""HTTP statuses of the error tree, and the one writer of error bodies."""

from __future__ import annotations

from gateway import errors
from gateway.wire.openai_error import error_body

STATUSES: dict[type[errors.RequestError], int] = {
    errors.InvalidApiKey: 401,
    errors.UnpricedModel: 402,
    errors.RouteNotAllowed: 403,
    errors.ResidencyDenied: 403,
    errors.ModelNotFound: 404,
    errors.NotSupported: 404,
    errors.InvalidRequest: 400,
    errors.ContextLengthExceeded: 400,
    errors.RequestTooLarge: 413,
    errors.RateLimited: 429,
    errors.Overloaded: 503,
    errors.JournalFull: 503,
    errors.Unavailable: 503,
    errors.UpstreamUnreachable: 502,
    errors.UpstreamError: 502,
    errors.UpstreamAuth: 502,
    errors.UpstreamTimeout: 504,
}
# Official SDKs retry these by themselves; a second try of anything else only costs time.
RETRYING_HELPS = frozenset({429, 502, 503, 504})

Headers = list[tuple[bytes, bytes]]


def error_answer(error: errors.RequestError) -> tuple[int, Headers, bytes]:
    """Return status, headers and body of an error answer."""
    status = STATUSES[type(error)]
    headers: Headers = [(b"content-type", b"application/json")]
    if status not in RETRYING_HELPS:
        headers.append((b"x-should-retry", b"false"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(round(error.retry_after_s)).encode()))
        headers.append((b"retry-after-ms", str(round(error.retry_after_s * 1000)).encode()))
    return status, headers, error_body(error.code, error.message, param=error.param)
