"""Declares every error that this client raises for an upstream or a network: `NotSent` if nothing
was sent, `AnswerFailed` after the request was handed over.

Http1Error
├── NotSent               nothing of the request reached the upstream
│   ├── OriginFull        its address has its maximum of connections
│   ├── PoolFull          all connections were in use for the whole wait
│   ├── ConnectTimeout    no connection was made in time
│   └── ConnectFailed     no connection could be made; `reason` names the system's error
└── AnswerFailed          the request was handed to the socket; its message names the peer
    ├── AnswerTimeout     a deadline passed
    ├── AnswerCut         the connection ended before the answer did
    ├── AnswerMalformed   bytes that are no answer of HTTP/1.1, or more of them than allowed
    └── AnswerTooLarge    the body is larger than its reader's limit
"""

from __future__ import annotations


class Http1Error(Exception):
    """The root of the errors of upstream calls."""


class NotSent(Http1Error):
    """The request was not sent, because no connection was available."""


class OriginFull(NotSent):
    """One upstream address has its maximum of connections."""


class PoolFull(NotSent):
    """All connections of the pool were in use for the whole wait."""


class ConnectTimeout(NotSent):
    """The connection to the upstream was not made in time."""


class ConnectFailed(NotSent):
    """The connection could not be made: no address, refused, unreachable, or no valid TLS."""

    def __init__(self, reason: str) -> None:
        """Record the system's error as `reason`."""
        super().__init__(reason)
        self.reason = reason


class AnswerFailed(Http1Error):
    """The exchange ended without a complete answer."""


class AnswerTimeout(AnswerFailed):
    """The upstream was silent or too slow."""


class AnswerCut(AnswerFailed):
    """The connection ended before the answer did."""


class AnswerMalformed(AnswerFailed):
    """The bytes are no answer, or exceed a limit of `answer.py`."""

    def __init__(self, message: str, *, status: int) -> None:
        """Record the status in the answer's status line; 0 without one."""
        super().__init__(message)
        self.status = status


class AnswerTooLarge(AnswerFailed):
    """The body is larger than its reader allows."""
