"""Bodies that are slow to parse, one after the other: CPU, longest pause of the event loop, and
memory for each.

    python -m bench.hostile_bodies [--mib 10]

Each body is read in a separate process, as the forwarding endpoints read it (a large one in a
thread) and write it out again. Meanwhile a task of the same loop measures the wait for its next
turn. The first bodies are the security audit's (F5), then others of the same kind, then large
honest ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator

from bench.stand import machine
from gateway.api.large_bodies import is_large
from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.openai.request.read import prepare, read_request

MOST_MS = 100.0
TURN_S = 0.001
CHAT, RESPONSES, EMBEDDINGS = Operation.CHAT, Operation.RESPONSES, Operation.EMBEDDINGS
COMPLETIONS = Operation.COMPLETIONS
Body = tuple[str, Operation, Callable[[int], bytes]]


def padded(opening: bytes, piece: bytes, closing: bytes) -> Callable[[int], bytes]:
    """Return a function that fills a body of the given size with pieces between opening and
    closing.
    """
    return lambda size: (
        opening + piece * ((size - len(opening) - len(closing)) // len(piece)) + closing
    )


def chat(content: str) -> bytes:
    """A chat of one message."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()


def tools(_: int) -> bytes:
    """300 tools with schemas of twenty properties."""
    properties = {
        f"field_{n}": {"type": "string", "description": f"The field {n}."} for n in range(20)
    }
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    listed = [
        {"type": "function", "function": {"name": f"f_{n}", "parameters": schema}}
        for n in range(300)
    ]
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "go"}], "tools": listed}
    ).encode()


def image(_: int) -> bytes:
    """A picture of 5 MiB in the body."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * (5 * 2**20)}}
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()


def inputs(_: int) -> bytes:
    """2,048 texts of 4 KiB."""
    return json.dumps({"model": "m", "input": ["word " * 800] * 2048}).encode()


def tokens(_: int) -> bytes:
    """2,048 inputs of 500 tokens."""
    return json.dumps({"model": "m", "input": [[50_000] * 500] * 2048}).encode()


def agent(_: int) -> bytes:
    """An agent's 2,000 turns, with code and calls of tools."""
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a": [1, 2, {"b": 3}]}'},
    }
    turns = [
        {"role": "user", "content": 'if (a[i] == "x") { return {"a": [1, 2, 3]}; }\n' * 20},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": '{"found": [1, 2, 3]}'},
    ]
    return json.dumps({"model": "m", "messages": turns * 667}).encode()


MODEL = b'{"model":"m",'
MESSAGES = MODEL + b'"messages":['
BODIES: tuple[Body, ...] = (
    (
        "F5: empty arrays beside a picture",
        CHAT,
        padded(MESSAGES + b'{"image_url":"data:,"}', b",[]", b"]}"),
    ),
    ("F5: one name of escapes", CHAT, padded(MODEL + b'"', rb"\"", b'":1}')),
    ("F5: tools", CHAT, padded(MODEL + b'"tools":[{"a":1}', b',{"a":1}', b"]}")),
    ("F5: prompt_cache_key", CHAT, padded(MODEL + b'"prompt_cache_key":[1', b",[]", b"]}")),
    ("F5: stream_options", CHAT, padded(MODEL + b'"stream_options":{"a":[1', b",[]", b"]}}")),
    ("F5: objects", CHAT, padded(MESSAGES + b'{"image_url":"data:,"}', b',{"a":1}', b"]}")),
    ("empty messages", CHAT, padded(MESSAGES + b"{}", b",{}", b"]}")),
    (
        "plain messages",
        CHAT,
        padded(MESSAGES + b'{"role":"u"}', b',{"role":"","content":""}', b"]}"),
    ),
    ("empty texts", CHAT, padded(MESSAGES + b'""', b',""', b"]}")),
    ("numbers in messages", CHAT, padded(MESSAGES + b'{"image_url":"data:,"}', b",1", b"]}")),
    ("numbers as input", EMBEDDINGS, padded(MODEL + b'"input":[1', b",1", b"]}")),
    ("arrays of numbers as input", EMBEDDINGS, padded(MODEL + b'"input":[[1]', b",[1]", b"]}")),
    ("nulls as prompt", COMPLETIONS, padded(MODEL + b'"prompt":[null', b",null", b"]}")),
    ("top-level members", CHAT, padded(MODEL + b'"a":1', b',"aa":1', b"}")),
    ("deep", CHAT, padded(MODEL + b'"a":', b"[", b"")),
    ("deep pairs", CHAT, padded(MODEL + b'"a":[', b"[[[[[[[[]]]]]]]],", b"1]}")),
    ("escapes in a text", CHAT, padded(MESSAGES + b'{"role":"u","content":"', rb"\"", b'"}]}')),
    ("backslashes in a text", CHAT, padded(MESSAGES + b'{"role":"u","content":"', rb"\\", b'"}]}')),
    (
        "escapes and brackets",
        CHAT,
        padded(MESSAGES + b'{"role":"u","content":[{"a":"', rb"\"[[[{{{{{,", b'"}]}]}'),
    ),
    ("escaped letters", CHAT, padded(MESSAGES + b'{"role":"u","content":"', rb"\u0041", b'"}]}')),
    ("quotes", CHAT, padded(MODEL, b'"', b"}")),
    ("commas", CHAT, padded(MODEL, b",", b"}")),
    ("blanks", CHAT, padded(MODEL + b'"messages":[]', b" ", b"}")),
    ("model", CHAT, padded(b'{"model":"', b"m", b'"}')),
    ("a number of a million digits", CHAT, padded(MODEL + b'"x":1', b"0", b"}")),
    ("namespaces", RESPONSES, lambda _: nested_namespaces()),
    (
        "40,000 values of a part",
        CHAT,
        lambda _: MESSAGES + b'{"image_url":"data:,"}' + b',{"K":"b"}' * 19_900 + b"]}",
    ),
    ("doubled names", CHAT, lambda _: MESSAGES + b'{"a":1,"a":2}' + b',{"b":"b"}' * 19_900 + b"]}"),
    (
        "42,900 tools below 128 KiB",
        CHAT,
        lambda _: MODEL + b'"tools":[' + b",".join([b"{}"] * 42_900) + b"]}",
    ),
    ("namespaces below 128 KiB", CHAT, lambda _: tools_in_namespaces()),
    (
        "parts below 128 KiB",
        CHAT,
        lambda _: MESSAGES + b'{"a":1, "b" :2}' + b',{"a":1, "b" :2}' * 7_900 + b"]}",
    ),
    (
        "logit_bias",
        CHAT,
        lambda _: (
            MODEL + b'"logit_bias":{' + b",".join(b'"%d":1' % n for n in range(39_000)) + b"}}"
        ),
    ),
    ("honest: a prompt", CHAT, lambda size: chat("word, " * ((size - 100) // 6))),
    ("honest: a prompt in Greek", CHAT, lambda size: chat_utf8(size)),
    (
        "honest: a prompt of JSON",
        CHAT,
        lambda size: chat('{"name": "value", "list": [1, 2]}\n' * (size // 45)),
    ),
    ("honest: a picture of 5 MiB", CHAT, image),
    ("honest: 2,048 texts", EMBEDDINGS, inputs),
    ("honest: 2,048 × 500 tokens", EMBEDDINGS, tokens),
    ("honest: 300 tools", CHAT, tools),
    ("honest: an agent's 2,000 messages", CHAT, agent),
)


def chat_utf8(size: int) -> bytes:
    """A prompt of two bytes a letter."""
    body = {"model": "m", "messages": [{"role": "user", "content": "λόγος, " * (size // 14)}]}
    return json.dumps(body, ensure_ascii=False).encode()


def tools_in_namespaces() -> bytes:
    """1,000 namespaces of 36 tools."""
    namespace = b'{"type":"namespace","tools":[' + b",".join([b"{}"] * 36) + b"]}"
    return MODEL + b'"tools":[' + b",".join([namespace] * 900) + b"]}"


def nested_namespaces() -> bytes:
    """Namespaces in namespaces, as deep as a body may be, around a megabyte."""
    inner = b'{"type":"function","name":"' + b"a" * 10**6 + b'"}'
    for _ in range(30):
        inner = b'{"type":"namespace","tools":[' + inner + b"]}"
    return MODEL + b'"tools":[' + inner + b"]}"


async def measured(operation: Operation, body: bytes) -> tuple[str, float, float]:
    """Return a body's result, its CPU time in ms, and the longest pause of the loop in ms."""
    pauses_s = [0.0]
    watch = asyncio.create_task(watched(pauses_s))
    await asyncio.sleep(0.01)
    began_s = time.process_time()
    try:
        if is_large(body):
            read = await asyncio.to_thread(read_request, operation, body)
        else:
            read = read_request(operation, body)
        prepare(read, {"model": "another"})
        outcome = "read"
    except InvalidRequest as refused:
        outcome = f"400: {refused.message}"
    took_s = time.process_time() - began_s
    await asyncio.sleep(0)  # the watch's turn
    watch.cancel()
    return outcome, took_s * 1000, max(pauses_s) * 1000


async def watched(pauses_s: list[float]) -> None:
    """Record the delay of each turn."""
    while True:
        began_s = time.perf_counter()
        await asyncio.sleep(TURN_S)
        pauses_s.append(time.perf_counter() - began_s - TURN_S)


def in_a_child(operation: Operation, body: bytes) -> Iterator[str]:
    """Yield CPU, pause, the memory beyond the body, and the result, from a separate process."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        outcome, took_ms, paused_ms = asyncio.run(measured(operation, body))
        more_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
        os.write(writing, f"{took_ms}\n{paused_ms}\n{more_kib / 1024}\n{outcome[:90]}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        yield from answer.read().split("\n", 3)
    os.wait()


def main() -> int:
    """Print a line for each body; 1 if one of them takes too long."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.hostile_bodies", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--mib", type=float, default=10, help="size of the bodies that have no size of their own"
    )
    chosen = parser.parse_args()
    print(f"{machine.describe()}, commit {machine.commit()}")
    print(f"{'body':36} {'MiB':>5} {'ms':>7} {'pause':>6} {'+MiB':>6}  outcome")
    slow = 0
    for name, operation, make in BODIES:
        body = make(int(chosen.mib * 2**20))
        took, pause, more, outcome = in_a_child(operation, body)
        slow += float(pause) > MOST_MS
        figures = (
            f"{len(body) / 2**20:5.1f} {float(took):7.1f} {float(pause):6.1f} {float(more):6.0f}"
        )
        print(f"{name:36} {figures}  {outcome}", flush=True)
    print(f"{slow} of {len(BODIES)} paused the loop for more than {MOST_MS:.0f} ms")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
