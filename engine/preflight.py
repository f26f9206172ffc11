"""Checks whether this machine can run engine, gateway and dashboard (Python, CPU, memory, disk,
ports), before any download, and prints findings with remedies.

`make run` starts this file first, with any Python; `tollgate up` and `tollgate doctor` start it
too. So it imports only the standard library and is valid from Python 3.6 on. It reads the
`TOLLGATE_*` variables for folders and ports, changes nothing, and queries only servers of this
machine.

Exit codes: 0 all right (warnings included), 2 a check failed.
"""

import argparse
import glob
import http.client
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

OK, WARN, FAIL = "ok", "warn", "fail"
PYTHONS = ((3, 11), (3, 12), (3, 13))
ENGINE_PLATFORMS = (("Linux", "x86_64"),)
"""Platforms with locked wheels of vLLM and torch."""
ENGINE_GLIBC = (2, 28)
"""Of the wheels' platform tag, manylinux_2_28."""
ENGINE_CPU_FLAGS = {"x86_64": "avx2"}
"""The least that vLLM's CPU kernels were compiled for."""

MEMORY_GB = 4.0
"""Measured with the tiny model: 2.7 GB for the engine, 0.6 GB for all else."""
LEAST_MEMORY_GB = 3.0

USUAL_SERVERS = ((11434, "Ollama"), (8080, "llama.cpp"), (1234, "LM Studio"), (8000, "vLLM"))
OWNERS = {
    "library": "Ollama",
    "ollama": "Ollama",
    "llamacpp": "llama.cpp",
    "vllm": "vLLM",
    "sglang": "SGLang",
}
"""Servers by their name for the owner of their models."""
ASK_LIMIT_S = 0.5
"""Two rounds of queries end within two seconds, even if each server is silent."""
PORTS = (
    ("TOLLGATE_PORT", "TOLLGATE_HOST", 8080, "gateway"),
    ("TOLLGATE_METRICS_PORT", "TOLLGATE_METRICS_HOST", 9464, "metrics"),
    ("TOLLGATE_DASHBOARD_PORT", "TOLLGATE_DASHBOARD_HOST", 8501, "dashboard"),
    ("TOLLGATE_ENGINE_PORT", "", 8001, "engine"),
)


class PreflightCheck(NamedTuple):
    """One finding and its remedy."""

    status: str
    check: str
    finding: str
    what_to_do: str


class Port(NamedTuple):
    """An address that a part of Tollgate is about to listen at."""

    setting: str
    host: str
    number: int
    of: str


class Server(NamedTuple):
    """The program that listens at a port."""

    name: str
    url: str
    is_compatible: bool
    """With OpenAI's API: it answers `GET /v1/models`."""


class Need(NamedTuple):
    """Space that a step takes, and the variable that moves its folder."""

    folder: str
    gb: float
    setting: str


def main(arguments: Optional[List[str]] = None) -> int:
    """Check this machine and print the findings; return 2 if there is an obstacle."""
    options = parser().parse_args(arguments)
    checks = list(all_checks(options))
    if options.format == "json":
        print(json.dumps([check._asdict() for check in checks]))
    else:
        _print_text(checks, is_quiet=options.quiet)
    return 2 if any(check.status == FAIL for check in checks) else 0


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the machine check."""
    top = argparse.ArgumentParser(
        prog="preflight.py", description="Check whether this machine can run Tollgate."
    )
    top.add_argument("--command", default="tollgate up", help="the command that the remedies name")
    top.add_argument(
        "--venv", help="folder of the virtual environment that is made here, if it is missing"
    )
    top.add_argument(
        "--no-engine", action="store_true", help="an engine runs elsewhere (--engine-url)"
    )
    top.add_argument("--no-ports", action="store_true", help="nothing is started now")
    top.add_argument("--quiet", action="store_true", help="print problems only")
    top.add_argument("--format", choices=("text", "json"), default="text")
    return top


def all_checks(options: argparse.Namespace) -> Iterator[PreflightCheck]:
    """Yield the checks of this machine: the cheap facts first, then the disk and the ports."""
    yield python_check(options)
    if not options.no_engine:
        yield from engine_checks(options)
    yield disk_check(needs(options))
    if not options.no_ports:
        yield from port_checks(ports(with_engine=not options.no_engine), options.command)


def _print_text(checks: List[PreflightCheck], is_quiet: bool) -> None:
    """Print the obstacles and warnings with their remedies, or a line about this machine if there
    are none.
    """
    problems = [check for check in checks if check.status != OK]
    failed = [check for check in problems if check.status == FAIL]
    out = sys.stderr if failed else sys.stdout
    remedies = [check.what_to_do for check in problems] + [""]
    for check, next_remedy in zip(problems, remedies[1:]):  # noqa: B905 - needs Python 3.10
        print("{}: {}".format(check.check, check.finding), file=out)
        if check.what_to_do not in ("", next_remedy):  # the same for all ports: once, below them
            print("    " + check.what_to_do.replace("\n", "\n    "), file=out)
    if not problems and not is_quiet:
        print(
            "This machine: " + "; ".join(check.finding for check in checks if check.finding) + "."
        )
    elif failed:
        print("Nothing was downloaded or started.", file=out)


# ---- Python


def python_check(options: argparse.Namespace) -> PreflightCheck:
    """Check that this Python's version is supported, and that it can make a virtual environment if
    one has to be made.
    """
    version = platform.python_version()
    if sys.version_info[:2] not in PYTHONS:
        finding = "this is Python {}; Tollgate supports 3.11, 3.12 and 3.13".format(version)
        return PreflightCheck(FAIL, "python", finding, _other_python(options.command))
    if options.venv and not os.path.exists(os.path.join(options.venv, "bin", "python")):
        missing = [name for name in ("venv", "ensurepip") if find_spec(name) is None]
        if missing:
            package = "python{}.{}-venv".format(*sys.version_info[:2])
            finding = "this Python {} lacks the module {}".format(version, missing[0])
            return PreflightCheck(
                FAIL,
                "python",
                finding,
                "Install it (on Debian and Ubuntu: apt install {}).".format(package),
            )
    return PreflightCheck(
        OK, "python", "Python {}, {}".format(version, build_flags()), _faster_python()
    )


def _other_python(command: str) -> str:
    """Return the remedy for an unsupported Python: an installed interpreter, proven by running it,
    or a version to install.
    """
    for found in _installed_pythons():
        if _runs(found):  # a shim of pyenv may lead to nothing
            if command.startswith("make"):
                return "Use the one that is installed: {} PYTHON={}".format(command, found)
            return "Install Tollgate again with {}.".format(found)
    return "Install one of them, then: {}{}".format(
        command, " PYTHON=python3.12" if command.startswith("make") else ""
    )


def _installed_pythons() -> Iterator[str]:
    """Yield the supported Python interpreters on PATH, then those of pyenv."""
    for major, minor in PYTHONS:
        found = shutil.which("python{}.{}".format(major, minor))
        if found:
            yield found
    versions = os.path.expanduser(
        os.path.join(os.environ.get("PYENV_ROOT") or "~/.pyenv", "versions")
    )
    for major, minor in PYTHONS:
        yield from sorted(
            glob.glob(os.path.join(versions, "{0}.{1}.*/bin/python{0}.{1}".format(major, minor)))
        )


def _runs(python: str) -> bool:
    """Return True if a Python interpreter can be started and exits without an error."""
    try:
        silent = subprocess.DEVNULL
        return (
            subprocess.run(
                [python, "-I", "-c", ""], stdout=silent, stderr=silent, timeout=5, check=False
            ).returncode
            == 0
        )
    except (OSError, subprocess.TimeoutExpired):
        return False


def build_flags() -> str:
    """Return the compiler optimisations of this Python interpreter, as far as it knows them.

    Debian and Ubuntu compile with both and record the flags of another pass, which has neither.
    """
    flags = sysconfig.get_config_var("CONFIG_ARGS") or ""
    names = [("--enable-optimizations", "PGO"), ("--with-lto", "LTO")]
    if not any(flag in flags for flag, _ in names) and sys.base_prefix == "/usr":
        return "built by the distribution"
    return "built " + " and ".join(
        ("with " if flag in flags else "without ") + name for flag, name in names
    )


def _faster_python() -> str:
    """Return the advice to use an optimised Python, empty if this one is optimised."""
    if "without" not in build_flags():
        return ""
    return (
        "A Python built with PGO and LTO, as distributions ship it, needs about 0.82 of the "
        "CPU time."
    )


# ---- The engine's needs


def engine_checks(options: argparse.Namespace) -> Iterator[PreflightCheck]:
    """Yield the checks of platform, CPU and memory for an engine on this machine; only the first if
    no build of vLLM fits the platform.
    """
    problem = platform_problem(platform.system(), platform.machine(), platform.libc_ver())
    if problem:
        yield PreflightCheck(FAIL, "platform", problem, _engine_elsewhere(options.command))
        return
    yield PreflightCheck(
        OK, "platform", "{} on {}".format(platform.system(), platform.machine()), ""
    )
    flags = cpu_flags()
    wanted = ENGINE_CPU_FLAGS.get(platform.machine(), "")
    if flags and wanted and wanted not in flags and not has_gpu():
        finding = "this CPU has no {}, which vLLM's kernels need".format(wanted.upper())
        yield PreflightCheck(FAIL, "cpu", finding, _engine_elsewhere(options.command))
    else:
        kind = "AVX-512" if "avx512f" in flags else wanted.upper()
        yield PreflightCheck(
            OK, "cpu", "{} cores{}".format(os.cpu_count(), " with " + kind if kind else ""), ""
        )
    yield memory_check(memory_bytes())


def platform_problem(system: str, machine: str, libc: Tuple[str, str]) -> str:
    """Return the reason why vLLM has no build for this platform, empty if it has one."""
    where = {"Darwin": "macOS"}.get(system, system)
    if (system, machine) not in ENGINE_PLATFORMS:
        builds = " and ".join("{} on {}".format(*known) for known in ENGINE_PLATFORMS)
        return "no build of the engine (vLLM) for {} on {}; there is one for {}".format(
            where, machine, builds
        )
    name, version = libc
    if name != "glibc":
        return "no build of the engine (vLLM) for a {} without glibc".format(where)
    found = tuple(int(part) for part in version.split(".")[:2])
    if found < ENGINE_GLIBC:
        return "the engine's packages need glibc {}.{} or newer, this is {}".format(
            *ENGINE_GLIBC, version
        )
    return ""


def cpu_flags() -> List[str]:
    """Return the CPU's features by Linux's names; none if they cannot be read."""
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith(("flags", "Features")):
            return line.partition(":")[2].split()
    return []


def memory_bytes() -> Optional[int]:
    """Return the memory that this machine or container may use, None if it cannot be read."""
    limits = []
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            limits.append(int(line.split()[1]) * 1024)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        limit = _read(path).strip()
        if limit.isdigit():
            limits.append(int(limit))
    return min(limits) if limits else None


def memory_check(found_bytes: Optional[int]) -> PreflightCheck:
    """Compare this machine's memory with the measured need of gateway, Postgres, dashboard and
    engine together.
    """
    if found_bytes is None:
        return PreflightCheck(OK, "memory", "", "")
    finding = "{:.1f} GB of memory".format(found_bytes / 1e9)
    if found_bytes < LEAST_MEMORY_GB * 1e9:
        status = FAIL
    elif found_bytes < MEMORY_GB * 1e9:
        status = WARN
    else:
        return PreflightCheck(OK, "memory", finding, "")
    finding += "; gateway, database, dashboard and engine take {:.0f} GB".format(MEMORY_GB)
    return PreflightCheck(
        status,
        "memory",
        finding,
        "Give this machine or container more, or use an engine elsewhere.",
    )


def _read(path: str) -> str:
    """Return a file's text, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# ---- Disk


def needs(options: argparse.Namespace) -> List[Need]:
    """Return the disk space that the next start still needs, by folder; steps that are done need
    none.
    """
    home = os.path.expanduser(os.environ.get("TOLLGATE_HOME") or "~/.tollgate")
    engine = os.path.expanduser(
        os.environ.get("TOLLGATE_ENGINE_HOME") or os.path.join(home, "engine")
    )
    found = [Need(home, 0.5, "TOLLGATE_HOME")]
    if options.venv and not os.path.exists(os.path.join(options.venv, "run.stamp")):
        found.append(Need(options.venv, 0.8, "the clone's folder"))
    if not options.no_engine and not os.path.exists(os.path.join(engine, "venv.stamp.json")):
        download_gb, disk_gb = (5.4, 13.2) if has_gpu() else (0.8, 2.8)
        found.append(Need(engine, disk_gb, "TOLLGATE_ENGINE_HOME"))
        found.append(Need(tempfile.gettempdir(), download_gb, "TMPDIR"))
    return found


def has_gpu() -> bool:
    """Return True if `nvidia-smi` lists a GPU; the packages for one are five times as large."""
    try:
        argv = [shutil.which("nvidia-smi") or "nvidia-smi", "--list-gpus"]
        listed = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout


def disk_check(wanted: List[Need]) -> PreflightCheck:
    """Check that each folder can be made or written; then compare needed and free space on each
    file system.
    """
    for need in wanted:
        reason = why_not_writable(need.folder)
        if reason:
            finding = "{} cannot be written: {}".format(need.folder, reason)
            return PreflightCheck(
                FAIL,
                "disk",
                finding,
                "Fix that, or choose another folder: {}.".format(need.setting),
            )
    by_device = {}  # type: Dict[int, List[Need]]
    for need in wanted:
        by_device.setdefault(os.stat(_existing(need.folder)).st_dev, []).append(need)
    free_gb = []
    for on_device in by_device.values():
        free_gb.append(shutil.disk_usage(_existing(on_device[0].folder)).free / 1e9)
        total_gb = sum(need.gb for need in on_device)
        if free_gb[-1] < total_gb:
            folders = ", ".join("{} ({:.1f} GB)".format(need.folder, need.gb) for need in on_device)
            finding = "{:.1f} GB are free for {}; {:.1f} GB are needed".format(
                free_gb[-1], folders, total_gb
            )
            settings = " or ".join(sorted({need.setting for need in on_device}))
            return PreflightCheck(
                FAIL,
                "disk",
                finding,
                "Free some, or move a folder to a larger disk: {}.".format(settings),
            )
    return PreflightCheck(OK, "disk", "{:.0f} GB of disk free".format(min(free_gb)), "")


def why_not_writable(folder: str) -> str:
    """Return the reason why a folder can be neither made nor written, empty if it can."""
    there = _existing(folder)
    if not os.path.isdir(there):
        return "{} is a file".format(there)
    if not os.access(there, os.W_OK | os.X_OK):
        return "this user may not write to {}".format(there)
    return ""


def _existing(folder: str) -> str:
    """Return the nearest folder that exists: the given one, or one above it."""
    folder = os.path.abspath(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return folder


# ---- Ports


def ports(with_engine: bool) -> List[Port]:
    """Return the ports that Tollgate is about to use; the settings refuse an invalid number
    later.
    """
    found = []
    for setting, host_setting, default, of in PORTS:
        given = os.environ.get(setting, "")
        host = (os.environ.get(host_setting) if host_setting else "") or "127.0.0.1"
        if of != "engine" or with_engine:
            found.append(Port(setting, host, int(given) if given.isdigit() else default, of))
    return found


def port_checks(wanted: List[Port], command: str) -> Iterator[PreflightCheck]:
    """Yield one good check if all ports are free; else one failed check for each port in use, with
    its owner and the command with free ports.
    """
    reasons = [(port, why_not_free(port.host, port.number)) for port in wanted]
    taken = [(port, why) for port, why in reasons if why]
    if not taken:
        yield PreflightCheck(
            OK,
            "ports",
            "ports {} are free".format(", ".join(str(port.number) for port in wanted)),
            "",
        )
        return
    used = {port.number for port in wanted}
    others = " ".join("{}={}".format(port.setting, _free_port(port, used)) for port, _ in taken)
    for port, why in taken:
        server = server_at(_dialable(port.host), port.number)
        finding = "port {} of the {} is taken by {}".format(port.number, port.of, server.name)
        if why != "Address already in use":
            finding = "{}:{} of the {} cannot be used: {}".format(
                port.host, port.number, port.of, why
            )
        way_out = (
            "Stop it, or use another port" if len(taken) == 1 else "Stop them, or use other ports"
        )
        remedy = "{}: {} {}".format(way_out, others, command)
        if server.is_compatible:
            remedy += "\nTo meter that server: " + up_with(server.url, command, others + " ")
        yield PreflightCheck(FAIL, "port", finding, remedy)


def why_not_free(host: str, port: int) -> str:
    """Return the system's reason why a port cannot be used, empty if it is free."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as broken:
            return getattr(broken, "strerror", "") or str(broken)
    return ""


def _free_port(port: Port, used: "set[int]") -> int:
    """Return the next free port after one in use, and add it to `used`; 0 if there is none."""
    for number in range(port.number + 1, 65536):
        if number not in used and not why_not_free(port.host, number):
            used.add(number)
            return number
    return 0  # the system chooses


def _dialable(host: str) -> str:
    """Return the address by which a listener at `host` is reached from this machine: a wildcard
    becomes the loopback.
    """
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - for dialling, not for listening


# ---- Servers of this machine


def _engine_elsewhere(command: str) -> str:
    """Return the advice to use an engine that runs elsewhere, with the compatible ones found on
    this machine.
    """
    found = compatible_servers()
    if not found:
        return (
            "Use an engine that runs elsewhere, or start Ollama, llama.cpp or LM Studio here, "
            "then:\n" + up_with("http://HOST:PORT", command)
        )
    return "\n".join(
        "{} answers at {}: {}".format(s.name, s.url, up_with(s.url, command)) for s in found
    )


def up_with(url: str, command: str, variables: str = "") -> str:
    """Return the command that uses an engine at an address, with settings as `NAME=VALUE `."""
    if command.startswith("make"):
        return "make setup && {}.venv/bin/tollgate up --engine-url {}".format(variables, url)
    return "{}tollgate up --engine-url {}".format(variables, url)


def compatible_servers() -> List[Server]:
    """Return the OpenAI-compatible servers that answer at the usual ports of this machine, asked
    all at once.
    """
    with ThreadPoolExecutor(max_workers=len(USUAL_SERVERS)) as pool:
        asked = [
            (port, pool.submit(_json, "127.0.0.1", port, "/v1/models")) for port, _ in USUAL_SERVERS
        ]
        answers = [_compatible("127.0.0.1", port, models.result()) for port, models in asked]
    return [server for server in answers if server is not None]


def server_at(host: str, port: int) -> Server:
    """Return the program that listens at a port, named by its own HTTP answer, else by the system's
    process table, else "another program".
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        models = pool.submit(_json, host, port, "/v1/models")
        readiness = pool.submit(_json, host, port, "/readyz")
        compatible, is_ours = (
            _compatible(host, port, models.result()),
            "policy_version" in readiness.result(),
        )
    name = (
        "a Tollgate gateway that runs already"
        if is_ours
        else _process_at(port) or "another program"
    )
    return compatible or Server(name, _url(host, port), False)


def _compatible(host: str, port: int, models: Dict[str, object]) -> Optional[Server]:
    """Return the OpenAI-compatible server whose list of models this is; None if it is no such
    list.
    """
    listed = models.get("data")
    if not isinstance(listed, list):
        return None
    first = listed[0] if listed and isinstance(listed[0], dict) else {}
    name = OWNERS.get(str(first.get("owned_by", "")).lower()) or dict(USUAL_SERVERS).get(port)
    return Server(name or "an OpenAI-compatible server", _url(host, port), True)


def _url(host: str, port: int) -> str:
    """Return the http address of a host and port; an IPv6 host gets brackets."""
    return "http://{}:{}".format("[{}]".format(host) if ":" in host else host, port)


def _json(host: str, port: int, path: str) -> Dict[str, object]:
    """Return the JSON object that a server answers to a GET, empty if there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=ASK_LIMIT_S)
    try:
        connection.request("GET", path)
        found = json.loads(connection.getresponse().read(1000000).decode("utf-8"))
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}


def _process_at(port: int) -> str:
    """Return name and number of the process that listens at a port; empty if Linux does not show it
    to this user.
    """
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:  # 0A: listening
                sockets.add("socket:[{}]".format(fields[9]))
    for pid in filter(str.isdigit, os.listdir("/proc") if sockets else []):
        folder = "/proc/{}/fd".format(pid)
        try:
            held = {os.readlink(os.path.join(folder, name)) for name in os.listdir(folder)}
        except OSError:
            continue  # it ended, or is another user's
        if held & sockets:
            return "{} (process {})".format(
                _read("/proc/{}/comm".format(pid)).strip() or "a program", pid
            )
    return ""


if __name__ == "__main__":
    sys.exit(main())
