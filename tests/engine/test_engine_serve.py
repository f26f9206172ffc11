"""`python -m engine serve` with a small real server in vLLM's place: readiness, restarts, drains,
and no process left behind.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import engine_factories
import pytest
import yaml
from engine_factories import REPOSITORY, free_port, is_alive, python_variables

from engine.supervisor import LOADING_LOOK_S, MOST_LIKE_ENDS

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="looks for processes in /proc, which Linux alone has"
)
PATIENCE_S = 120.0  # a busy machine starts an interpreter in seconds
STAND_IN = REPOSITORY / "tests" / "engine" / "stand_in_vllm.py"
SERVE = (sys.executable, "-m", "engine", "serve", "--profile", "cpu")


def eventually(is_true: Callable[[], bool]) -> bool:
    return engine_factories.eventually(is_true, deadline_s=PATIENCE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running `serve`, with the folder that steers its stand-in."""

    process: subprocess.Popen[bytes]
    folder: Path
    port: int

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()

    @property
    def starts(self) -> list[list[int]]:
        """The pids of each start: the leader's and its workers'."""
        log = self.folder / "starts"
        lines = log.read_text().splitlines() if log.exists() else []
        return [[int(pid) for pid in line.split()] for line in lines]

    @property
    def pids(self) -> list[int]:
        return [pid for start in self.starts for pid in start]

    def is_ready(self, times: int = 1) -> bool:
        return self.errors.count("The engine is ready") >= times

    def has_ended(self) -> bool:
        """Whether nothing of the engine runs any more."""
        return not any(map(is_alive, self.pids))

    def terminate(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE_S)

    def ask(self, prompt: str) -> int:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps({"prompt": prompt}).encode(),
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            status: int = answer.status
            return status


Start = Callable[..., Served]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start `serve`; the files named first are made before."""
    begun: list[Served] = []

    def start_one(*files: str, arguments: tuple[str, ...] = (), log: int | None = None) -> Served:
        model = tmp_path / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        for name in files:
            (tmp_path / name).touch()
        port = free_port()
        variables = {
            "TOLLGATE_ENGINE_VLLM": str(STAND_IN),
            "TOLLGATE_ENGINE_HOME": str(tmp_path / "absent"),
            "STAND_IN": str(tmp_path),
        }
        with (tmp_path / "out").open("wb") as out, (tmp_path / "errors").open("wb") as errors:
            process = subprocess.Popen(
                [*SERVE, "--model", str(model), "--port", str(port), *arguments],
                cwd=REPOSITORY,
                env=python_variables() | variables,
                stdout=out,
                stderr=errors if log is None else log,
            )
        begun.append(Served(process=process, folder=tmp_path, port=port))
        return begun[-1]

    yield start_one
    for served in begun:
        served.process.kill()
        served.process.wait()
        assert eventually(served.has_ended)


def test_the_deployment_block_comes_with_the_first_token_and_nothing_else_is_on_standard_output(
    start: Start,
) -> None:
    """A policy that got the block of a hung engine would send requests to it."""
    served = start("hung")
    assert eventually(lambda: served.errors.count("stand-in: a log line") >= 3)  # three probes
    with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/health", timeout=5) as health:
        assert health.status == 200
    assert (served.out, served.is_ready()) == ("", False)
    (served.folder / "hung").unlink()
    assert eventually(lambda: served.out != "")
    assert yaml.safe_load(served.out) == [
        {
            "name": "model",
            "provider": "vllm",
            "base_url": f"http://127.0.0.1:{served.port}/v1",
            "model": "model",
            "region": "unknown",
            "context_window": 2048,
            "capabilities": ["json_schema"],
        }
    ]
    assert "stand-in" not in served.out


def test_the_program_gets_vllms_arguments(start: Start) -> None:
    """A wrapper around vLLM is run as vLLM is: `FILE serve MODEL --port …`."""
    served = start()
    assert eventually(served.is_ready)
    program, *arguments = json.loads((served.folder / "arguments").read_text())
    assert program == str(STAND_IN)
    assert arguments[:2] == ["serve", str(served.folder / "model")]
    assert arguments[arguments.index("--port") + 1] == str(served.port)
    assert "--max-num-seqs" in arguments


def test_the_probe_sends_the_key_and_the_block_names_its_file(start: Start, tmp_path: Path) -> None:
    """Without the key the probe would never be answered; in the block the key would be read."""
    (tmp_path / "key").write_text("sk-engine")
    served = start(arguments=("--api-key-file", str(tmp_path / "key")))
    assert eventually(lambda: served.out != "")
    assert yaml.safe_load(served.out)[0]["api_key"] == f"file:{tmp_path / 'key'}"
    assert "sk-engine" not in served.out + served.errors


def test_a_crash_starts_it_again_with_growing_waits_that_a_ready_engine_resets(
    start: Start,
) -> None:
    """An engine that cannot start must not take the machine; one that crashed once must be back."""
    served = start("broken")
    assert eventually(lambda: len(served.starts) >= 3)
    assert "ended by itself (exit 3). Starting it again in 0.5 s" in served.errors
    assert "Starting it again in 1 s" in served.errors
    assert served.out == ""
    (served.folder / "broken").unlink()
    assert eventually(served.is_ready)
    before = len(served.starts)
    os.kill(served.starts[-1][0], signal.SIGKILL)
    assert eventually(lambda: len(served.starts) == before + 1)
    assert "was killed (signal 9). Starting it again in 0.5 s" in served.errors
    assert eventually(lambda: served.is_ready(times=2))
    assert len(yaml.safe_load(served.out)) == 1  # the list of one, not a second one behind it


@pytest.mark.parametrize("place", [0, 1, 2], ids=["leader", "first worker", "last worker"])
def test_a_killed_process_ends_the_group_and_starts_it_again(start: Start, place: int) -> None:
    """A worker that is gone is the end of all answers, though the leader goes on."""
    served = start()
    assert eventually(served.is_ready)
    first = served.starts[0]
    os.kill(first[place], signal.SIGKILL)
    assert eventually(lambda: served.is_ready(times=2))
    assert not any(map(is_alive, first))
    assert all(map(is_alive, served.starts[1]))
    reason = "was killed (signal 9)" if place == 0 else f"lost its process {first[place]}"
    assert reason in served.errors
    assert served.terminate() == 0
    assert eventually(served.has_ended)


def test_a_worker_killed_while_the_engine_loads_is_noticed(start: Start) -> None:
    """The out-of-memory killer comes while weights load, and the leader may wait for ever for the
    worker that is gone.
    """
    served = start("slow")
    assert eventually(lambda: len(served.starts) == 1)
    first = served.starts[0]
    time.sleep(3 * LOADING_LOOK_S)  # the supervisor has seen it, on a busy machine too
    os.kill(first[2], signal.SIGKILL)
    assert eventually(lambda: len(served.starts) == 2)
    assert f"lost its process {first[2]}" in served.errors
    assert "while it loaded. Starting it again in 0.5 s" in served.errors
    (served.folder / "slow").unlink()
    assert eventually(served.is_ready)
    assert not any(map(is_alive, first))


@pytest.mark.parametrize("file", [None, "slow"], ids=["ready", "starting"])
def test_a_killed_supervisor_leaves_no_process(start: Start, file: str | None) -> None:
    """The kernel may kill it, when memory is short."""
    served = start(*([file] if file else []))
    assert eventually(lambda: bool(served.starts) and (file is not None or served.is_ready()))
    served.process.kill()
    served.process.wait()
    assert eventually(served.has_ended)


def test_a_killed_guard_is_replaced(start: Start) -> None:
    """Without its guard, a supervisor that is killed later would leave the workers behind."""
    served = start()
    assert eventually(served.is_ready)
    first = guards_of(served)
    assert len(first) == 1
    os.kill(first[0], signal.SIGKILL)
    assert eventually(lambda: any(guard not in first for guard in guards_of(served)))
    served.process.kill()
    served.process.wait()
    assert eventually(served.has_ended)


def guards_of(served: Served) -> list[int]:
    """Return the pids of the running guards."""
    pid = served.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if is_alive(int(child)) and b"guard.py" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_sigterm_lets_a_running_request_end(start: Start) -> None:
    """A drain that cuts answers makes callers pay for half of one."""
    served = start()
    assert eventually(served.is_ready)
    statuses: list[int] = []
    asking = threading.Thread(target=lambda: statuses.append(served.ask("wait")))
    asking.start()
    assert eventually(lambda: (served.folder / "waiting").exists())
    served.process.send_signal(signal.SIGTERM)
    (served.folder / "release").touch()
    assert served.process.wait(timeout=PATIENCE_S) == 0
    asking.join()
    assert statuses == [200]
    assert (served.folder / "drained").exists()
    assert eventually(served.has_ended)


def test_sigterm_while_it_starts_exits_0(start: Start) -> None:
    """A roll-out that is cancelled is no failure."""
    served = start("slow")
    assert eventually(lambda: bool(served.starts))
    assert served.terminate() == 0
    assert served.out == ""
    assert eventually(served.has_ended)


def test_sigterm_while_it_waits_to_restart_exits_0_and_starts_nothing(start: Start) -> None:
    """The wait is up to a minute, longer than a service manager gives a stop."""
    served = start("broken")
    assert eventually(lambda: "Starting it again in 2 s" in served.errors)
    before = len(served.starts)
    assert served.terminate() == 0
    assert len(served.starts) == before
    assert eventually(served.has_ended)


def test_a_log_reader_that_has_ended_does_not_end_the_engine(start: Start) -> None:
    """`serve 2>&1 | tee log`, and tee is gone: the next message ended the supervisor, not the log
    alone. A full disk is the same.
    """
    reader, writer = os.pipe()
    served = start("broken", log=writer)
    os.close(reader)
    os.close(writer)
    assert eventually(lambda: len(served.starts) >= 3)
    assert served.terminate() == 0


def test_a_second_serve_of_one_address_ends_at_once(start: Start, tmp_path: Path) -> None:
    """vLLM listens only after it has loaded. Until then both could bind the address, and the second
    one would take the first one's answer for its own: ready, with its block, and then it dies.
    """
    served = start("slow")
    assert eventually(lambda: len(served.starts) == 1)
    second = subprocess.run(
        [*SERVE, "--model", str(tmp_path / "model"), "--port", str(served.port)],
        cwd=REPOSITORY,
        env=python_variables() | {"TOLLGATE_ENGINE_VLLM": str(STAND_IN), "STAND_IN": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (second.returncode, second.stdout, len(served.starts)) == (2, "", 1)
    assert f"127.0.0.1:{served.port} is in use" in second.stderr


def test_an_address_taken_while_it_waits_is_named_and_nothing_is_started(start: Start) -> None:
    """A server that took it may answer the probe as the same model; the engine was called ready."""
    served = start("broken")
    assert eventually(lambda: "Starting it again in 0.5 s" in served.errors)
    with other_engine(served.port):
        (served.folder / "broken").unlink()
        assert eventually(lambda: "is in use" in served.errors)
        begun = len(served.starts)
        assert eventually(lambda: served.errors.count("is in use") >= 2)
        assert (len(served.starts), served.is_ready(), served.out) == (begun, False, "")
    assert eventually(served.is_ready)


@contextmanager
def other_engine(port: int) -> Iterator[None]:
    """Answer every request at a port with one token, as soon as the port is free."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            body = b'{"choices": [{"text": "1"}]}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def test_a_model_that_is_gone_while_it_waits_is_named(start: Start) -> None:
    """vLLM would look for a folder that is absent on the model hub, and complain about its name."""
    served = start("broken")
    model, aside = served.folder / "model", served.folder / "aside"
    assert eventually(lambda: "Starting it again in 0.5 s" in served.errors)
    model.rename(aside)
    assert eventually(lambda: f"The model's folder {model} has no config.json" in served.errors)
    (served.folder / "broken").unlink()
    aside.rename(model)
    assert eventually(served.is_ready)


def test_must_start_ends_with_the_engines_exit_code(start: Start) -> None:
    """`tollgate up` shows the reason at once, instead of after minutes of attempts."""
    served = start("broken", arguments=("--must-start",))
    assert served.process.wait(timeout=PATIENCE_S) == 3
    assert len(served.starts) == 1


@pytest.mark.parametrize(("code", "of_serve"), [(3, 3), (0, 1)])
def test_an_engine_that_never_starts_ends_after_five_like_ends(
    start: Start, tmp_path: Path, code: int, of_serve: int
) -> None:
    """A setting that vLLM refuses was tried without end, each time for as long as it loads; so was
    one with which it prints something and ends.
    """
    (tmp_path / "broken").write_text(str(code))
    served = start()
    assert served.process.wait(timeout=PATIENCE_S) == of_serve
    assert len(served.starts) == MOST_LIKE_ENDS
    assert f"ended by itself (exit {code}) 5 times, never ready" in served.errors
    assert (served.out, served.has_ended()) == ("", True)


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
@pytest.mark.parametrize("key", ["reasoning_parser", "tool_call_parser"])
def test_an_unknown_parser_starts_nothing(
    start: Start, tmp_path: Path, key: str, arguments: tuple[str, ...]
) -> None:
    """vLLM answers it with a KeyError, after half a minute, at each start."""
    (tmp_path / "mine.yaml").write_text(f"{key}: hermez\n")
    served = start(arguments=("--profile", str(tmp_path / "mine.yaml"), *arguments))
    assert served.process.wait(timeout=PATIENCE_S) == 1
    assert f"{key}: hermez: vLLM has no such parser" in served.errors
    assert served.starts == []


def test_an_impossible_profile_starts_nothing(start: Start, tmp_path: Path) -> None:
    """Half a configuration served is worse than none."""
    (tmp_path / "mine.yaml").write_text("max_num_seqs: 0\nkv_cache_dtyp: fp8\n")
    served = start(arguments=("--profile", str(tmp_path / "mine.yaml")))
    assert served.process.wait(timeout=PATIENCE_S) == 1
    assert "max_num_seqs: 0: must be a whole number above 0" in served.errors
    assert "kv_cache_dtyp: fp8: no such key" in served.errors
    assert (served.out, served.starts) == ("", [])


def test_a_dry_run_prints_the_command_and_starts_nothing(start: Start) -> None:
    """It is read by programs: one JSON object on standard output."""
    served = start(arguments=("--dry-run",))
    assert served.process.wait(timeout=PATIENCE_S) == 0
    plan = json.loads(served.out)
    assert (plan["profile"], plan["refused"], served.starts) == ("cpu", [], [])
    assert plan["command"][:3] == [str(STAND_IN), "serve", str(served.folder / "model")]


def test_a_dry_run_has_the_formats_of_every_command(start: Start, tmp_path: Path) -> None:
    """DESIGN: JSON for programs, a table for people, CSV for a sheet; JSON stays the default."""
    (tmp_path / "mine.yaml").write_text("max_num_seqs: 0\n")
    asked = ("--profile", str(tmp_path / "mine.yaml"), "--dry-run", "--format")
    served = start(arguments=(*asked, "csv"))
    assert served.process.wait(timeout=PATIENCE_S) == 1
    head, row = served.out.splitlines()
    assert head == "key,value,reason"
    assert row.startswith("max_num_seqs,0,")


def test_a_table_of_a_dry_run_shows_the_command(start: Start) -> None:
    """It can be pasted into a shell."""
    served = start(arguments=("--dry-run", "--format", "table"))
    assert served.process.wait(timeout=PATIENCE_S) == 0
    assert f"command  {STAND_IN} serve {served.folder / 'model'} " in served.out
    assert "Nothing is refused." in served.out


@pytest.mark.parametrize("profile", [(), ("--profile", "cpu"), ("--profile", "throughput")])
def test_the_shipped_model_keeps_its_parsers(start: Start, profile: tuple[str, ...]) -> None:
    """A profile that names none took them away: its thinking was a part of each answer."""
    served = start(arguments=("--model", "tiny", *profile, "--dry-run"))
    assert served.process.wait(timeout=PATIENCE_S) == 0
    command = json.loads(served.out)["command"]
    assert command[command.index("--reasoning-parser") + 1] == "qwen3"
    assert command[command.index("--tool-call-parser") + 1] == "hermes"


def test_a_program_that_cannot_be_run_is_bad_usage(start: Start, tmp_path: Path) -> None:
    """The variable is named, because the command line does not show it."""
    result = subprocess.run(
        [sys.executable, "-m", "engine", "serve", "--profile", "cpu"],
        cwd=REPOSITORY,
        env=python_variables() | {"TOLLGATE_ENGINE_VLLM": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert "TOLLGATE_ENGINE_VLLM" in result.stderr
