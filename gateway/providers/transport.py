"""The way out: one aiohttp session, and a permit for every attempt. The only importer of the HTTP client.

aiohttp and not httpx: on this path httpx costs 15 to 20 times the CPU and leaks pool slots under
cancellation (docs/decisions/0002). Redirects are not followed, proxies of the environment are ignored,
cookies are not kept, and TLS verification has no switch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

import aiohttp
from yarl import URL

from gateway.domain.policy import Deployment, Timeouts
from gateway.domain.residency import Permit, verify
from gateway.domain.routing import origin_of
from gateway.errors import UpstreamError, UpstreamTimeout, UpstreamUnreachable
from gateway.wire.upstream_call import UpstreamCall

READ_BUFFER_BYTES = 256 * 1024


class AiohttpUpstream:
    """An upstream's answer whose headers have come."""

    def __init__(self, response: aiohttp.ClientResponse, deployment: Deployment) -> None:
        self._response = response
        self._name, self._idle_s = deployment.name, deployment.timeouts.idle_s
        self.status = response.status
        self.headers: Mapping[str, str] = {key.lower(): value for key, value in response.headers.items()}

    async def read(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `UpstreamError` or `UpstreamTimeout`."""
        parts, size = [], 0
        async for part in self.chunks():
            parts.append(part)
            size += len(part)
            if size > limit_bytes:
                raise UpstreamError(f"The answer of {self._name} is larger than {limit_bytes} bytes.")
        return b"".join(parts)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes."""
        try:
            while True:
                async with asyncio.timeout(self._idle_s):
                    part = await self._response.content.readany()
                if not part:
                    return
                yield part
        except TimeoutError:
            raise UpstreamTimeout(f"{self._name} stopped answering in the middle of its answer.") from None
        except aiohttp.ClientError as broken:
            raise UpstreamError(f"The connection to {self._name} broke: {type(broken).__name__}.") from None

    def close(self) -> None:
        """Drop the connection at once unless the body was read to its end; then it goes back to the pool."""
        self._response.close()


class AiohttpTransport:
    """Sends what a permit allows, where the permit allows it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, permit: Permit, call: UpstreamCall) -> AiohttpUpstream:
        """Send one attempt. Raises `ResidencyDenied`, `UpstreamUnreachable` or `UpstreamTimeout`."""
        name, timeouts = permit.deployment.name, permit.deployment.timeouts
        verify(permit, origin=origin_of(call.url))
        try:
            # The headers' own deadline; what comes after them is bounded per read.
            async with asyncio.timeout(timeouts.connect_s + timeouts.first_byte_s):
                response = await self._session.post(
                    URL(call.url, encoded=True), data=call.body, headers=call.headers,
                    allow_redirects=False, timeout=_timeout(timeouts),
                )  # fmt: skip
        except aiohttp.ConnectionTimeoutError:
            raise UpstreamUnreachable(f"{name} could not be connected to in {timeouts.connect_s:g} s.") from None
        except TimeoutError:
            raise UpstreamTimeout(f"{name} did not begin to answer in {timeouts.first_byte_s:g} s.") from None
        except (aiohttp.ClientConnectorError, aiohttp.ClientSSLError) as broken:
            raise UpstreamUnreachable(f"{name} could not be reached: {type(broken).__name__}.") from None
        except aiohttp.ClientError as broken:
            raise UpstreamError(f"{name} closed the connection without an answer: {type(broken).__name__}.") from None
        return AiohttpUpstream(response, permit.deployment)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def open_transport(max_connections: int) -> AiohttpTransport:
    """Return a transport; call it inside the running loop."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, ttl_dns_cache=30, keepalive_timeout=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=READ_BUFFER_BYTES,
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
    )
    return AiohttpTransport(session)


def _timeout(timeouts: Timeouts) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=timeouts.total_s, sock_connect=timeouts.connect_s, connect=timeouts.connect_s)
