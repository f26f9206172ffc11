"""Streams of a server under `engine bench` that lie, never end, or end the whole run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine.load.client import EVENTS_PER_TOKEN, SPARE_EVENTS, LoadClient
from engine.load.loops import LoadSettings, closed_loop, run_load
from engine.load.measured import MeasuredRequest
from engine.load.prompts import PromptWriter
from engine.load.workload import Workload

TOKENS = 4
BODY = {"model": "m", "messages": [], "max_tokens": TOKENS, "stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """Return one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(document: Any) -> bytes:
    """Return one event as a chunk."""
    return chunk(b"data: %b\n\n" % json.dumps(document).encode())


def token(finish_reason: str | None = None) -> bytes:
    """Return the event of one token."""
    return event(
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": finish_reason}]}
    )


def usage(document: Any) -> bytes:
    """Return a whole answer of `TOKENS` tokens with this usage."""
    tokens = token() * (TOKENS - 1) + token("length")
    return HEAD + tokens + event({"choices": [], "usage": document}) + END


GOOD = usage({"prompt_tokens": 9, "completion_tokens": TOKENS})
FALSE_USAGE: dict[str, Any] = {
    "text": {"prompt_tokens": 9, "completion_tokens": "4"},
    "a list": [1, 2],
    "negative": {"prompt_tokens": -9, "completion_tokens": 4},
    "true": {"prompt_tokens": 9, "completion_tokens": True},
    "infinite": {"prompt_tokens": 9, "completion_tokens": float("inf")},
    "more than was sent": {"prompt_tokens": 9, "completion_tokens": 10**12},
    "more cached than read": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 10},
    },
    "odd details": {"prompt_tokens": 9, "prompt_tokens_details": "none"},
}


def measured(answers: Sequence[bytes], *, then: bytes = b"") -> list[MeasuredRequest]:
    """Return the measurements of one request for each of these answers, on one stream. The server
    repeats `then` after the last answer for as long as it can.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                writer.write(left.pop(0))
                while not left and then:
                    writer.write(then)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (OSError, EOFError, IndexError):
            pass
        finally:
            writer.close()

    async def run() -> list[MeasuredRequest]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            client = LoadClient(url=f"http://127.0.0.1:{port}", silence_s=20)
            found = await closed_loop(client, [BODY] * len(answers), streams=1)
            client.close()
        return list(found.requests)

    left = list(answers)
    return asyncio.run(run())


def failures(answers: Sequence[bytes], *, then: bytes = b"") -> list[str | None]:
    """Return the failure of each request."""
    return [one.failure for one in measured(answers, then=then)]


def test_a_good_answer_is_measured() -> None:
    """The other tests would pass if every answer failed."""
    (one,) = measured([GOOD])
    assert (one.failure, one.prompt_tokens, one.output_tokens) == (None, 9, TOKENS)


@pytest.mark.parametrize("document", FALSE_USAGE.values(), ids=FALSE_USAGE)
def test_false_usage_fails_its_request_alone(document: Any) -> None:
    """It ended the run with a traceback, or was a throughput of 10^12 tokens per second."""
    first, second = failures([usage(document), GOOD])
    assert first is not None
    assert second is None


def test_false_usage_before_a_cut_fails_too() -> None:
    """A cut after `finish_reason` has cost no token, but its figures must be true."""
    claimed = event({"choices": [], "usage": {"completion_tokens": 10**12}})
    (one,) = failures([HEAD + token("length") + claimed + b"zz\r\n"])
    assert one is not None
    assert "completion tokens" in one


def test_an_answer_without_any_token_has_none() -> None:
    """`finish_reason: length` alone counted as all tokens that were asked for."""
    nothing = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
    (one,) = measured([HEAD + nothing + END])
    assert one.output_tokens == 0


@pytest.mark.parametrize("again", [token(), event({"choices": []}), chunk(b"data: [DONE]\n\n")])
@pytest.mark.parametrize("begin", [HEAD, HEAD + token("length")], ids=["no end", "after its end"])
def test_a_stream_without_end_ends(begin: bytes, again: bytes) -> None:
    """Each event is a sign of life, so the run waited for ever, and kept each token's time."""
    (one,) = measured([begin], then=again * 50)
    assert one.failure is not None
    assert "more than" in one.failure
    assert len(one.token_times_s) <= EVENTS_PER_TOKEN * TOKENS + SPARE_EVENTS


@pytest.mark.parametrize("line", [b"data: ", b"", b"data:\n"], ids=["event", "line", "lines"])
@pytest.mark.parametrize(
    "framed", [chunk, lambda piece: b"7fffffff\r\n" + piece], ids=["chunks", "one chunk of 2 GiB"]
)
def test_an_event_without_end_is_not_kept(line: bytes, framed: Callable[[bytes], bytes]) -> None:
    """All of it was held: 2 GiB for one answer."""
    junk = b"x" * 65_536 if line != b"data:\n" else line * 10_000
    (one,) = failures([HEAD + framed(line + junk)], then=chunk(junk) if framed is chunk else junk)
    assert one is not None
    assert "longer than" in one


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 50_000, b"nul", b"5", b'"error"'])
def test_json_of_another_kind_fails_its_request_alone(data: bytes) -> None:
    """JSON that is nested too deeply ended the run with a traceback."""
    first, second = failures([HEAD + chunk(b"data: %b\n\n" % data) + END, GOOD])
    assert first is not None
    assert second is None


def test_an_answer_to_no_request_is_not_the_next_ones() -> None:
    """It was read as the answer to the next request on that connection, sent before it was asked:
    its time to the first token was a few microseconds.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split()[0]))
                writer.write(GOOD + GOOD)
        except EOFError:
            writer.close()

    async def run() -> list[MeasuredRequest]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            client = LoadClient(url=f"http://127.0.0.1:{port}", silence_s=20)
            found = await closed_loop(client, [BODY] * 3, streams=1)
            client.close()
        return list(found.requests)

    connections: list[asyncio.StreamWriter] = []
    assert [one.failure for one in asyncio.run(run())] == [None] * 3
    assert len(connections) == 3


def test_a_servers_words_do_not_move_the_cursor() -> None:
    """The reason is printed on the operator's terminal."""
    (one,) = failures([HEAD + event({"error": {"message": "\x1b]0;x\x07\x1b[31mred"}}) + END])
    assert one == "error event: ?]0;x??[31mred"


def test_streams_without_a_request_cost_nothing() -> None:
    """`--concurrency 999999999` made as many tasks before the first request."""
    client = LoadClient(url="http://127.0.0.1:9", silence_s=1)
    workload = Workload(prompt_tokens=1, answer_tokens=1)
    settings = LoadSettings(concurrency=10_000, requests=2)
    tasks: list[int] = []
    run_load(
        client,
        settings,
        workload,
        PromptWriter(model="m"),
        on_done=lambda _: tasks.append(len(asyncio.all_tasks())),
    )
    assert len(tasks) == 2
    assert max(tasks) <= 3
