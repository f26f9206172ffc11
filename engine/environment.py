"""Creates the engine's virtual environment, or keeps a current one: finds a Python, chooses CPU or
GPU packages, and installs a hash-pinned lock with pip.

The environment is trusted only if its stamp names the lock it was made from; otherwise it is
deleted and made again. Dependencies are not resolved here: a lock is the complete closure, compiled
by `lock.sh`.
"""

import glob
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine import home as homes
from engine.children import start_bound
from engine.errors import EngineError, UsageError
from engine.home import EngineHome
from engine.pip_output import PipOutput
from engine.progress import StageProgress

Device = Literal["cpu", "gpu"]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LOCKED_PYTHONS = ("3.13", "3.12", "3.11")
"""Each has its own lock, with the hashes of its own wheels of torch.

The first that is installed is taken.
"""

PYTHON_PROBE = "import ensurepip, sys, venv; print('{}.{}'.format(*sys.version_info[:2]))"
PYTHON_PROBE_LIMIT_S = 20.0
POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One installable set of packages; CPU figures measured 2026-11-21, GPU figures estimated."""

    device: Device
    download_gb: float
    disk_gb: float
    minutes: float

    def lock(self, python: str) -> Path:
        """Return the path of the stack's lock file for a Python such as "3.11"."""
        return homes.PACKAGE / "locks" / f"{self.device}-{python}.lock"

    def locks_sha256(self) -> set[str]:
        """Return the digests of the stack's lock files, one for each Python that has one."""
        return {homes.sha256_of(self.lock(python)) for python in LOCKED_PYTHONS}


STACKS: Mapping[Device, Stack] = {
    "cpu": Stack(device="cpu", download_gb=0.6, disk_gb=2.3, minutes=2),
    "gpu": Stack(device="gpu", download_gb=4.5, disk_gb=11, minutes=10),
}


def detect_device(asked: Literal["auto", "cpu", "gpu"]) -> Device:
    """Return the requested device; `auto` is the GPU if `nvidia-smi` finds one, else the CPU."""
    if asked != "auto":
        return asked
    argv = ["nvidia-smi", "--list-gpus"]
    try:
        found = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "gpu" if found.returncode == 0 and "GPU" in found.stdout else "cpu"


def installed_device(home: EngineHome) -> Device | None:
    """Return the device the environment was made for, or None if no complete and current one
    exists.
    """
    stamp = homes.read_stamp(home.venv_stamp)
    for device, stack in STACKS.items():
        is_current = (
            stamp.get("device") == device and stamp.get("lock_sha256") in stack.locks_sha256()
        )
        if is_current and home.python.exists():
            return device
    return None


def set_up(home: EngineHome, device: Device, progress: StageProgress) -> None:
    """Create the engine's virtual environment, or keep it if it is complete and current.

    Raises: EngineError: pip or the interpreter failed. UsageError: this machine cannot hold it.
    """
    if installed_device(home) == device:
        progress.say("done", f"Engine environment is ready in {home.venv}.")
        return
    python = find_python(os.environ)
    homes.require_writable(home.root)
    # The second of two setups waits here, and then finds the work done.
    with homes.exclusive(home.root / "setup.lock", on_wait=lambda: say_wait(home, progress)):
        if installed_device(home) != device:
            progress.say("start", _announcement(STACKS[device], home))
            _build_environment(home, STACKS[device], python=python, progress=progress)
    progress.say(
        "done", f"Engine environment is ready in {home.venv} ({progress.elapsed_s:.0f} s)."
    )


def say_wait(home: EngineHome, progress: StageProgress) -> None:
    """Report that another setup holds the engine's folder."""
    progress.say("waiting", f"Another setup works in {home.root}. Waiting until it ends.")


def _announcement(stack: Stack, home: EngineHome) -> str:
    """Return the message that is printed before an installation: its size and usual duration."""
    return (
        f"Installing vLLM for {stack.device.upper()} into {home.venv}: {stack.download_gb:g} GB to "
        f"download, {stack.disk_gb:g} GB of disk, about {stack.minutes:g} minutes."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python that a lock was compiled for."""

    path: str
    version: str
    """Such as "3.11"."""


def find_python(environment: Mapping[str, str], *, running: str = sys.executable) -> Interpreter:
    """Return an interpreter that a lock exists for: `TOLLGATE_ENGINE_PYTHON`, else the running one,
    else one of PATH or pyenv.

    Raises:
        UsageError: this is not Linux on x86-64, or no such interpreter is installed.
    """
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise UsageError(
            "vLLM's wheels exist for Linux on x86-64 only. Run an engine elsewhere and name its "
            "address in the policy; see docs/guides/engine.md."
        )
    known = f"{', '.join(reversed(LOCKED_PYTHONS[1:]))} or {LOCKED_PYTHONS[0]}"
    if own := environment.get("TOLLGATE_ENGINE_PYTHON"):
        version = _version_of(own)
        if version not in LOCKED_PYTHONS:
            raise UsageError(
                f"TOLLGATE_ENGINE_PYTHON={own} is "
                f"{f'Python {version}' if version else 'no working Python'}. The engine needs "
                f"Python {known} with its venv module."
            )
        return Interpreter(path=own, version=version)
    for path in (running, *_installed_pythons(environment)):
        version = _version_of(path)
        if version in LOCKED_PYTHONS:
            return Interpreter(path=path, version=version)
    raise UsageError(
        f"The engine needs Python {known} with its venv module. Install one, or set "
        "TOLLGATE_ENGINE_PYTHON to its path."
    )


def _installed_pythons(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the interpreters to try: those on PATH first, because pyenv's are often not on it."""
    for version in LOCKED_PYTHONS:
        if found := shutil.which(f"python{version}", path=environment.get("PATH")):
            yield found
    # `glob` passes over folders that this user may not read, as of the user before `su`.
    pyenv = glob.escape(os.path.expanduser(environment.get("PYENV_ROOT") or "~/.pyenv"))
    for version in LOCKED_PYTHONS:
        yield from sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python{version}"))


def _version_of(path: str) -> str | None:
    """Return the version of a Python that can make environments; None if it cannot, or is a shim
    without a target.
    """
    argv = [path, "-I", "-c", PYTHON_PROBE]
    try:
        probe = start_bound(argv, os.environ, stdout=subprocess.PIPE)
        output, _ = probe.communicate(timeout=PYTHON_PROBE_LIMIT_S)
    except OSError:
        return None
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return None
    return output.split()[-1] if probe.returncode == 0 else None


def _build_environment(
    home: EngineHome, stack: Stack, *, python: Interpreter, progress: StageProgress
) -> None:
    """Create a new virtual environment for the engine, install the lock and record it in the
    stamp.
    """
    home.venv_stamp.unlink(missing_ok=True)
    if home.venv.exists():
        progress.say("python", "Removing an environment that is incomplete or out of date.")
        shutil.rmtree(home.venv)
    homes.require_free(home.root, round(stack.disk_gb * 1.2e9), setting="TOLLGATE_ENGINE_HOME")
    homes.require_free(
        Path(tempfile.gettempdir()), round(stack.download_gb * 1.2e9), setting="TMPDIR"
    )
    lock = stack.lock(python.version)
    progress.say("python", f"Creating an environment of Python {python.version} ({python.path}).")
    run_or_raise(
        [python.path, "-I", "-m", "venv", str(home.venv)], "Python could not create an environment"
    )
    _install_packages(home, stack.device, lock, progress)
    progress.say("check", "Importing torch and transformers.")
    run_or_raise(
        [str(home.python), "-I", "-c", "import torch, transformers"],
        "The packages are installed but cannot be imported",
    )
    homes.write_stamp(
        home.venv_stamp,
        {"device": stack.device, "python": python.version, "lock_sha256": homes.sha256_of(lock)},
    )


def run_or_raise(argv: list[str], complaint: str) -> None:
    """Run a command; raise `EngineError` with the end of its output if it fails."""
    child = start_bound(argv, os.environ, stdout=subprocess.PIPE)
    output, _ = child.communicate()
    if child.returncode != 0:
        raise EngineError(
            f"{complaint}:\n{_last_lines(output)}\nMend that and run the setup again."
        )


def _last_lines(text: str, count: int = 5) -> str:
    """Return the last lines of a program's output, for an error message."""
    return "\n".join(text.strip().splitlines()[-count:])


def package_count(lock_text: str) -> int:
    """Return the number of packages that a lock file pins."""
    return len(re.findall(r"^[a-z0-9][^\s=]*==", lock_text, flags=re.MULTILINE | re.IGNORECASE))


def _install_packages(
    home: EngineHome, device: Device, lock: Path, progress: StageProgress
) -> None:
    """Install a lock's packages with pip, the CPU build of torch from its own index."""
    text = lock.read_text(encoding="utf-8")
    output, total = PipOutput(), package_count(text)
    if device == "cpu" and not _has_torch(home, lock):
        progress.say("packages", f"The CPU build of torch is taken from {TORCH_CPU_INDEX}.")
        # Separately, because pip asks every index for every package: 148 more queries, and retries
        # if one is away.
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as torch:
            torch.write(requirement_of("torch", text))
            torch.flush()
            arguments = ["--index-url", TORCH_CPU_INDEX, "-r", torch.name]
            pip_install(home, arguments, output, total=total, progress=progress)
            output = output.of_next_run()
    pip_install(home, ["-r", str(lock)], output, total=total, progress=progress)


def requirement_of(name: str, lock_text: str) -> str:
    """Return one package's lines of a lock file: its version and its hashes."""
    found = re.search(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n", lock_text, flags=re.MULTILINE)
    assert found is not None
    return found[0]


def pip_install(
    home: EngineHome,
    arguments: Sequence[str],
    output: PipOutput,
    *,
    total: int,
    progress: StageProgress,
) -> None:
    """Run `pip install` with verified hashes, read its lines into `output`, and report the
    progress. Raises `EngineError` if it fails.
    """
    argv = [
        *(str(home.python), "-I", "-u", "-m"),
        "pip",
        "install",
        "--no-deps",
        "--require-hashes",
        "--no-compile",
    ]
    argv += ["--disable-pip-version-check", "--progress-bar", "off", *arguments]
    pip = start_bound(argv, os.environ, stdout=subprocess.PIPE)
    _follow_pip(pip, home, output, total=total, progress=progress)
    if pip.returncode != 0:
        raise EngineError(
            f"pip could not install the packages:\n{output.errors()}\n"
            "Check the network and pip's index settings (pip config list), then run the setup "
            "again."
        )


def _has_torch(home: EngineHome, lock: Path) -> bool:
    """Return True if the package indexes that pip is configured for have the torch that the lock
    pins.
    """
    pinned = re.search(r"^torch==(\S+)", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert pinned is not None
    argv = [
        *(str(home.python), "-I", "-m"),
        "pip",
        "index",
        "versions",
        "torch",
        "--disable-pip-version-check",
    ]
    output, _ = start_bound(argv, os.environ, stdout=subprocess.PIPE).communicate()
    return pinned[1] in re.split(r"[\s,()]+", output)


def _follow_pip(
    pip: subprocess.Popen[str],
    home: EngineHome,
    output: PipOutput,
    *,
    total: int,
    progress: StageProgress,
) -> None:
    """Report pip's progress until it ends; it is silent while it unpacks, so packages are
    counted.
    """
    assert pip.stdout is not None
    while True:
        is_readable, _, _ = select.select([pip.stdout], [], [], POLL_S)
        if is_readable:
            line = pip.stdout.readline()
            if not line:
                break
            output.feed(line)
        _report_pip(output, home, total=total, progress=progress)
    pip.wait()


def _report_pip(
    output: PipOutput, home: EngineHome, *, total: int, progress: StageProgress
) -> None:
    """Report how many packages pip has downloaded and installed, and the time left.

    A package is two steps of one count: a count for each would fall when the second begins.
    """
    installed = len(list(home.venv.glob("lib/python*/site-packages/*.dist-info")))
    collected, installed = min(output.collected, total), min(installed, total)
    done, steps = collected + installed, 2 * total
    left_s = progress.elapsed_s * (steps / done - 1) if done > 0.05 * steps else None
    if output.is_installing:
        step, message = "install", f"Installing packages ({installed} of {total})"
    else:
        megabytes = f"{output.downloaded_bytes / 1e6:.0f} MB"
        step = "download"
        message = f"Fetching packages ({collected} of {total}, {megabytes}, {output.current})"
    progress.advance(step, message, done=done, total=steps, unit="steps", left_s=left_s)


def main() -> int:
    """Run `engine setup` for `make test`, before the packages of other commands are installed."""
    progress = StageProgress(stage="setup", format="text")
    try:
        set_up(homes.engine_home(os.environ), detect_device("auto"), progress)
    except EngineError as error:
        print(f"\n{error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
