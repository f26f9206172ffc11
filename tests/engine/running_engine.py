"""Serves a model with the real vLLM for a test, and asks it over HTTP."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine_factories import REPOSITORY, free_port, python_variables

from engine import environment
from engine.home import engine_home

IS_READY = environment.installed_device(engine_home(os.environ)) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningEngine:
    """A served model."""

    url: str
    process: subprocess.Popen[bytes]

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=json.dumps({"model": "tiny", **body}).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            parsed: dict[str, Any] = json.load(answer)
            return parsed

    def ask(self, text: str, **body: Any) -> dict[str, Any]:
        """Return the whole answer to one greedy question."""
        return self.post(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": text}],
            temperature=0,
            **body,
        )

    def count_tokens(self, text: str) -> int:
        count: int = self.post("/tokenize", prompt=text)["count"]
        return count


def served(*arguments: str) -> Iterator[RunningEngine]:
    port = free_port()
    program = [sys.executable, "-m", "engine"]
    url = f"http://127.0.0.1:{port}"
    serve = subprocess.Popen(
        [*program, "serve", "--port", str(port), *arguments], cwd=REPOSITORY, env=python_variables()
    )
    try:
        subprocess.run(
            [*program, "wait", "--url", url, "--timeout", "240"],
            cwd=REPOSITORY,
            env=python_variables(),
            check=True,
        )
        yield RunningEngine(url=url, process=serve)
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(timeout=60)
