"""Signs requests to AWS (Signature Version 4), with a deployment's key or with the identity that
AWS gives to the gateway's own process.

botocore makes the signature and finds the identity. It is imported at the first use: start-up does
not pay for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Thread
from time import monotonic
from typing import Any

import structlog

from gateway.domain.policy.policy import Deployment
from gateway.errors import UpstreamAuth
from gateway.providers.credentials import SigningKey, signing_key

log = structlog.get_logger()
SERVICE = "bedrock"
WAIT_S = 10.0  # seconds that a request waits for the platform's identity
CALL_S = 5.0  # of one call to AWS's token service; botocore's own limits add up to ten minutes
FRESH_S = 60.0  # seconds; an older key is looked up again in the background
LAST_USE_S = 60.0  # seconds before its end: a key is not used after
RETRY_S = 5.0  # between two failed searches
_NO_SOURCE = (
    "botocore finds none: no variable, no profile, no web identity, and no role of the container "
    "or the machine"
)


class IdentityMissing(Exception):
    """The platform gives no identity. Its message is the reason."""


class AwsKeys:
    """The keys that sign requests to AWS. The platform's identity is found and renewed in a thread
    of its own; a request waits only for the first one.
    """

    def __init__(self, *, clock_s: Callable[[], float] = monotonic) -> None:
        """Start without the platform's identity."""
        self._clock_s = clock_s
        self._identity: Any = None  # botocore's; a temporary one renews itself when it is asked
        self._key: SigningKey | None = None
        self._found_s = float("-inf")
        self._failed: tuple[float, str] | None = None
        self._search: asyncio.Future[SigningKey] | None = None

    async def key_of(self, deployment: Deployment) -> SigningKey | None:
        """Return the key of a deployment; None if it declares none.

        Raises `UpstreamAuth` if it cannot be read or the platform gives none.
        """
        if not deployment.is_ambient:
            return signing_key(deployment)
        try:
            return await self._platform_key()
        except IdentityMissing as problem:
            raise UpstreamAuth(
                f"AWS gives the gateway no identity for {deployment.name} ({problem}). Ask an "
                "admin to attach a role where it runs, or to name a key. Nothing was sent."
            ) from None

    async def _platform_key(self) -> SigningKey:
        """Return the identity's current key. Raises `IdentityMissing`."""
        now_s = self._clock_s()
        key = self._key if self._is_usable() else None
        if key is not None and now_s < self._found_s + FRESH_S:
            return key
        if self._failed is not None and now_s < self._failed[0] + RETRY_S:
            if key is not None:
                return key
            raise IdentityMissing(self._failed[1])
        search = self._search or self._start()
        if key is not None:
            return key
        try:
            async with asyncio.timeout(WAIT_S):
                # Shielded: one caller that leaves must not end the search that others wait for.
                return await asyncio.shield(search)
        except TimeoutError:
            reason = f"its source did not answer in {WAIT_S:g} s"
            self._failed = (self._clock_s(), reason)
            raise IdentityMissing(reason) from None

    def _is_usable(self) -> bool:
        """Return True if the last key is not about to end."""
        lasts = getattr(self._identity, "refresh_needed", None)
        return lasts is None or not lasts(LAST_USE_S)

    def _start(self) -> asyncio.Future[SigningKey]:
        """Start a search for the identity, and keep it until its end.

        Its thread is a daemon: a source that hangs keeps no other work and no stop waiting.
        """
        found: Future[SigningKey] = Future()
        Thread(target=self._find, args=(found,), daemon=True, name="aws-identity").start()
        search = self._search = asyncio.wrap_future(found)
        search.add_done_callback(self._note_end)
        return search

    def _note_end(self, search: asyncio.Future[SigningKey]) -> None:
        """Keep the key of an ended search, or the time and reason of its failure."""
        self._search = None
        if search.cancelled():
            return
        problem = search.exception()
        if problem is None:
            self._key, self._found_s, self._failed = search.result(), self._clock_s(), None
            return
        self._failed = (self._clock_s(), str(problem))
        log.warning("aws_identity_not_found", reason=str(problem))

    def _find(self, found: Future[SigningKey]) -> None:
        """Put the identity's current key into `found`, or the reason why there is none."""
        try:
            found.set_result(self.fetch())
        except IdentityMissing as problem:
            found.set_exception(problem)

    def fetch(self) -> SigningKey:
        """Return the identity's current key. Blocks. Raises `IdentityMissing` with the reason."""
        from botocore.exceptions import BotoCoreError, ClientError

        # Its sources read files (OSError), decode foreign answers (ValueError, LookupError,
        # TypeError), and renew to something that is already over (RuntimeError).
        other = (OSError, ValueError, LookupError, TypeError, RuntimeError)
        try:
            return self._current_key()
        except (BotoCoreError, ClientError, *other) as broken:
            raise IdentityMissing(_reason(broken)) from None

    def _current_key(self) -> SigningKey:
        """Return the identity's key, renewed if it ends soon. Blocks. Raises `IdentityMissing` and
        botocore's errors.
        """
        identity = self._identity
        if not hasattr(identity, "refresh_needed"):  # a fixed key, whose file may have changed
            identity = _new_session().get_credentials()
        if identity is None:
            raise IdentityMissing(_NO_SOURCE)
        frozen = identity.get_frozen_credentials()
        self._identity = identity
        return SigningKey(frozen.access_key, frozen.secret_key, frozen.token)


def _new_session() -> Any:
    """Return a session of botocore whose calls end in time."""
    from botocore.config import Config
    from botocore.session import Session

    session = Session()
    session.set_default_client_config(
        Config(
            connect_timeout=CALL_S / 2, read_timeout=CALL_S / 2, retries={"total_max_attempts": 1}
        )
    )
    return session


def _reason(broken: Exception) -> str:
    """Return the reason in an error of botocore's sources, without the text of a foreign answer."""
    answer = getattr(broken, "response", None)
    if isinstance(answer, dict):
        return f"AWS refused it: {str(answer.get('Error', {}).get('Code'))[:64]}"
    if isinstance(broken, OSError) and broken.filename and broken.strerror:
        return f"{broken.filename} cannot be read: {broken.strerror}"
    return type(broken).__name__


def signed(
    key: SigningKey, url: str, headers: Mapping[str, str], body: bytes, *, region: str
) -> dict[str, str]:
    """Return the headers of a POST with its signature; the signature covers host, body, content
    type and time.
    """
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(
        method="POST", url=url, data=body, headers={"content-type": headers["content-type"]}
    )
    SigV4Auth(Credentials(*key), SERVICE, region).add_auth(request)
    made = {name.lower(): str(value) for name, value in request.headers.items()}
    return {**headers, **made}
