"""Kills one of two Ray nodes under load, behind a gateway, and compares ledger and engines.

`python -m bench.two_nodes`: two nodes in two network namespaces serve the shipped tiny model with
`engine serve --cluster`; the gateway knows the entrance of each. Needs root, `ip`, and an engine
environment with Ray (`engine setup --cluster`). `--write` puts the figures into
docs/engine-report.md.
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
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.demo_crash import DemoFailed
from bench.engine_report import markdown, section
from bench.stand.failover import (
    FATE_HEADS,
    LastReport,
    Tally,
    Tokens,
    fate_rows,
    load,
    settled_counters,
    start_gateway,
    token_counters,
)
from bench.stand.ray_nodes import GCS_PORT, HTTP_PORT, RayNode, two_nodes
from engine.home import engine_home

REPOSITORY = Path(__file__).parents[1]
PROFILE = """\
device: cpu
max_model_len: 4096
max_num_seqs: 16
data_parallel_size: 2
reasoning_parser: qwen3
tool_call_parser: hermes
"""
READY_WITHIN_S = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The figures of a run: tokens are since the run's first request."""

    ready_s: float
    killed: int
    """Processes of the killed node."""
    before: Tally
    during: Tally
    after: Tally
    ledger: tuple[Tokens, Tokens, Tokens]
    survivor: tuple[Tokens, Tokens, Tokens]
    other: tuple[Tokens, Tokens]
    """The killed engine's counters of the first phase, and its last report in the second."""
    outcomes: dict[str, int]

    def findings(self) -> list[str]:
        """Return each promise that did not hold."""
        found = []
        for name, tally in (
            ("before", self.before),
            ("during", self.during),
            ("after", self.after),
        ):
            if tally.fates["lost"]:
                found.append(f"{name}: {tally.fates['lost']} lost: {tally.errors[:3]}")
            if name != "during" and tally.fates["cut"]:
                found.append(f"{name}: {tally.fates['cut']} cut: {tally.errors[:3]}")
        if self.ledger[0] != self.survivor[0] + self.other[0]:
            found.append(
                f"before: ledger {self.ledger[0]}, engines {self.survivor[0] + self.other[0]}"
            )
        if self.ledger[2] != self.survivor[2]:
            found.append(f"after: ledger {self.ledger[2]}, engine {self.survivor[2]}")
        return found

    def lines(self) -> list[str]:
        """Return the result in Markdown."""
        phases = [
            ("both nodes", self.before),
            (f"one node's {self.killed} processes killed", self.during),
            ("one node left", self.after),
        ]
        unseen = self.ledger[1] - self.survivor[1] - self.other[1]
        return [
            f"Ready after {self.ready_s:.0f} s. Findings: {'; '.join(self.findings()) or 'none'}.",
            "",
            *markdown(FATE_HEADS, fate_rows(phases)),
            "",
            f"- Both nodes: ledger {self.ledger[0]}; engines {self.survivor[0] + self.other[0]}.",
            f"- During the kill: ledger {self.ledger[1]}; survivor {self.survivor[1]}; last report "
            f"of the killed engine {self.other[1]}; difference {unseen}.",
            f"- One node left: ledger {self.ledger[2]}; engine {self.survivor[2]}.",
            f"- Attempts in the ledger by outcome: {self.outcomes}.",
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once. Returns 0 if all promises held, 1 if not, 3 if it could not be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--write", action="store_true", help="write docs/engine-report.md")
    chosen = parser.parse_args(arguments)
    try:
        done = run(chosen)
    except (DemoFailed, TimeoutError, subprocess.CalledProcessError) as failed:
        print(failed, file=sys.stderr)
        return 3
    command = f"python -m bench.two_nodes --clients {chosen.clients} --seed {chosen.seed}"
    section("two-nodes", done.lines(), command=command, write=chosen.write and not done.findings())
    return 1 if done.findings() else 0


def run(chosen: argparse.Namespace) -> Run:
    """Start the cluster and the gateway, send the load, kill the second node, and count."""
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tgray-", dir="/tmp"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o711)  # as root, Postgres runs as another user
        head, other, ready_s = _cluster(stack, folder)
        entrances = {"other": other.url, "head": head.url}
        gateway, ledger = start_gateway(stack, folder, entrances)
        seen = LastReport(other.metrics)
        stack.callback(seen.stop)
        start = [settled_counters(lambda: token_counters(head.metrics())), seen.settled()]

        def phase(seconds: float, number: int, *, kill: bool = False) -> Tally:
            strike = (seconds / 4, strike_once) if kill else None
            return asyncio.run(
                load(
                    gateway,
                    clients=chosen.clients,
                    seconds=seconds,
                    seed=chosen.seed + number,
                    strike=strike,
                )
            )

        killed = []

        def strike_once() -> None:
            killed.append(other.kill())

        sent = 0
        tallies, books, survivor, others = (
            [],
            [Tokens(prompt=0, generation=0)],
            [start[0]],
            start[1:],
        )
        for number, (seconds, kill) in enumerate(((20.0, False), (40.0, True), (15.0, False))):
            tallies.append(phase(seconds, number, kill=kill))
            sent += tallies[-1].sent
            books.append(ledger.settled(sent))
            survivor.append(settled_counters(lambda: token_counters(head.metrics())))
            others.append(seen.last if killed else seen.settled())
        before, during, after = tallies
        return Run(
            ready_s=ready_s,
            killed=killed[0],
            before=before,
            during=during,
            after=after,
            ledger=(books[1] - books[0], books[2] - books[1], books[3] - books[2]),
            survivor=(
                survivor[1] - survivor[0],
                survivor[2] - survivor[1],
                survivor[3] - survivor[2],
            ),
            other=(others[1] - others[0], others[2] - others[1]),
            outcomes=ledger.outcomes(),
        )


def _cluster(stack: ExitStack, folder: Path) -> tuple[RayNode, RayNode, float]:
    """Start both nodes and the application; return them and the seconds until both answered."""
    home = engine_home(os.environ)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Two engines and their entrances share the machine's cores.
    variables = own | {"RAY_USAGE_STATS_ENABLED": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    variables["RAY_AUTH_MODE"] = "disabled"  # as by default; the network is closed
    began_s = time.monotonic()
    head, other = stack.enter_context(two_nodes(home.python, folder, variables))
    profile = folder / "profile.yaml"
    profile.write_text(PROFILE)
    program = [sys.executable, "-m", "engine"]
    argv = [*program, "serve", "--cluster", "--closed-network", "--profile", str(profile)]
    argv += ["--model", "tiny", "--host", "0.0.0.0", "--port", str(HTTP_PORT)]
    serve = head.start(
        argv,
        RAY_ADDRESS=f"{head.address}:{GCS_PORT}",
        PYTHONPATH=str(REPOSITORY),
    )
    stack.callback(serve.send_signal, signal.SIGTERM)
    for node in (head, other):
        limit = ["--timeout", str(round(READY_WITHIN_S))]
        waited = subprocess.run(
            [*program, "wait", "--model", "tiny", "--url", node.url, *limit],
            cwd=REPOSITORY,
            capture_output=True,
            check=False,
        )
        if waited.returncode:
            raise DemoFailed(f"The cluster did not start:\n{head.log.read_text()[-3000:]}")
    return head, other, time.monotonic() - began_s


if __name__ == "__main__":
    sys.exit(main())
