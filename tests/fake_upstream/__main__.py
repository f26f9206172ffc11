"""Serve until stopped; the first line of standard output is the address."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import uvloop

from tests.fake_upstream.ledger import FileLedger, MemoryLedger
from tests.fake_upstream.plans import MIXES, DrawnRun
from tests.fake_upstream.script import scripted
from tests.fake_upstream.server import Upstream, serving


def upstream_of(chosen: argparse.Namespace) -> Upstream:
    """Return the upstream that the command line asks for."""
    ledger = MemoryLedger() if chosen.ledger is None else FileLedger(chosen.ledger)
    if chosen.seed is None:
        return Upstream(
            lambda request, asked: scripted(request.path, asked, request.header("x-fake")), ledger
        )
    run = DrawnRun(seed=chosen.seed, mix=MIXES[chosen.mix], most_output=chosen.most_output)
    return Upstream(lambda request, asked: run.behaviour(request.path, asked), ledger)


async def serve(chosen: argparse.Namespace) -> None:
    """Serve until the process is stopped."""
    async with serving(upstream_of(chosen), chosen.port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fake_upstream",
        description="A model server that fails on purpose, with a ledger of its own.",
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ledger", type=Path, help="append entries to this file, and keep none")
    parser.add_argument("--seed", type=int, help="draw each attempt; without it requests script it")
    parser.add_argument("--mix", choices=MIXES, default="healthy")
    parser.add_argument("--most-output", type=int, default=40)
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
