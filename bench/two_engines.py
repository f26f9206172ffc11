"""Kills one of two engines behind the vLLM router, and compares the ledger with the engines.

`python -m bench.two_engines`: two `engine serve` with the shipped tiny model, `vllm-router` from
PyPI before them (`bash bench/install.sh --peers`), and a gateway with the router as its one
deployment. `--write` puts the figures into docs/engine-report.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.demo_crash import DemoFailed, Gateway
from bench.engine_report import markdown, section
from bench.stand import processes
from bench.stand.failover import (
    FATE_HEADS,
    LastReport,
    Tally,
    fate_rows,
    load,
    settled_counters,
    start_gateway,
    token_counters,
)
from bench.stand.peers import VERSIONS, binary
from bench.stand.processes import answers, free_ports

REPOSITORY = Path(__file__).parents[1]
READY_WITHIN_S = 400.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once. Returns 0 if the ledger equals the engines and nothing was lost, 1 if not, 3 if it
    could not be run.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/engine-report.md")
    chosen = parser.parse_args(arguments)
    if not binary("vllm-router").exists():
        print("vllm-router is not installed: bash bench/install.sh --peers", file=sys.stderr)
        return 3
    try:
        lines, is_equal = run(chosen)
    except DemoFailed as failed:
        print(failed, file=sys.stderr)
        return 3
    command = f"python -m bench.two_engines --clients {chosen.clients} --seed {chosen.seed}"
    section("two-engines", lines, command=command, write=chosen.write and is_equal)
    return 0 if is_equal else 1


def run(chosen: argparse.Namespace) -> tuple[list[str], bool]:
    """Start all, send the load, kill an engine; return the report, and whether all held."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tgrouter-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)  # as root, Postgres runs as another user
        engines = [_start_engine(stack, folder, port) for port in free_ports(2)]
        urls = [url for url, _ in engines]
        for url in urls:
            _wait_for_engine(url, folder)
        gateway, ledger = start_gateway(stack, folder, {"router": _router(stack, folder, urls)})
        pages = [partial(_page, url) for url in urls]
        seen = LastReport(pages[1])
        stack.callback(seen.stop)
        start = settled_counters(lambda: token_counters(pages[0]())) + seen.settled()
        before = _phase(gateway, chosen, 15.0)
        booked = ledger.settled(before.sent)
        counted = settled_counters(lambda: token_counters(pages[0]())) + seen.settled() - start
        leader = _leader(engines[1][1].pid)
        strike = (8.0, lambda: os.kill(leader, signal.SIGKILL))
        during = _phase(gateway, chosen, 30.0, strike=strike)
        ledger.settled(before.sent + during.sent)
        outcomes = ledger.outcomes()
    router = f"vllm-router {VERSIONS['vllm-router']}"
    phases = [("both engines", before), ("one engine's HTTP process killed", during)]
    lines = [
        f"{router} with its own retries, one deployment of the gateway.",
        "",
        *markdown(FATE_HEADS, fate_rows(phases)),
        "",
        f"- Both engines: ledger {booked}; engines {counted}.",
        f"- Attempts in the ledger by outcome: {outcomes}.",
        f"- Errors of the second phase: {during.errors[:5] or 'none'}.",
    ]
    is_good = before.fates["answered"] == before.sent and not during.fates["lost"]
    return lines, booked == counted and is_good


def _phase(
    gateway: Gateway,
    chosen: argparse.Namespace,
    seconds: float,
    strike: tuple[float, Callable[[], object]] | None = None,
) -> Tally:
    """Send the load of one phase."""
    return asyncio.run(
        load(gateway, clients=chosen.clients, seconds=seconds, seed=chosen.seed, strike=strike)
    )


def _start_engine(stack: ExitStack, folder: Path, port: int) -> tuple[str, subprocess.Popen[bytes]]:
    """Start an engine; return its address and its supervisor."""
    with (folder / "engines.log").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine", "serve", "--port", str(port)],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    stack.callback(processes.end, process)
    return f"http://127.0.0.1:{port}", process


def _wait_for_engine(url: str, folder: Path) -> None:
    """Wait until an engine answers. Raises `DemoFailed` if it does not in time."""
    argv = [sys.executable, "-m", "engine", "wait", "--url", url]
    argv += ["--timeout", str(round(READY_WITHIN_S))]
    if subprocess.run(argv, cwd=REPOSITORY, capture_output=True, check=False).returncode:
        log = (folder / "engines.log").read_text(errors="replace")
        raise DemoFailed(f"An engine did not start:\n{log[-2000:]}")


def _router(stack: ExitStack, folder: Path, urls: Sequence[str]) -> str:
    """Start the router before the engines; return its address once it answers."""
    port, metrics_port = free_ports(2)
    argv = [str(binary("vllm-router")), "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--worker-urls", *urls, "--policy", "power_of_two", "--log-level", "error"]
    argv += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
    argv += ["--health-check-interval-secs", "2", "--health-failure-threshold", "2"]
    argv += ["--retry-max-retries", "3"]
    log = folder / "router.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
        )
    stack.callback(processes.end, process)
    deadline_s = time.monotonic() + 60
    while not answers(f"http://127.0.0.1:{port}/v1/models"):
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise DemoFailed(f"The router did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.2)
    return f"http://127.0.0.1:{port}"


def _page(url: str) -> str:
    """Return an engine's metrics page."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text: str = answer.read().decode()
        return text


def _leader(supervisor: int) -> int:
    """Return the process that serves HTTP: the supervisor's child that is not its guard."""
    for child in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split():
        if b"guard.py" not in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise DemoFailed("The engine has no process.")


if __name__ == "__main__":
    sys.exit(main())
