"""Keeps the access tokens of all identities of one platform, and renews each in the background
while it is still valid, so that a request waits only for the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import structlog

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.credentials import SecretUnusable

log = structlog.get_logger()
RENEWAL_S, LAST_USE_S = 600.0, 60.0  # seconds before its end: renewed from, and not used after
RETRY_S = 5.0  # between two exchanges, if the first failed or gave a token that ends soon
REFUSED_S = 60.0  # an older token that is refused is dropped; a younger one's account is at fault
WAIT_S = 10.0  # seconds that a request waits for its first token: a name lookup has no limit
MOST_KEYS = 64


class TokenRefused(Exception):
    """No access token can be had. Its message continues "the credential of NAME ..."."""


class Grant(NamedTuple):
    """A token, and the seconds for which it is valid from the moment of its request."""

    text: str
    lifetime_s: float

    def __repr__(self) -> str:
        """Return no part of the token."""
        return f"Grant(lifetime_s={self.lifetime_s})"


class _KnownToken(NamedTuple):
    """A token with the seconds of the monotonic clock at which it was requested and ends."""

    text: str
    asked_s: float
    ends_s: float


class AccessTokens:
    """Holds access tokens, and renews them.

    `platform` is the issuer's name in the log.
    """

    def __init__(self, platform: str, *, clock_s: Callable[[], float] = monotonic) -> None:
        """Start without a token."""
        self._platform, self._clock_s = platform, clock_s
        self._tokens: dict[bytes, _KnownToken] = {}
        self._exchanges: dict[bytes, asyncio.Task[_KnownToken]] = {}
        self._failed: dict[bytes, str] = {}
        self._paused: dict[bytes, float] = {}

    async def token(self, key: bytes, exchange: Callable[[], Grant]) -> str:
        """Return a valid token of the identity `key`; waits only if there is none yet.

        `exchange` fetches a new one: it blocks, and raises `TokenRefused` or `SecretUnusable`.
        Raises the same.
        """
        known, now_s = self._tokens.get(key), self._clock_s()
        if known is not None and now_s < known.ends_s - RENEWAL_S:
            return known.text
        valid = None if known is None or now_s >= known.ends_s - LAST_USE_S else known.text
        if now_s < self._paused.get(key, now_s):
            if valid is not None:
                return valid
            if key in self._failed:
                raise TokenRefused(self._failed[key])
        running = self._exchanges.get(key) or self._start(key, exchange)
        if valid is not None:
            return valid
        try:
            async with asyncio.timeout(WAIT_S):
                # Shielded: one caller that leaves must not end the exchange that others wait for.
                return (await asyncio.shield(running)).text
        except TimeoutError:
            raise TokenRefused(f"got no access token in {WAIT_S:g} s") from None

    def note_refused(self, key: bytes, *, deployment: str) -> None:
        """Drop the token of the identity `key` that an upstream refused at a deployment.

        An account that was off for a while, or a machine that slept, ends a token early.
        """
        known = self._tokens.get(key)
        if known is not None and self._clock_s() >= known.asked_s + REFUSED_S:
            del self._tokens[key]
            log.warning("access_token_dropped", platform=self._platform, deployment=deployment)

    def _start(self, key: bytes, exchange: Callable[[], Grant]) -> asyncio.Task[_KnownToken]:
        """Start the exchange for an identity's token, in a thread, and keep it until its end."""

        async def exchanged() -> _KnownToken:
            asked_s = self._clock_s()
            grant = await asyncio.to_thread(exchange)
            return _KnownToken(grant.text, asked_s, asked_s + grant.lifetime_s)

        task = asyncio.get_running_loop().create_task(exchanged())
        self._exchanges[key] = task
        task.add_done_callback(lambda ended: self._note_end(key, ended))
        return task

    def _note_end(self, key: bytes, task: asyncio.Task[_KnownToken]) -> None:
        """Keep the token of an ended exchange, or the reason of its failure."""
        del self._exchanges[key]
        if task.cancelled():
            return
        if len(self._paused) >= MOST_KEYS:  # keys were rotated
            for kept in (self._paused, self._tokens, self._failed):
                kept.clear()
        self._paused[key] = self._clock_s() + RETRY_S
        problem = task.exception()
        if problem is None:
            self._tokens[key] = task.result()
            self._failed.pop(key, None)
            return
        is_known = isinstance(problem, TokenRefused | SecretUnusable)
        self._failed[key] = str(problem) if is_known else "got no access token"
        log.warning("access_token_refused", platform=self._platform, reason=self._failed[key])


def unusable(deployment: Deployment, problem: Exception) -> UpstreamAuth:
    """Return the error for a deployment whose identity gives no token. It has the reference of the
    credential, never its value.
    """
    return UpstreamAuth(
        f"The credential {deployment.api_key or 'ambient'} of deployment {deployment.name} "
        f"{problem}. Ask an admin. Nothing was sent."
    )
