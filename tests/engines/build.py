"""Builds llama.cpp's `llama-server` from the source inside a PyPI source distribution, and converts
the shipped tiny model for it; `python -m tests.engines.build` does both, once.

Everything lies in `TOLLGATE_ENGINES_HOME` (`~/.cache/tollgate-engines`). It needs cmake, a C++
compiler and the engine's environment (`python -m engine setup`), whose Python runs llama.cpp's own
converter.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from engine.home import SHIPPED_MODELS, engine_home

NAME, VERSION = "llama_cpp_python", "0.3.36"
SDIST = f"{NAME}-{VERSION}.tar.gz"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
JOBS = "2"
# AVX2 and no newer instruction, as vLLM's CPU build needs it too, so that the server also runs on
# another CPU. Optimised little: it compiles in half the time, and the model is tiny.
SWITCHES = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DCMAKE_C_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG",
    "-DGGML_NATIVE=OFF",
    "-DGGML_OPENMP=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_TOOLS_INSTALL=OFF",
)


def home() -> Path:
    """Return the folder of the built engines."""
    given = os.environ.get("TOLLGATE_ENGINES_HOME")
    return Path(given) if given else Path.home() / ".cache" / "tollgate-engines"


def source() -> Path:
    """Return the folder of llama.cpp's source."""
    return home() / f"{NAME}-{VERSION}" / "vendor" / "llama.cpp"


def llama_server() -> Path:
    """Return the built server's path."""
    return source().parents[1] / "build" / "bin" / "llama-server"


def model() -> Path:
    """Return the path of the tiny model in llama.cpp's format."""
    return home() / f"tiny-{VERSION}.gguf"


def main() -> int:
    """Make what is missing."""
    missing = [tool for tool in ("cmake", "c++") if shutil.which(tool) is None]
    if missing and not llama_server().exists():
        print(f"{' and '.join(missing)} not found: install cmake and a C++ compiler.")
        return 2
    if not (source() / "CMakeLists.txt").exists():
        download()
    if not llama_server().exists():
        build()
    if not model().exists():
        convert()
    print(f"llama-server: {llama_server()}\nmodel: {model()}")
    return 0


def download() -> None:
    """Fetch the source distribution by its hash, and unpack the engine's part of it."""
    folder = home() / "sdist"
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
    run(*pip, "--require-hashes", "-r", str(wanted), "-d", str(folder))
    with tarfile.open(folder / SDIST) as archive:
        inner = f"{NAME}-{VERSION}/vendor/llama.cpp/"
        members = [one for one in archive if one.name.startswith(inner)]
        archive.extractall(home(), members, filter="data")


def build() -> None:
    """Compile the server alone; it takes 20 minutes on two busy cores."""
    folder = llama_server().parents[1]
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    run("cmake", "-S", str(source()), "-B", str(folder), *generator, *SWITCHES)
    run("cmake", "--build", str(folder), "--target", "llama-server", "--parallel", JOBS)


def convert() -> None:
    """Convert the tiny model by llama.cpp's own converter, in the engine's environment."""
    program = Path(__file__).with_name("to_gguf.py")
    python, unfinished = engine_home(os.environ).python, model().with_suffix(".part")
    run(str(python), str(program), str(source()), str(SHIPPED_MODELS / "tiny"), str(unfinished))
    unfinished.rename(model())


def run(*command: str) -> None:
    """Run a command with low priority; its output is shown. Raises if it fails."""
    print(" ".join(command), flush=True)
    subprocess.run(["nice", "-n", "15", *command], check=True)


if __name__ == "__main__":
    sys.exit(main())
