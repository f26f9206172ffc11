"""Answers that are slow to parse, one after the other: CPU, and the longest pause of the event loop
for each.

    python -m bench.costly_answers [--mib 4]

Each answer is read as `services/request/upstream_answer.py` reads it: a large one in a thread, a
stream in pieces with a turn of the loop between them. `python -m bench.hostile_bodies` covers
callers' bodies, this one upstreams' answers.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable

from bench.hostile_bodies import MOST_MS, padded, watched
from bench.stand import machine
from gateway.services.request.upstream_answer import MAX_FED_BYTES
from gateway.wire.dialect import EventTooLarge, written
from gateway.wire.observed import Observed
from gateway.wire.openai.answer.chat import chat_stream, rewrite_chat
from gateway.wire.openai.answer.complete_answer import LARGE_BYTES
from gateway.wire.openai.answer.responses import rewrite_response
from gateway.wire.openai.error import read_error

USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":2}'
OPENING = b'{"model":"m",' + USAGE + b","
MESSAGE = OPENING + b'"choices":[{"message":{"content":"'
EVENT_BYTES = 2**20 - 200
Answer = tuple[str, Callable[[bytes], object], Callable[[int], bytes]]


def cost(usage: object) -> str | None:
    """Any price."""
    return "0.1"


def chat(body: bytes) -> bytes:
    """A plain chat or embeddings answer."""
    return written(rewrite_chat(body, Observed(), model="assistant"), cost)


def response(body: bytes) -> bytes:
    """A plain response."""
    return written(rewrite_response(body, Observed(), model="assistant"), cost)


async def streamed(body: bytes) -> None:
    """A stream that came at once."""
    stream = chat_stream(
        model="assistant",
        wants_usage=True,
        wants_running_usage=False,
        asked_running_usage=False,
        collects_text=True,
    )
    for at in range(0, len(body), MAX_FED_BYTES):
        try:
            for part in stream.feed(body[at : at + MAX_FED_BYTES]):
                written(part, cost)
        except EventTooLarge:
            return
        await asyncio.sleep(0)


def event(opening: bytes, piece: bytes, closing: bytes) -> Callable[[int], bytes]:
    """A stream of one event as large as an event may be."""
    return lambda _: padded(b"data: " + opening, piece, closing + b"\n\n")(EVENT_BYTES)


DELTA = b'{"choices":[{"delta":{"content":'
ANSWERS: tuple[Answer, ...] = (
    ("empty choices", chat, padded(OPENING + b'"choices":[{}', b",{}", b"]}")),
    ("empty choices, no usage", chat, padded(b'{"choices":[{}', b",{}", b"]}")),
    ("half surrogates", chat, padded(MESSAGE, rb"\ud83d", b'"}}]}')),
    ("escapes", chat, padded(MESSAGE, rb"\n", b'"}}]}')),
    ("members", chat, padded(OPENING + b'"z":1', b',"zz":1', b"}")),
    ("members of usage", chat, padded(b'{"choices":[],"usage":{"cost_usd":1', b',"a":1', b"}}")),
    ("models", chat, padded(OPENING + b'"z":[1', b',{"model":"m"}', b"]}")),
    ("items of a response", response, padded(b'{"output":[[]', b",[]", b"]}")),
    (
        "calls of a response",
        response,
        padded(OPENING + b'"output":[{}', b',{"type":"x_call"}', b"]}"),
    ),
    ("an error", read_error, padded(b'{"error":{"message":"x","a":[1', b",[]", b"]}}")),
    ("honest: a text", chat, padded(MESSAGE, b"word ", b'"}}]}')),
    (
        "honest: probabilities",
        chat,
        padded(
            OPENING + b'"choices":[{"message":{},"logprobs":{"content":[1',
            b',{"token":"abc","logprob":-0.12345,"bytes":[97,98,99]}',
            b"]}}]}",
        ),
    ),
    ("stream: blank lines", streamed, padded(b"\n", b"\n\n", b"\n")),
    ("stream: empty events", streamed, padded(b"\n\n", b"data:{}\n\n", b"")),
    ("stream: an event of choices", streamed, event(b'{"choices":[{}', b",{}", b"]}")),
    ("stream: an event of lists", streamed, event(DELTA + b"[1", b",[]", b"]}}]}")),
    (
        "stream: an event of members",
        streamed,
        event(b'{"choices":[{"delta":{"a":1', b',"a":1', b"}}]}"),
    ),
    ("stream: an event of halves", streamed, event(DELTA + b'"', rb"\ud83d", b'"}}]}')),
    ("stream: an event of lines", streamed, event(b"1", b"\ndata: 1", b"")),
    ("stream: an event of ends of lines", streamed, event(b"1", b"\r\n:", b"")),
)


async def measured(read: Callable[[bytes], object], body: bytes) -> tuple[float, float]:
    """The CPU in ms that an answer took, and the longest pause of the loop in ms."""
    pauses_s = [0.0]
    watch = asyncio.create_task(watched(pauses_s))
    await asyncio.sleep(0.01)
    began_s = time.process_time()
    if read is streamed:
        await streamed(body)
    elif len(body) < LARGE_BYTES:
        read(body)
    else:
        await asyncio.to_thread(read, body)
    took_s = time.process_time() - began_s
    await asyncio.sleep(0)  # the watch's turn
    watch.cancel()
    return took_s * 1000, max(pauses_s) * 1000


def main() -> int:
    """Print the table; 1 if the loop paused for too long."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--mib", type=float, default=4, help="size of each answer (default: 4; at most 32 are read)"
    )
    size = round(parser.parse_args().mib * 2**20)
    print(f"{machine.describe()}, commit {machine.commit()}")
    print(f"{'answer':<36}{'MiB':>6}{'ms':>9}{'pause':>8}")
    slow = 0
    for name, read, made in ANSWERS:
        body = made(size)
        took_ms, paused_ms = asyncio.run(measured(read, body))
        slow += paused_ms > MOST_MS
        print(f"{name:<36}{len(body) / 2**20:>6.1f}{took_ms:>9.1f}{paused_ms:>8.1f}", flush=True)
    print(f"{slow} of {len(ANSWERS)} paused the loop for more than {MOST_MS:.0f} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
