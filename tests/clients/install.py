"""Installs the clients outside the repository: each Python client into a virtual environment of its
own, all Node clients into one folder. What is installed already stays.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.clients.matrix import Client

HERE = Path(__file__).parent
DRIVERS = HERE / "drivers"
NODE = "node"
INSTALL_WITHIN_S = 900.0
# The release whose source shows the requests that `command_lines` replays.
SHOWN_VERSIONS = {"open-webui": "0.12.2"}


class NotInstalled(Exception):
    """A client that could not be installed, with the installer's last words."""


def home() -> Path:
    """Return the folder of all installed clients."""
    default = Path.home() / ".cache" / "tollgate-clients"
    return Path(os.environ.get("TOLLGATE_CLIENTS_HOME") or default)


def python_of(environment: str) -> Path:
    """Return the interpreter of a Python client."""
    return home() / "python" / environment / "bin" / "python"


def node_of() -> Path:
    """Return the interpreter of the Node clients."""
    return node_command("node")


def node_command(name: str) -> Path:
    """Return a command of the Node folder."""
    return home() / NODE / "node_modules" / ".bin" / name


@cache
def install(environment: str) -> None:
    """Install a client's environment unless it is there. Raises `NotInstalled`."""
    wanted = DRIVERS / "package.json" if environment == NODE else _requirements(environment)
    folder = home() / NODE if environment == NODE else home() / "python" / environment
    stamp = folder / "installed.txt"
    if not (stamp.exists() and stamp.read_text() == wanted.read_text()):
        stamp.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        print(f"Installing {environment} into {folder}", file=sys.stderr, flush=True)
        for command in _steps(environment, folder, wanted):
            _run(command, folder)
        stamp.write_text(wanted.read_text())
    if environment == NODE:
        for driver in DRIVERS.glob("*.mjs"):  # Node looks for packages beside the program
            shutil.copy(driver, folder)


def version_of(client: Client) -> str:
    """Return the installed version of a client."""
    if client.name in SHOWN_VERSIONS:
        return f"{SHOWN_VERSIONS[client.name]} (source)"
    if client.environment is None:
        done = subprocess.run(
            [client.name, "--version"], capture_output=True, text=True, check=True
        )
        return done.stdout.split()[1]
    if client.environment == NODE:
        package = home() / NODE / "node_modules" / str(client.package) / "package.json"
        return str(json.loads(package.read_text())["version"])
    pinned = dict(
        line.split("==") for line in _requirements(client.environment).read_text().split() if line
    )
    return pinned[str(client.package)]


def _requirements(environment: str) -> Path:
    return HERE / "requirements" / f"{environment}.txt"


def _steps(environment: str, folder: Path, wanted: Path) -> list[list[str]]:
    """Return the commands that install an environment."""
    if environment == NODE:
        shutil.copy(wanted, folder / "package.json")
        return [["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]]
    pip = [str(python_of(environment)), "-m", "pip", "install", "--disable-pip-version-check"]
    return [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "--quiet", "--no-compile", "--no-deps", "--requirement", str(wanted)],
    ]


def _run(command: list[str], folder: Path) -> None:
    """Run one step. Raises `NotInstalled` with its last lines if it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=INSTALL_WITHIN_S,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-5:]
        raise NotInstalled(" / ".join(last))
