"""Starts a client for one cell and gives it one call after the other."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.canary import PROMPT
from tests.clients import install
from tests.clients.matrix import Call, Cell
from tests.clients.wording import COMMAND, WISH

ANSWER_WITHIN_S = 180.0
PROMPTS = {
    Call.CHAT: f"Say hello. {PROMPT}",
    Call.STREAM: f"Say hello. {PROMPT}",
    Call.TOOLS: f"What is the weather in Paris? {WISH}. {PROMPT}",
}
COMMAND_PROMPT = f"{WISH} and run: {COMMAND}. {PROMPT}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A client's answer to one call.

    `output_tokens` is the client's own figure of the last answer, None if it shows none. `failure`
    is its error, None if the call succeeded.
    """

    text: str = ""
    tools: tuple[tuple[str, Any], ...] = ()
    output_tokens: int | None = None
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The gateway as a client sees it, and a folder for the client's own files."""

    base: str
    key: str
    cell: Cell
    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment of a client: a home of its own, no way out of this machine."""
        nowhere = "http://127.0.0.1:9"
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{install.node_command('node').parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "TMPDIR": str(self.folder),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "HTTP_PROXY": nowhere,
            "HTTPS_PROXY": nowhere,
            "NO_PROXY": "127.0.0.1,localhost",
            "http_proxy": nowhere,
            "https_proxy": nowhere,
            "no_proxy": "127.0.0.1,localhost",
        }


class Session(ABC):
    """A client that is ready for calls."""

    @abstractmethod
    def call(self, call: Call) -> Answer:
        """Make one call and return its answer."""


@dataclass(slots=True)
class Driver(Session):
    """A library, driven by a program of `drivers/` that takes calls from its standard input."""

    process: subprocess.Popen[str]
    lines: queue.Queue[str | None]
    noise: list[str] = field(default_factory=list)

    def call(self, call: Call) -> Answer:
        """Ask the program for one call."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{call}\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            return Answer(failure=f"the driver ended: {self._last_words()}")
        line = self._answer_line()
        if line is None:
            return Answer(failure=f"no answer: {self._last_words()}")
        made = json.loads(line)
        if "error" in made:
            return Answer(failure=made["error"])
        return Answer(
            text=made["text"] or "",
            tools=tuple((tool["name"], tool["arguments"]) for tool in made["tools"]),
            output_tokens=made["output_tokens"],
        )

    def _answer_line(self) -> str | None:
        """Return the next answer; None if the program ended or took too long."""
        try:
            while (line := self.lines.get(timeout=ANSWER_WITHIN_S)) is not None:
                if line.startswith("ANSWER "):
                    return line.removeprefix("ANSWER ")
                self.noise.append(line)
        except queue.Empty:
            self.noise.append(f"nothing for {ANSWER_WITHIN_S:.0f} s")
        return None

    def _last_words(self) -> str:
        return "".join(self.noise)[-1500:]


@contextmanager
def driver(target: Target) -> Iterator[Driver]:
    """Start a library's program for one cell, and end it."""
    client = target.cell.client
    assert client.environment is not None
    assert client.driver is not None
    if client.environment == install.NODE:
        command = [install.node_of(), install.home() / install.NODE / client.driver]
    else:
        command = [install.python_of(client.environment), install.DRIVERS / client.driver]
    config = {
        "base": target.base,
        "key": target.key,
        "model": target.cell.route,
        "dialect": target.cell.caller,
        "prompt": PROMPTS[Call.CHAT],
        "tool_prompt": PROMPTS[Call.TOOLS],
    }
    process = subprocess.Popen(
        [str(part) for part in command],
        env={
            **target.variables,
            "TOLLGATE_CALL": json.dumps(config),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        cwd=target.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        yield Driver(process, lines)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(10)


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    """Queue each line that a program prints, then None."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def run(
    command: list[str], target: Target, variables: Mapping[str, str], *, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a client's command to its end, with nothing on its standard input."""
    return subprocess.run(
        command,
        env={**target.variables, **variables},
        cwd=folder or target.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ANSWER_WITHIN_S,
        check=False,
    )
