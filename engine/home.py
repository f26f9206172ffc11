"""Names the engine's folder and the paths in it, reads and writes its stamps of completed work,
holds its locks, and checks free space and write access.

A stamp is written last, so a folder with one is complete. A lock is held by `flock`, so it ends
with its process.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UsageError

PACKAGE = Path(__file__).resolve().parent
SHIPPED_MODELS = PACKAGE / "models"
"""Models that come with this package, read in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHome:
    """The folder that holds everything this package makes."""

    root: Path

    @property
    def venv(self) -> Path:
        """Return the folder of the engine's virtual environment, which may not exist yet."""
        return self.root / "venv"

    @property
    def python(self) -> Path:
        """Return the path of the interpreter that has vLLM, once the environment is made."""
        return self.venv / "bin" / "python"

    @property
    def venv_stamp(self) -> Path:
        """Return the path of the file that records a complete environment."""
        return self.root / "venv.stamp.json"

    @property
    def models(self) -> Path:
        """Return the folder of the models made on this machine; the shipped ones are in the
        package.
        """
        return self.root / "models"


def engine_home(environment: Mapping[str, str]) -> EngineHome:
    """Return the engine's folder: `$TOLLGATE_ENGINE_HOME`, else `$TOLLGATE_HOME/engine`, else
    `~/.tollgate/engine`.
    """
    if own := environment.get("TOLLGATE_ENGINE_HOME"):
        return EngineHome(root=Path(own).expanduser().absolute())
    shared = environment.get("TOLLGATE_HOME") or "~/.tollgate"
    return EngineHome(root=Path(shared).expanduser().absolute() / "engine")


def read_stamp(path: Path) -> dict[str, Any]:
    """Return the content of a stamp file (JSON), empty if it is absent or broken."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(path: Path, stamp: Mapping[str, Any]) -> None:
    """Write a stamp file (JSON) in one step: a crash leaves the old one or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(dict(stamp), indent=2) + "\n", encoding="utf-8")
    draft.replace(path)


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256 as hexadecimal text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def exclusive(path: Path, *, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a lock file for the block, after waiting for another process that holds it; `on_wait` is
    called before a wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_writable(folder: Path) -> None:
    """Create a folder if it is missing. Raises `UsageError` if it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot create {folder}: {error.strerror}. Set TOLLGATE_ENGINE_HOME to another folder."
        ) from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"Cannot write to {folder}. Set TOLLGATE_ENGINE_HOME to another folder.")


def require_free(folder: Path, needed_bytes: int, *, setting: str) -> None:
    """Raise `UsageError` if a folder's disk has less than `needed_bytes` free, before work that
    would fill it.

    `setting` names the variable that moves the folder.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise UsageError(
            f"Not enough disk: {folder} has {free_bytes / 1e9:.1f} GB free, "
            f"{needed_bytes / 1e9:.1f} GB are needed. Free some, or set {setting} to a folder on a "
            "larger disk."
        )


def size_bytes_of(folder: Path) -> int:
    """Return the bytes of all files below `folder`, links not followed."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
