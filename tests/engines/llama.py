"""A running `llama-server` with the tiny model, and its own counters."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests import plain_http
from tests.engines import build
from tests.gateway_process import free_port
from tests.waiting import eventually

SLOTS, CONTEXT = 2, 4096


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens as the engine counts them; those of prompts include the reused ones."""

    prompt: int
    predicted: int

    def __sub__(self, other: Tokens) -> Tokens:
        """Return what was counted since `other`."""
        return Tokens(self.prompt - other.prompt, self.predicted - other.predicted)


@dataclass(frozen=True, slots=True)
class LlamaServer:
    """One server. `url` has no path."""

    url: str

    def counted(self) -> Tokens:
        """Return the engine's own count since its start, once it is idle."""
        eventually(lambda: not any(slot["is_processing"] for slot in self.slots()), "an idle slot")
        found = self.metrics()
        prompt = found["prompt_tokens_total"] + found["prompt_tokens_cached_total"]
        return Tokens(int(prompt), int(found["tokens_predicted_total"]))

    def metrics(self) -> dict[str, float]:
        """Return the figures of its metrics page, by name."""
        page = plain_http.get(f"{self.url}/metrics", timeout=10).text
        lines = [line.removeprefix("llamacpp:").split() for line in page.splitlines()]
        return {line[0]: float(line[1]) for line in lines if len(line) == 2}

    def slots(self) -> list[dict[str, Any]]:
        """Return its slots."""
        return list(plain_http.get(f"{self.url}/slots", timeout=10).json())


@contextmanager
def llama_server(*arguments: str) -> Iterator[LlamaServer]:
    """Start a server, and end it by its process id."""
    port = free_port()
    command = [str(build.llama_server()), "--model", str(build.model()), "--alias", "tiny"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--metrics"]
    command += ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * CONTEXT), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as written:
            process = subprocess.Popen(command, stdout=written, stderr=written)
        server = LlamaServer(f"http://127.0.0.1:{port}")
        try:
            eventually(lambda: is_up(server, process, log), "llama-server", within_s=60)
            yield server
        finally:
            process.terminate()
            process.wait(30)


def is_up(server: LlamaServer, process: subprocess.Popen[bytes], log: Path) -> bool:
    """Return True once the model is loaded."""
    assert process.poll() is None, log.read_text(errors="replace")[-3000:]
    try:
        return plain_http.get(f"{server.url}/health", timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False
