"""A small OpenAI-compatible server whose tokens cost a known engine time, which it does not spend.

Requests that wait together are one batch. It answers a batch when all that its client has sent are
there, or from another client when no new one has come for a few milliseconds; moves its simulated
clock by the batch's time, and reports that time in each answer's `metrics`, as vLLM does.
"""

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sse_server import TEMPLATE_TOKENS, chunk, done, listening, prompt_tokens, tokenized, words_of

from engine.load.client import LoadClient
from engine.load.measured import MeasuredRequest

QUIET_S, QUIET_TIMES = 0.002, 6  # a long pause of the whole process is one of the short waits
BLOCK = 16
MODEL = "simulated"
VERSION = "0.32.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSeconds:
    """The true engine seconds of the simulated engine."""

    input: float = 20e-6
    cached_input: float = 2e-6
    output: float = 300e-6
    step: float = 8e-3
    round: float = 5e-3
    """Of each batch, beside its tokens: the network."""
    prompt_pairs: float = 0.0
    """Of each pair of prompt tokens: a prefill that grows with the square of its length."""
    noise: float = 0.01
    """Standard deviation of a batch's time, as a share."""


@dataclass(slots=True, kw_only=True)
class SimulatedEngine:
    """The server with its ledger of answered requests."""

    true: TokenSeconds
    key: str | None = None
    has_metrics: bool = True
    version: str = VERSION
    is_slow: bool = False
    """Whether it also spends the time that it reports, for a client with a real clock."""
    url: str = ""
    now_s: float = 0.0
    """The simulated clock."""
    in_flight: int | None = None
    """The requests that its client has sent and not read to the end; None if it does not say."""
    ledger: list[dict[str, int]] = field(default_factory=list)
    _waiting: list[tuple[dict[str, int], "asyncio.Future[float]"]] = field(default_factory=list)
    _cached: dict[str, int] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=lambda: random.Random(2))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                lines = head.lower().splitlines()
                lengths = [line.split(":")[1] for line in lines if line[:15] == "content-length:"]
                body = json.loads(await reader.readexactly(int(lengths[0]))) if lengths else {}
                path = head.split(" ")[1]
                if self.key and f"authorization: bearer {self.key}".lower() not in lines:
                    plain(writer, 401, {"error": "Unauthorized"})
                elif path == "/v1/models":
                    plain(writer, 200, {"data": [{"id": MODEL, "max_model_len": 4096}]})
                elif path == "/version":
                    plain(writer, 200, {"version": self.version})
                elif path == "/tokenize":
                    plain(writer, 200, tokenized(body))
                elif path == "/v1/completions":
                    plain(writer, 200, {"choices": [{"text": "1"}]})
                elif path == "/v1/chat/completions":
                    await self._chat(body, writer)
                else:
                    plain(writer, 404, {"error": {"message": "not found"}})
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _chat(self, body: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        """Wait for the batch, then answer with its time."""
        prompt, answer = prompt_tokens(body["messages"]), int(body["max_tokens"])
        cached = self._cached_tokens(body["messages"])
        request = {"prompt": prompt, "cached": cached, "answer": answer}
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[float] = loop.create_future()
        self._waiting.append((request, answered))
        loop.call_later(QUIET_S, self._look, len(self._waiting), QUIET_TIMES)
        seconds = await answered
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if not body.get("stream"):
            message = {"role": "assistant", "content": "a"}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            plain(writer, 200, {"id": "1", "choices": [choice], "usage": usage})
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        content = {"index": 0, "delta": {"content": " a"}, "finish_reason": "length"}
        chunk(writer, {"choices": [content]})
        metrics = {
            "time_to_first_token_ms": 250 * seconds,
            "generation_time_ms": 750 * seconds,
            "queue_time_ms": 0.0,
        }
        shown = {"metrics": metrics} if self.has_metrics else {}
        chunk(writer, {"choices": [], "usage": usage, **shown})
        done(writer)

    def _look(self, known: int, more: int) -> None:
        """Answer the batch if no other request is on its way, or if it did not grow for so many
        looks; each new request has its own.
        """
        if known != len(self._waiting):
            return
        is_whole = not more if self.in_flight is None else known >= self.in_flight
        if not is_whole:
            asyncio.get_running_loop().call_later(QUIET_S, self._look, known, more - 1)
            return
        waiting, self._waiting = self._waiting, []
        seconds = self._batch_s([request for request, _ in waiting])
        self.now_s += seconds
        for request, answered in waiting:
            self.ledger.append(request | {"batch": len(waiting)})
            if self.is_slow:
                asyncio.get_running_loop().call_later(seconds, answered.set_result, seconds)
            else:
                answered.set_result(seconds)

    def _batch_s(self, requests: list[dict[str, int]]) -> float:
        """Return the engine seconds of a batch."""
        true, seconds = self.true, self.true.round
        for one in requests:
            seconds += (
                true.input * (one["prompt"] - one["cached"])
                + true.cached_input * one["cached"]
                + (true.output + true.step / len(requests)) * one["answer"]
                + true.prompt_pairs * (one["prompt"] ** 2 - one["cached"] ** 2) / 2
            )
        return seconds * self._rng.gauss(1, true.noise)

    def _cached_tokens(self, messages: list[dict[str, str]]) -> int:
        """Return the tokens of the prefix that an earlier request had, in whole blocks."""
        if len(messages) < 2:
            return 0
        words = words_of(messages[0]["content"])
        start = " ".join(words[:8])
        known = min(self._cached.get(start, 0), len(words))
        self._cached[start] = max(self._cached.get(start, 0), len(words))
        return (known + TEMPLATE_TOKENS) // BLOCK * BLOCK if known else 0


@dataclass(slots=True, kw_only=True)
class CountingClient(LoadClient):
    """A client that tells the engine how many requests it has sent, so that a batch is the same on
    a busy machine.
    """

    engine: SimulatedEngine

    async def measure(
        self, body: Mapping[str, Any], *, began: float, scheduled_s: float | None
    ) -> MeasuredRequest:
        """Send a request as any client, counted while it is under way."""
        self.engine.in_flight = (self.engine.in_flight or 0) + 1
        try:
            return await LoadClient.measure(self, body, began=began, scheduled_s=scheduled_s)
        finally:
            self.engine.in_flight -= 1


def plain(writer: asyncio.StreamWriter, status: int, body: Mapping[str, Any]) -> None:
    """Answer with a JSON body."""
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} S\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    writer.write(f"{head}\r\n\r\n".encode() + data)


@contextmanager
def simulated(**orders: Any) -> Iterator[SimulatedEngine]:
    """Run the server in a thread for the block."""
    engine = SimulatedEngine(**({"true": TokenSeconds()} | orders))
    with listening(engine.serve) as engine.url:
        yield engine
