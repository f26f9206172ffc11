"""Builders for the engine's tests, and the stand-in programs that play vLLM."""

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.home import EngineHome
from engine.vllm_command import Serving

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0


def a_home(root: Path, *, model: str | None = "mine") -> EngineHome:
    """Return a home that looks as if a model were there; nothing is installed."""
    home = EngineHome(root=root)
    if model:
        folder = home.models / model
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}", encoding="utf-8")
    return home


def a_serving(**changes: Any) -> Serving:
    given: dict[str, Any] = {
        "model": "tiny",
        "served_model_name": "tiny",
        "host": "127.0.0.1",
        "port": 8001,
        "device": "cpu",
        "max_model_len_tokens": 4096,
        "max_queued_requests": 256,
        "number_format": "bfloat16",
    }
    return Serving(**(given | changes))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(is_true: Callable[[], bool], *, deadline_s: float = DEADLINE_S) -> bool:
    """Return whether the condition became true in time; processes end when the kernel says so, not
    at once.
    """
    end_s = time.monotonic() + deadline_s
    while time.monotonic() < end_s:
        if is_true():
            return True
        time.sleep(0.05)
    return is_true()


def is_alive(pid: int) -> bool:
    """Return whether the process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


# Plays vLLM: a leader and a worker that does not hear SIGTERM; both write their process ids.
ENGINE_PROGRAM = """\
import os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
worker = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"],
    stdout=subprocess.PIPE)
worker.stdout.readline()
if len(sys.argv) > 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
(folder / "worker").write_text(str(worker.pid))
(folder / "leader").write_text(str(os.getpid()))
time.sleep(600)
"""  # noqa: E501

# Plays `tollgate up`: starts the supervisor as a child and waits.
PARENT_PROGRAM = """\
import subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]])
"""

SUPERVISOR_PROGRAM = """\
import os, sys
from engine import supervisor
sys.exit(supervisor.run(supervisor.SupervisedProgram(argv=sys.argv[2:], environment=os.environ,
    grace_s=float(sys.argv[1]), is_bound_to_parent=True, failure=lambda: "no probe",
    on_ready=lambda: None, must_start=True)))
"""


def supervised(folder: Path, *, grace_s: float, is_deaf: bool = False) -> list[str]:
    """Return the arguments, after the interpreter, of a supervisor that runs the stand-in
    engine.
    """
    deaf = ["deaf"] if is_deaf else []
    engine = [sys.executable, "-c", ENGINE_PROGRAM, str(folder), *deaf]
    return ["-c", SUPERVISOR_PROGRAM, str(grace_s), *engine]


def python_variables() -> dict[str, str]:
    """Return an environment in which `engine` can be imported from anywhere."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}
