"""Adds Ray to the engine's environment, from a hash-pinned lock of the packages that it lacks.

One environment on every machine holds one vLLM and one Ray, so versions cannot differ by the way an
engine was started. The lock changes no package that vLLM came with: `lock.sh`.
"""

from pathlib import Path

from engine import environment
from engine import home as homes
from engine.environment import LOCKED_PYTHONS, Device
from engine.errors import UsageError
from engine.home import EngineHome
from engine.pip_output import PipOutput
from engine.progress import StageProgress

STAMP = "ray.stamp.json"
"""Lies inside the environment, so that it goes when the environment is made again."""

IMPORTS = "import ray.dashboard.agent, ray.serve.llm"
"""Proves the installation, and writes the bytecode of Ray's agent: without it the first `ray start`
on a busy machine gave up waiting for the agent's port after 15 s (seen 2026-11-26).
"""

DISK_BYTES = 700_000_000
"""Ray 2.60.0 and its dependencies, unpacked; measured 2026-11-26."""


def has_ray(home: EngineHome) -> bool:
    """Return True if the environment is current and holds the Ray of a current lock."""
    device = environment.installed_device(home)
    if device is None:
        return False
    known = {homes.sha256_of(ray_lock(device, python)) for python in LOCKED_PYTHONS}
    return homes.read_stamp(home.venv / STAMP).get("lock_sha256") in known


def ray_lock(device: Device, python: str) -> Path:
    """Return the path of Ray's lock file for a device and a Python such as "3.11"."""
    return homes.PACKAGE / "locks" / f"ray-{device}-{python}.lock"


def add_ray(home: EngineHome, progress: StageProgress) -> None:
    """Install Ray into the engine's environment, which must be complete; do nothing if it is there.

    Raises: EngineError: pip failed. UsageError: the environment is absent, or the disk is full.
    """
    if has_ray(home):
        progress.say("done", f"Ray is in {home.venv}.")
        return
    python = homes.read_stamp(home.venv_stamp).get("python")
    device = environment.installed_device(home)
    if device is None or python not in LOCKED_PYTHONS:
        raise UsageError(f"There is no complete engine environment in {home.venv}.")
    with homes.exclusive(
        home.root / "setup.lock", on_wait=lambda: environment.say_wait(home, progress)
    ):
        homes.require_free(home.root, DISK_BYTES, setting="TOLLGATE_ENGINE_HOME")
        lock = ray_lock(device, python)
        progress.say("packages", "Adding Ray Serve LLM (0.2 GB to download).")
        # Progress counts the packages of the whole environment, so those of vLLM are done already.
        there = _package_count(environment.STACKS[device].lock(python))
        environment.pip_install(
            home,
            ["-r", str(lock)],
            PipOutput(collected=there),
            total=there + _package_count(lock),
            progress=progress,
        )
        progress.say("check", "Importing Ray Serve LLM.")
        environment.run_or_raise(
            [str(home.python), "-I", "-c", IMPORTS], "Ray is installed but cannot be imported"
        )
        homes.write_stamp(home.venv / STAMP, {"lock_sha256": homes.sha256_of(lock)})
    progress.say("done", f"Ray is in {home.venv} ({progress.elapsed_s:.0f} s).")


def _package_count(lock: Path) -> int:
    """Return the number of packages that a lock file pins."""
    return environment.package_count(lock.read_text(encoding="utf-8"))
