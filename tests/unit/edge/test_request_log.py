"""The canonical lines of requests: whole, soon, and none lost at the end."""

from __future__ import annotations

import asyncio
import json
from uuid import UUID

from msgspec.structs import replace

from gateway.telemetry.logs import MOST_BYTES, RequestLine, RequestLog, line_of
from tests.storage.factories import NOON, event


def a_line(endpoint: str = "/v1/chat/completions") -> RequestLine:
    return RequestLine(endpoint=endpoint, status=401, request_id=UUID(int=7), timestamp=NOON)


async def test_lines_of_one_moment_are_written_together_and_whole() -> None:
    """A write for each line would cost more than the line; a larger one could be torn apart by
    another worker's.
    """
    written: list[bytes] = []
    done = asyncio.Event()

    def write(piece: bytes) -> None:
        written.append(piece)
        if sum(piece.count(b"\n") for piece in written) == 60:
            done.set()

    log = RequestLog("info", write)
    for number in range(60):
        log.say(a_line(f"/{number}"))
    assert written == []
    async with asyncio.timeout(10):
        await done.wait()
    assert 1 < len(written) < 10
    assert all(piece.endswith(b"\n") and len(piece) <= MOST_BYTES for piece in written)
    assert [json.loads(line)["endpoint"] for line in b"".join(written).splitlines()] == [
        f"/{n}" for n in range(60)
    ]


async def test_closing_writes_earlier_and_later_log_lines() -> None:
    """The requests that the drain cuts off are the last to say how they ended."""
    written: list[bytes] = []
    log = RequestLog("info", written.append)
    log.say(a_line())
    log.close()
    log.say(a_line("x" * MOST_BYTES))
    assert [len(piece) > MOST_BYTES for piece in written] == [False, True]


def test_a_level_above_info_says_nothing() -> None:
    """No line, and no timer for it."""
    written: list[bytes] = []
    log = RequestLog("warning", written.append)
    log.say(a_line())
    log.close()
    assert written == []


def test_a_line_has_null_for_unreported_values() -> None:
    """Null marks a value that the upstream did not report; values that a refused request cannot
    have are absent.
    """
    written: list[bytes] = []
    log = RequestLog("info", written.append)
    log.close()
    log.say(a_line())
    log.say(line_of(event(1, ttft_s=None), "/v1/chat/completions", 200))
    refused, answered = (json.loads(piece) for piece in written)
    assert refused == {
        "endpoint": "/v1/chat/completions",
        "status": 401,
        "request_id": str(UUID(int=7)),
        "event": "request",
        "level": "info",
        "timestamp": "2026-11-20T12:00:00Z",
    }
    assert (answered["team"], answered["cost_usd"], answered["ttft_s"]) == (
        "payments",
        "0.0006",
        None,
    )
    assert answered["request_id"] == str(event(1).request_id)


def test_half_a_surrogate_pair_is_written_too() -> None:
    """A model name may hold one; no line is lost for it."""
    written: list[bytes] = []
    log = RequestLog("info", written.append)
    log.close()
    log.say(replace(a_line(), route="\ud83d"))
    assert json.loads(written[0])["route"] == "\ud83d"
    assert json.loads(written[0])["request_id"] == str(UUID(int=7))
