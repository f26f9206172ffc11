"""The preflight as `make run` starts it: one file, before anything is installed, under any
Python.
"""

from __future__ import annotations

import ast
import http.server
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from engine_factories import REPOSITORY, free_port

from bench.stand import machine
from engine import preflight
from engine.preflight import FAIL, OK, WARN, Need, PreflightCheck

FILE = REPOSITORY / "engine" / "preflight.py"
PYENV = Path.home() / ".pyenv" / "versions"


class Compatible(http.server.BaseHTTPRequestHandler):
    """Plays llama.cpp's server."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "m", "owned_by": "llamacpp"}]}
        body = json.dumps(models if self.path == "/v1/models" else {}).encode()
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


@contextmanager
def serving(port: int = 0) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Compatible)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def preflighted(
    *arguments: str, before: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE")}
    ports = {
        f"TOLLGATE_{name}PORT": str(free_port())
        for name in ("", "METRICS_", "DASHBOARD_", "ENGINE_")
    }
    return subprocess.run(
        [*before, sys.executable, "-I", str(FILE), *arguments],
        env=kept | ports | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_imports_the_standard_library_alone() -> None:
    """Nothing is installed when `make run` starts it."""
    tree = ast.parse(FILE.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


@pytest.mark.parametrize("minor", range(8, 14))
def test_every_python_from_3_8_on_gets_an_answer(minor: int, tmp_path: Path) -> None:
    """A syntax error is no answer to somebody whose Python is too old."""
    ast.parse(FILE.read_text(), feature_version=(3, minor))
    found = [
        *PYENV.glob(f"3.{minor}.*/bin/python3"),
        *filter(None, [shutil.which(f"python3.{minor}")]),
    ]
    if not found:
        pytest.skip(f"no Python 3.{minor} is installed here")
    done = subprocess.run(
        [
            found[0],
            "-I",
            FILE,
            "--command",
            "make run",
            "--no-engine",
            "--no-ports",
            "--venv",
            tmp_path / ".venv",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if (3, minor) in preflight.PYTHONS:
        assert (done.returncode, done.stdout.startswith(f"This machine: Python 3.{minor}.")) == (
            0,
            True,
        ), done
    else:
        assert done.returncode == 2
        assert f"this is Python 3.{minor}." in done.stderr
        assert "Tollgate supports 3.11, 3.12 and 3.13" in done.stderr
        assert "make run PYTHON=" in done.stderr


def test_make_run_starts_it_before_anything_else() -> None:
    """A machine that cannot run Tollgate must not first download it."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    # A make of its own: the one that may run the tests would have it print the folders it enters.
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    planned = subprocess.run(
        ["make", "-n", "run"], cwd=REPOSITORY, env=alone, capture_output=True, text=True, check=True
    ).stdout
    first, second, *_ = planned.replace("\\\n", "").splitlines()
    assert "sys.version_info" in first
    assert "-I engine/preflight.py --command" in second


def test_a_machine_that_suits_gets_one_line() -> None:
    """The checked facts are printed, so that a bug report has them."""
    done = preflighted()
    if "no build of the engine" in done.stderr:
        pytest.skip("there is no engine build for this platform")
    assert done.returncode == 0, done.stderr
    assert f"Python {platform.python_version()}, built " in done.stdout
    assert "GB of disk free; ports" in done.stdout


@pytest.mark.skipif(
    shutil.which("setarch") is None, reason="setarch, which plays another machine, is not installed"
)
def test_without_an_engine_build_it_names_the_servers_that_answer() -> None:
    """The way on for a Mac or an ARM board is one command, with an address that was just tried."""
    for port, _ in preflight.USUAL_SERVERS:
        with suppress(OSError), serving(port):
            done = preflighted("--command", "make run", before=("setarch", "i686"))
            break
    else:
        pytest.skip("all ports of the usual servers are taken here")
    assert done.returncode == 2
    assert (
        "no build of the engine (vLLM) for Linux on i686; there is one for Linux on x86_64"
        in done.stderr
    )
    offered = f"make setup && .venv/bin/tollgate up --engine-url http://127.0.0.1:{port}"
    assert f"llama.cpp answers at http://127.0.0.1:{port}: {offered}" in done.stderr


@pytest.mark.skipif(
    shutil.which("setarch") is None, reason="setarch, which plays another machine, is not installed"
)
def test_with_an_engine_elsewhere_the_platform_does_not_matter() -> None:
    """`tollgate up --engine-url` must start on platforms without a build of the engine."""
    assert preflighted("--no-engine", before=("setarch", "i686")).returncode == 0


def test_each_platform_without_an_engine_has_its_own_reason() -> None:
    """Only platforms with locked wheels have an engine; each other platform gets its reason."""
    glibc = ("glibc", "2.36")
    assert preflight.platform_problem("Linux", "x86_64", glibc) == ""
    assert "for macOS on arm64" in preflight.platform_problem("Darwin", "arm64", ("", ""))
    assert "without glibc" in preflight.platform_problem("Linux", "x86_64", ("", ""))
    assert "need glibc 2.28 or newer, this is 2.17" in preflight.platform_problem(
        "Linux", "x86_64", ("glibc", "2.17")
    )


def test_a_taken_port_is_reported_with_its_owner_and_a_working_command() -> None:
    """8080 is llama.cpp's usual port as well as ours; its owner wants it metered, not stopped."""
    with serving() as port:
        done = preflighted(TOLLGATE_PORT=str(port))
    assert done.returncode == 2
    assert f"port {port} of the gateway is taken by llama.cpp" in done.stderr
    words = next(word for word in done.stderr.split() if word.startswith("TOLLGATE_PORT="))
    assert not preflight.why_not_free("127.0.0.1", int(words.partition("=")[2]))
    assert f"{words} tollgate up --engine-url http://127.0.0.1:{port}" in done.stderr


def test_several_taken_ports_have_one_command_below_them() -> None:
    """A second `make run` repeated the same line of four variables four times."""
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        done = preflighted(
            TOLLGATE_METRICS_PORT=str(one.getsockname()[1]),
            TOLLGATE_DASHBOARD_PORT=str(two.getsockname()[1]),
        )
    assert done.stderr.count("is taken by") == 2
    assert done.stderr.count("Stop them, or use other ports: TOLLGATE_METRICS_PORT=") == 1


def test_a_program_that_speaks_no_http_is_named_by_its_process() -> None:
    """Somebody has to find it to stop it."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
        done = preflighted(TOLLGATE_METRICS_PORT=str(port))
    assert f"port {port} of the metrics is taken by" in done.stderr
    assert f"(process {os.getpid()})" in done.stderr
    assert "TOLLGATE_METRICS_PORT=" in done.stderr


def test_the_build_of_the_interpreter_is_in_the_facts_of_every_benchmark() -> None:
    """One without PGO and LTO takes a fifth more CPU: a figure without this fact cannot be
    compared.
    """
    assert f"Python {platform.python_version()} {preflight.build_flags()}" in machine.describe()
    timed = {path.name: path.read_text() for path in (REPOSITORY / "bench").glob("*.py")}
    timed = {
        name: text
        for name, text in timed.items()
        if "machine.commit()" in text or name == "in_process.py"
    }
    for simulated in ("routing.py", "forecast.py"):  # no figure holds a time of this machine
        del timed[simulated]
    assert [name for name, text in timed.items() if "machine.describe()" not in text] == []


def test_a_distributions_python_is_not_called_slow() -> None:
    """Debian's sysconfig holds the flags of another pass than the one that made the program."""
    system = Path("/usr/bin/python3")
    if not system.exists():
        pytest.skip("the system has no Python")
    done = subprocess.run(
        [system, "-I", FILE, "--no-engine", "--no-ports", "--format", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    python = json.loads(done.stdout)[0]
    if python["status"] == FAIL:
        pytest.skip(f"the system's Python is another one: {python['finding']}")
    assert "without" not in python["finding"]
    assert python["what_to_do"] == ""


def test_too_little_disk_names_the_folders_that_may_move(tmp_path: Path) -> None:
    """Folders on one file system share its space, so their needs add up."""
    free_gb = shutil.disk_usage(tmp_path).free / 1e9
    wanted = [
        Need(str(tmp_path / "a" / "b"), free_gb * 0.6, "SETTING_A"),
        Need(str(tmp_path), free_gb * 0.6, "TMPDIR"),
    ]
    check = preflight.disk_check(wanted)
    assert (check.status, check.check) == (FAIL, "disk")
    assert "SETTING_A or TMPDIR" in check.what_to_do
    assert preflight.disk_check(wanted[:1]).status == OK


def test_a_folder_that_cannot_be_made_is_found_before_anything_is_downloaded(
    tmp_path: Path,
) -> None:
    """`up` ended with a traceback's words, as a fault of its own."""
    (tmp_path / "file").touch()
    check = preflight.disk_check([Need(str(tmp_path / "file" / "home"), 0.0, "TOLLGATE_HOME")])
    assert (check.status, check.check) == (FAIL, "disk")
    assert f"{tmp_path / 'file'} is a file" in check.finding
    assert "choose another folder: TOLLGATE_HOME" in check.what_to_do


def test_a_folder_of_somebody_else_is_found_before_anything_is_downloaded(tmp_path: Path) -> None:
    """Root may write anywhere, so an ordinary user asks."""
    tmp_path.chmod(0o555)
    program = (
        "import os; from engine import preflight\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        f"print(preflight.why_not_writable({str(tmp_path / 'home')!r}))"
    )
    asked = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "this user may not write to" in asked.stdout, asked.stderr


@pytest.mark.parametrize(("gigabytes", "status"), [(2.0, FAIL), (3.5, WARN), (8.0, OK)])
def test_memory_is_compared_with_the_measured_need(gigabytes: float, status: str) -> None:
    """Less ends in a kill by the kernel, minutes later and without a word."""
    assert preflight.memory_check(round(gigabytes * 1e9)).status == status


def test_unreadable_facts_are_no_failure() -> None:
    """A machine whose memory cannot be read may be large enough."""
    assert preflight.memory_check(None) == PreflightCheck(OK, "memory", "", "")
