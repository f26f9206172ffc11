"""Measurements that wrk cannot make: the gaps between a stream's events, and a small request's
wait for a large one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass

STREAMS = 16  # of the probe's own, beside the load's
SMALL_EVERY_S = 0.002
LARGE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A target as the probe addresses it."""

    port: int
    model: str
    key: str

    def request(self, *, is_stream: bool = False, padding: int = 0) -> bytes:
        """One chat request, as bytes."""
        asked: dict[str, object] = {
            "model": self.model,
            "max_tokens": 200,
            "messages": [{"role": "user", "content": "word " * 100}],
        }
        if padding:
            asked["messages"] = [{"role": "user", "content": "word " * (padding // 5)}]
        if is_stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps(asked).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer "
            f"{self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


def event_gaps_ms(endpoint: Endpoint, seconds: float) -> list[float]:
    """Milliseconds between an event's arrival and the next one's, over several streams one after
    another.
    """
    return asyncio.run(_gaps(endpoint, seconds))


def small_beside_large_ms(
    small: Endpoint, seconds: float, *, large: Endpoint | None = None
) -> list[float]:
    """Return the milliseconds of small requests, with or without a neighbour that sends bodies
    of 1 MB.
    """
    return asyncio.run(_small(small, seconds, large))


async def _gaps(endpoint: Endpoint, seconds: float) -> list[float]:
    gaps: list[float] = []
    end_s = time.perf_counter() + seconds

    async def stream() -> None:
        while time.perf_counter() < end_s:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(endpoint.request(is_stream=True))
            last_s = None
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    break
                if line.startswith(b"data:"):
                    now_s = time.perf_counter()
                    if last_s is not None and now_s < end_s:
                        gaps.append(1000 * (now_s - last_s))
                    last_s = now_s
            writer.close()

    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS):
            group.create_task(stream())
            await asyncio.sleep(0.02 * (number % 7) / 7)  # not in step
    return gaps


async def _small(endpoint: Endpoint, seconds: float, large: Endpoint | None) -> list[float]:
    took: list[float] = []
    end_s = time.perf_counter() + seconds
    neighbour = asyncio.create_task(_large(large, end_s)) if large is not None else None
    reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
    request = endpoint.request()
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        writer.write(request)
        await _answer(reader)
        took.append(1000 * (time.perf_counter() - began_s))
        await asyncio.sleep(SMALL_EVERY_S)
    writer.close()
    if neighbour is not None:
        await neighbour
    return took


async def _large(endpoint: Endpoint, end_s: float) -> None:
    """Send from a thread, so that sending does not delay the small requests' own clock."""
    await asyncio.to_thread(_send_large, endpoint, end_s)


def _send_large(endpoint: Endpoint, end_s: float) -> None:
    request = endpoint.request(padding=LARGE_BYTES)
    with socket.create_connection(("127.0.0.1", endpoint.port)) as connection:
        while time.perf_counter() < end_s:
            connection.sendall(request)
            answer = b""
            while b"\r\n\r\n" not in answer:
                answer += connection.recv(65536)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(65536)
            time.sleep(0.01)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise ConnectionError(head.decode("latin-1"))
    if b"chunked" in head:
        return await reader.readuntil(b"0\r\n\r\n")
    length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
    return await reader.readexactly(length)
