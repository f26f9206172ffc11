"""`python -m engine` for its users: real processes, exit codes, and the content of each stream."""

import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_factories import REPOSITORY, a_home, free_port, python_variables

from engine import model_making
from engine.home import size_bytes_of, write_stamp
from engine.progress import StageProgress, duration_text


def engine(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "engine", *arguments],
        cwd=REPOSITORY,
        env=python_variables() | {"TOLLGATE_ENGINE_HOME": str(home)} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class Engine(http.server.BaseHTTPRequestHandler):
    """Plays an engine whose `/health` answers; `is_writing` says whether a token comes."""

    is_writing = True
    offered = "/v1/completions"

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path != self.offered:
            self.answer(404, {"error": {"message": "not found"}})
        elif not self.is_writing:
            self.answer(503, {"error": {"message": "no core"}})
        else:
            self.answer(200, {"choices": [{"text": "1"}]})

    def answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Keep the test's output clean."""


class HungEngine(Engine):
    """An engine whose core is dead, though `/health` answers 200."""

    is_writing = False


class ChatEngine(Engine):
    """An engine that offers chat alone."""

    offered = "/v1/chat/completions"


class BrokenEngine(Engine):
    """An engine that answers something that is no HTTP."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.wfile.write(b"nonsense\r\n\r\n")


@contextmanager
def listening(engine_class: type[Engine]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), engine_class)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_help_teaches_the_order_of_the_commands(tmp_path: Path) -> None:
    """It is the first thing a newcomer reads."""
    shown = engine(tmp_path, "--help").stdout
    places = [
        shown.index(f"python -m engine {command}")
        for command in ("setup", "model", "serve", "wait", "status")
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("command", [("model", "--train"), ("serve",)])
def test_commands_that_need_the_environment_say_how_to_make_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """An expected failure is one sentence on standard error, not a traceback."""
    result = engine(tmp_path, *command)
    assert (result.returncode, result.stdout) == (2, "")
    assert "python -m engine setup" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("serve", "--port", "0"), ("model", "--steps", "-1"), ()]
)
def test_bad_arguments_exit_2(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Scripts tell bad usage from failure by the code."""
    assert engine(tmp_path, *arguments).returncode == 2


def test_a_reader_that_has_had_enough_gets_no_traceback(tmp_path: Path) -> None:
    """`engine plan … | head -1` ended with one."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "engine", "plan", "--list", "models"],
        cwd=REPOSITORY,
        env=python_variables() | {"TOLLGATE_ENGINE_HOME": str(tmp_path)},
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def test_model_prints_the_path_of_the_shipped_model_and_trains_nothing(tmp_path: Path) -> None:
    """Earlier releases trained here for minutes: the same command now answers at once, with nothing
    installed.
    """
    result = engine(tmp_path / "empty", "model")
    assert (result.returncode, result.stderr) == (0, "")
    assert str(model_making.TINY) in result.stdout
    assert not (tmp_path / "empty").exists()
    refused = engine(tmp_path, "model", "--steps", "10")
    assert refused.returncode == 2
    assert "--train" in refused.stderr


def test_a_bad_port_setting_hurts_serve_alone_and_is_named(tmp_path: Path) -> None:
    """A typo in one variable must not disable `status`, which a user would run to find it."""
    assert engine(tmp_path, "status", TOLLGATE_ENGINE_PORT="abc").returncode == 0
    refused = engine(tmp_path, "serve", TOLLGATE_ENGINE_PORT="abc")
    assert refused.returncode == 2
    assert "TOLLGATE_ENGINE_PORT" in refused.stderr


def test_status_of_an_empty_home_gives_the_next_command(tmp_path: Path) -> None:
    """Nothing installed is a state, not an error."""
    shown = engine(tmp_path / "absent", "status")
    assert shown.returncode == 0
    assert "python -m engine setup" in shown.stdout
    assert "tiny, 7 MB (comes with this package)" in shown.stdout
    state = json.loads(engine(tmp_path / "absent", "status", "--json").stdout)
    assert state == {
        "home": str(tmp_path / "absent"),
        "environment": {
            "is_ready": False,
            "device": None,
            "path": str(tmp_path / "absent" / "venv"),
            "size_bytes": 0,
            "packages": {},
        },
        "models": [
            {
                "name": "tiny",
                "is_shipped": True,
                "is_hidden": False,
                "path": str(model_making.TINY),
                "size_bytes": size_bytes_of(model_making.TINY),
                "is_ready": True,
                "is_current": True,
            }
        ],
    }


def test_status_says_which_models_of_a_home_are_not_used(tmp_path: Path) -> None:
    """An upgrade leaves a trained `tiny` in the home, which the shipped one now hides."""
    home = a_home(tmp_path, model="tiny")
    write_stamp(home.models / "tiny" / model_making.STAMP, {"recipe": 1})
    shown = engine(tmp_path, "status").stdout
    assert f"not used: the shipped model has this name; remove {home.models / 'tiny'}" in shown


@pytest.mark.parametrize(("engine_class", "suffix"), [(Engine, ""), (ChatEngine, "/v1")])
def test_wait_ends_when_the_engine_answers_one_token(
    tmp_path: Path, engine_class: type[Engine], suffix: str
) -> None:
    """`tollgate up` goes on at this line."""
    with listening(engine_class) as url:
        result = engine(tmp_path, "wait", "--url", url + suffix, "--progress", "json")
    assert result.returncode == 0
    assert json.loads(result.stdout.splitlines()[-1])["step"] == "done"


@pytest.mark.parametrize(
    ("engine_class", "reason"), [(HungEngine, "HTTP 503"), (BrokenEngine, "nonsense")]
)
def test_an_engine_whose_health_alone_answers_is_not_ready(
    tmp_path: Path, engine_class: type[Engine], reason: str
) -> None:
    """vLLM says 200 there while its core is dead."""
    with listening(engine_class) as url:
        result = engine(tmp_path, "wait", "--url", url, "--timeout", "1")
    assert result.returncode == 3
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


def test_wait_gives_up_with_3_and_the_last_reason(tmp_path: Path) -> None:
    """Not found out is not the same as broken; a refused connection means the model is still
    loading.
    """
    result = engine(tmp_path, "wait", "--url", f"http://127.0.0.1:{free_port()}", "--timeout", "1")
    assert result.returncode == 3
    assert "connection refused" in result.stderr
    assert engine(tmp_path, "wait", "--url", "localhost:8001").returncode == 2


def test_json_progress_has_the_same_members_in_every_line() -> None:
    """Another program reads it; an absent member is a case it would have to know."""
    out = io.StringIO()
    progress = StageProgress(stage="setup", format="json", out=out, clock=lambda: 5.0)
    progress.say("python", "Creating")
    progress.advance("download", "Fetching", done=3, total=147, unit="packages", left_s=61.26)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {
            "stage": "setup",
            "step": "python",
            "message": "Creating",
            **dict.fromkeys(("done", "total", "unit", "left_s")),
            "elapsed_s": 0.0,
        },
        {
            "stage": "setup",
            "step": "download",
            "message": "Fetching",
            "done": 3,
            "total": 147,
            "unit": "packages",
            "elapsed_s": 0.0,
            "left_s": 61.3,
        },
    ]


def test_text_progress_into_a_file_is_a_few_plain_lines() -> None:
    """A log of 3,000 lines hides the one that matters."""
    out, now_s = io.StringIO(), iter(range(1000))
    progress = StageProgress(
        stage="model", format="text", out=out, clock=lambda: float(next(now_s))
    )
    for step in range(20):
        progress.advance("train", "Training", done=step, total=20, unit="steps", left_s=90)
    assert 2 <= len(out.getvalue().splitlines()) <= 5
    assert out.getvalue().splitlines()[0] == "Training: 0 of 20 steps, about 1 min 30 s left"


def test_durations_read_as_people_say_them() -> None:
    """ "202 s left" makes the reader divide."""
    assert (duration_text(45.2), duration_text(202)) == ("45 s", "3 min 22 s")
