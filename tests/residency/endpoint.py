"""The upstreams of the residency cases: TCP ports that count who connects, and answer each
provider's dialect by the path that was asked.
"""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

WORDS = {"input_tokens": 5, "output_tokens": 1}
CHAT: dict[str, Any] = {
    "id": "c-1",
    "model": "m-1",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "yes"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
# By the end of the path; every other path is answered as a chat.
ANSWERS: dict[str, dict[str, Any]] = {
    "/messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m-1",
        "content": [{"type": "text", "text": "yes"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": WORDS,
    },
    "/responses": {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m-1",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "yes", "annotations": []}],
            }
        ],
        "usage": {**WORDS, "total_tokens": 6},
    },
    ":generateContent": {
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": "yes"}]}, "finishReason": "STOP"}
        ],
        "usageMetadata": {
            "promptTokenCount": 5,
            "candidatesTokenCount": 1,
            "totalTokenCount": 6,
        },
    },
    "/converse": {
        "output": {"message": {"role": "assistant", "content": [{"text": "yes"}]}},
        "stopReason": "end_turn",
        "usage": {"inputTokens": 5, "outputTokens": 1, "totalTokens": 6},
    },
    "/api/chat": {
        "model": "m-1",
        "message": {"role": "assistant", "content": "yes"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 5,
        "eval_count": 1,
    },
    "/token": {"access_token": "a-token", "expires_in": 3600, "token_type": "Bearer"},
}
# Azure's header, which the gateway reads in every dialect: somewhere in Brazil.
WANDERED, WANDERED_TO = "x-ms-region: Brazil South\r\n", "br"


class Endpoint:
    """One TCP port. `touched` counts connections, and the requests on kept ones."""

    def __init__(self) -> None:
        self.behaviour, self.elsewhere = "answers", ""
        self.touched = 0
        self.stated: str | None = None  # the place that its last answer reported
        self.sent = b""  # the body of the last request
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._listener = _listener()
        self.port = int(self._listener.getsockname()[1])
        self.reached = asyncio.Event()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_open(self) -> bool:
        """Whether it accepts."""
        return self._server is not None

    async def open(self) -> None:
        """Accept from now on."""
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def shut(self) -> None:
        """Refuse connections, on the same port, and drop those that were kept."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._listener = _listener(self.port)
            for writer in self._writers:
                writer.transport.abort()
            await asyncio.gather(*self._serving, return_exceptions=True)

    def end(self) -> None:
        """Give the port back."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        self._listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.touched += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    int(line.split(b":")[1])
                    for line in head.split(b"\r\n")
                    if line.startswith(b"content-length")
                )
                self.sent = await reader.readexactly(length)
                self.touched += 1
                self.reached.set()
                if self.behaviour == "stalls":
                    await reader.read(1)  # until the gateway hangs up
                    return
                if self.behaviour == "cuts":
                    return
                writer.write(self._answer_to(head.split(b" ")[1].decode().partition("?")[0]))
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _answer_to(self, path: str) -> bytes:
        """Return the answer in the dialect of a path, and note the place that it reports."""
        answer = next((one for end, one in ANSWERS.items() if path.endswith(end)), CHAT)
        match self.behaviour:
            case "redirects":
                return _bytes("302 Found", {}, f"location: {self.elsewhere}\r\n")
            case "fails":
                return _bytes("500 Internal Server Error", {"error": {"message": "no"}})
            case "lies" if path.endswith("/api/chat"):
                self.stated = "unknown"  # Ollama's cloud answered, not this server
                return _bytes("200 OK", {**answer, "remote_host": "https://ollama.com:443"})
            case "lies" if "usage" in answer and not path.endswith("/converse"):
                self.stated = "global"  # `inference_geo` stands in these dialects alone
                usage = {**answer["usage"], "inference_geo": "global"}
                headers = "x-ms-region: Atlantis\r\nx-region: mars\r\n"
                return _bytes("200 OK", {**answer, "usage": usage}, headers)
            case "wanders":
                self.stated = WANDERED_TO
                if "usage" not in answer or path.endswith("/converse"):
                    return _bytes("200 OK", answer, WANDERED)
                usage = {**answer["usage"], "inference_geo": WANDERED_TO.upper()}
                return _bytes("200 OK", {**answer, "usage": usage})
            case _:
                return _bytes("200 OK", answer)


def _bytes(status: str, answer: object, headers: str = "") -> bytes:
    body = json.dumps(answer)
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: "
        f"{len(body)}\r\n\r\n"
    )
    return (head + body).encode()


def _listener(port: int = 0) -> socket.socket:
    """A socket that is bound and does not listen yet: connections to it are refused."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.setblocking(False)
    return listener
