"""`tollgate engine …` is `python -m engine …`: same arguments, streams, signals and exit code."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway_process import REPOSITORY, free_port
from tests.waiting import eventually

PROGRAM = [sys.executable, "-m", "gateway.main", "engine"]
STAND_IN = REPOSITORY / "tests" / "engine" / "stand_in_vllm.py"


def variables(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "TOLLGATE_ENGINE_HOME": str(home),
        "TOLLGATE_ENGINE_VLLM": str(STAND_IN),
        "STAND_IN": str(home),
    }


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=REPOSITORY,
        env=variables(home),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_is_the_engines_own(tmp_path: Path) -> None:
    """The gateway's help of this command would list nothing. Before it stand the commands that the
    gateway has of its own; `status` is another one than the engine's.
    """
    shown = run(tmp_path, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    own, _, engines = shown.stdout.partition("usage: tollgate engine")
    assert all(f"tollgate engine {name}" in own for name in ("status", "calibrate", "bill import"))
    assert "bench" in engines
    assert "--dry-run" in run(tmp_path, "serve", "--help").stdout
    assert "tollgate engine plan --list gpus" in run(tmp_path, "plan", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "next_step"),
    [
        (("serve", "--port", "none"), "See: tollgate engine serve --help"),
        (("nonsense",), "See: tollgate engine --help"),
        (("plan", "--gpu", "H100"), "tollgate engine plan --help"),
        (("plan", "--gpu", "H100", "--model", "none"), "tollgate engine plan --list models"),
    ],
)
def test_a_message_has_the_name_of_the_command_and_comes_alone(
    tmp_path: Path, arguments: tuple[str, ...], next_step: str
) -> None:
    """The command that a message names must be the one that the reader has; 20 lines of usage
    stood before it.
    """
    errors = run(tmp_path, *arguments).stderr
    assert next_step in errors
    assert "python -m engine" not in errors
    assert "usage:" not in errors


def test_arguments_reach_the_engine_unchanged(tmp_path: Path) -> None:
    """Flags of vLLM stand behind `--`, which the gateway's own parser would swallow."""
    asked = ("serve", "--profile", "cpu", "--dry-run", "--", "--seed", "7")
    plan = json.loads(run(tmp_path, *asked).stdout)
    assert plan["command"][-2:] == ["--seed", "7"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nonsense",), 2),
        (("serve", "--profile", "absent"), 2),
        (("wait", "--url", "http://127.0.0.1:1", "--timeout", "1"), 3),
    ],
)
def test_the_exit_code_is_the_engines(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    """Scripts tell bad usage from a finding by the code."""
    result = run(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (code, "" if code == 2 else result.stdout)


def test_a_signal_reaches_the_engine(tmp_path: Path) -> None:
    """A service manager knows the pid of `tollgate` alone."""
    (tmp_path / "broken").touch()
    with (tmp_path / "errors").open("wb") as out:
        process = subprocess.Popen(
            [*PROGRAM, "serve", "--profile", "cpu", "--port", str(free_port())],
            cwd=REPOSITORY,
            env=variables(tmp_path),
            stderr=out,
        )
    try:
        errors = tmp_path / "errors"
        eventually(lambda: "again" in errors.read_text(), "a wait to restart", within_s=120)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
