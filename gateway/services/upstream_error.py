"""Reads an upstream's error answer, and makes the error of it that the caller may see."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

from gateway.domain.policy.policy import Deployment
from gateway.domain.providers.own_members import ASKED_AS, DEVELOPER, ROLE_SWITCH, SWITCHES
from gateway.domain.providers.table import ProviderFacts
from gateway.errors import InvalidRequest, RequestError
from gateway.services.codings import CODING, opened_to_end
from gateway.services.ports import Upstream
from gateway.wire.dialect import UpstreamRequest
from gateway.wire.sent_credentials import with_clean_message

MAX_ERROR_BYTES = 2**20
_WORD = re.compile(r"[A-Za-z_]{1,64}")
# A refusal before any work, whatever its body is: the credential, the account, the address, the
# size, the form or the rate of the request (RFC 9110 §15.5, RFC 6585, RFC 7725; 529: Anthropic's
# overload). A 3xx is one as well. Any other error status may come after the work has begun: a 500,
# a proxy's 502 or 503, a 400 of a filter that reads the answer.
_BEFORE_WORK = frozenset(
    {401, 402, 403, 404, 405, 406, 407, 410, 411, 412, 413, 414, 415, 417, 421, 422, 425, 426}
    | {428, 429, 431, 451, 501, 505, 529}
)


class ErrorText(NamedTuple):
    """The arrived body of an error answer; `is_whole` if it came, and could be opened, to its
    end.
    """

    body: bytes
    is_whole: bool


class ErrorReader(Protocol):
    """A provider as far as it reads error answers."""

    def error(
        self, deployment: Deployment, status: int, headers: Mapping[str, str], *, body: bytes
    ) -> RequestError:
        """Return the caller's error for an upstream's error answer."""


def is_before_work(status: int, provider: ProviderFacts) -> bool:
    """Return True for an error status with which an upstream refuses a request before it works for
    it.
    """
    return (
        status < 400
        or status in _BEFORE_WORK
        or status in provider.account_statuses
        or status in provider.context_length_statuses
        or status in provider.overloaded_statuses
    )


async def error_body(upstream: Upstream) -> ErrorText:
    """Return the body of an error answer, as far as it arrives, at most `MAX_ERROR_BYTES`."""
    _, headers = await upstream.head()
    body, is_whole = b"", True
    try:
        body = await upstream.read(MAX_ERROR_BYTES)
    except RequestError:
        is_whole = False
        with suppress(RequestError):  # its first part may have arrived
            body = (await upstream.chunk())[:MAX_ERROR_BYTES]
    text, is_opened = opened_to_end(body, headers.get(CODING), most_bytes=MAX_ERROR_BYTES)
    return ErrorText(text, is_whole and is_opened)


def caller_error(
    reader: ErrorReader,
    deployment: Deployment,
    call: UpstreamRequest,
    head: tuple[int, Mapping[str, str]],
    *,
    body: bytes,
    asked: bytes | None = None,
) -> RequestError:
    """Return the caller's error for the error answer to `call`, without the call's credentials.

    `head` is the answer's status and headers, and `asked` the body of the caller's request.
    """
    status, headers = head
    error = reader.error(deployment, status, headers, body=body)
    if asked is not None and isinstance(error, InvalidRequest):
        _name_own_member(error, call.body, asked)
    return with_clean_message(error, call.headers)


def _name_own_member(error: InvalidRequest, sent: bytes, asked: bytes) -> None:
    """Add to a refusal of a member that the gateway added whose it is, and the admin's remedy: the
    caller cannot correct it.
    """
    named = _WORD.findall(error.param or "")
    # A word such as `store` in a message may be an ordinary one.
    named += [word for word in _WORD.findall(error.message) if "_" in word]
    for name in named:
        words = (name, ASKED_AS.get(name, name))
        is_callers = any(asked.find(_quoted(word)) >= 0 for word in words)
        if name in SWITCHES and sent.find(_quoted(name)) >= 0 and not is_callers:
            error.message += (
                f" The gateway added '{name}', not the caller. An admin can change that at this "
                f"deployment: {SWITCHES[name]}."
            )
            error.param = None
            return
    if error.message.find(DEVELOPER) >= 0 and sent.find(_quoted(DEVELOPER)) >= 0:
        error.message += f" An admin can change that at this deployment: {ROLE_SWITCH}."


def _quoted(name: str) -> bytes:
    """Return a name as it stands in JSON."""
    return b'"%b"' % name.encode()
