"""Security F5: a body that is slow to decode is decoded in a thread, one at a time.

Bodies below the limits still took 150 ms of CPU (`bench/hostile_bodies.py`, mixed values and
escapes). Commit e47127a decodes every body on the event loop and has no thread for it.
"""

from __future__ import annotations

import asyncio
import json
import threading

from gateway.api.large_bodies import LARGE_BYTES
from gateway.domain.policy.policy import Priority
from tests.memory_transport import Line
from tests.unit.edge.test_forward_shedding import KEYS, Door

LARGE = json.dumps(
    {"model": "assistant", "messages": [{"role": "user", "content": "x" * LARGE_BYTES}]}
).encode()


def asked(door: Door, body: bytes) -> Line:
    """Return a connection on which the whole request has come."""
    line = Line(door.edge)
    line.send(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        b"x-api-key: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (KEYS[Priority.HIGH].encode(), len(body), body)
    )
    return line


async def test_small_requests_pass_a_large_body_that_is_read() -> None:
    """Only the next large body waits: two threads would hold the interpreter for twice as long."""
    door, others = Door(), threading.Event()
    door.forward.large_bodies.thread.submit(others.wait)
    large = asked(door, LARGE)
    assert (await door.ask(Priority.HIGH))[0] == 200
    assert large.written == b""
    others.set()
    await large.transport.ended.wait()
    assert large.written.startswith(b"HTTP/1.1 200 ")


async def test_a_large_body_that_is_refused_says_why() -> None:
    """The thread's error must reach the caller like any other error."""
    line = asked(Door(), LARGE[:-1] + b',"max_tokens":[]}')
    await line.transport.ended.wait()
    assert line.written.startswith(b"HTTP/1.1 400 ")
    assert b"max_tokens" in line.written


async def test_a_disconnect_before_the_body_is_read_sends_nothing() -> None:
    """While the thread works, the caller may leave; then nothing must be sent."""
    door, others = Door(), threading.Event()
    door.forward.large_bodies.thread.submit(others.wait)
    line = asked(door, LARGE)
    await asyncio.sleep(0)
    line.transport.abort()
    await line.settle()
    others.set()
    assert (await door.ask(Priority.HIGH))[0] == 200
    assert len(door.stage.journal.intents) == 1
