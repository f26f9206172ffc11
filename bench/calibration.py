"""Calibrates a real vLLM several times and compares each prediction with held-out load.

Run `python -m bench.calibration` to print it, with `--write` to renew the section of
docs/engine-report.md. It needs `python -m engine setup`; five runs take about 15 minutes on two
idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.engine_report import markdown, section
from engine.calibration.cost_model import KINDS
from engine.calibration.report import HELD_OUT_LIMIT

ROOT = Path(__file__).parents[1]
ENGINE = [sys.executable, "-m", "engine"]
START_LIMIT_S = 600
LOAD = {
    "seconds": (120, "of each run"),
    "concurrency": (8, "requests at once"),
    "prompt": (512, "tokens of the longest prompt"),
    "answer": (64, "tokens of the longest answer"),
}


def main() -> int:
    """Run the calibrations, print and perhaps write their section; return 1 if the median misses
    the limit.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    for name, (value, unit) in LOAD.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=unit)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--raw", type=Path, metavar="FILE", help="also write all results as JSON")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    results = []
    with served(options.profile) as url:
        for index in range(options.runs):
            results.append(calibrated(url, options, seed=index + 1))
            print(shown(results[-1]), file=sys.stderr, flush=True)
            if options.raw:
                options.raw.write_text(json.dumps(results), encoding="utf-8")
    command = "python -m bench.calibration" + "".join(
        f" --{name} {getattr(options, name)}" for name in ("runs", *LOAD)
    )
    section("calibration", report(results), command=command, write=options.write)
    return int(median(results, "held_out_error") > HELD_OUT_LIMIT)


@contextmanager
def served(profile: str) -> Iterator[str]:
    """Serve the shipped tiny model for the block; yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    argv = [*ENGINE, "serve", "--profile", profile, "--model", "tiny", "--port", str(port)]
    serve = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait = [*ENGINE, "wait", "--url", url, "--timeout", str(START_LIMIT_S)]
        subprocess.run(wait, cwd=ROOT, check=True, stdout=sys.stderr)
        yield url
    finally:
        serve.send_signal(signal.SIGTERM)
        serve.wait(timeout=60)


def calibrated(url: str, options: argparse.Namespace, *, seed: int) -> dict[str, Any]:
    """Return the result of one calibration, refused or not. Raises `CalledProcessError`."""
    argv = [*ENGINE, "calibrate", "tiny", "--url", url, "--seed", str(seed)]
    for name in LOAD:
        argv += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(argv, cwd=ROOT, env=dict(os.environ), stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, argv)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def report(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the lines of the section: a table of the runs, and the medians."""
    heads = ("seed", *(f"{kind} tokens/s" for kind in KINDS), "R²", "held-out error", "flat price")
    rows = [
        (
            str(one["seed"]),
            *(rate(one, f"{kind}_tok_per_s") for kind in KINDS),
            f"{one['r_squared']:.4f}",
            f"{one['held_out_error']:.1%}",
            f"{one['flat_price_error']:.1%}",
        )
        for one in results
    ]
    error, flat = (median(results, name) for name in ("held_out_error", "flat_price_error"))
    refused = [reason for one in results for reason in one["refused"]]
    checks = [one["cross_check"] for one in results if one["cross_check"]]
    first = results[0]
    return [
        f"- The shipped tiny model at {first['concurrency']} requests at once, prompts up to "
        f"{first['longest_prompt']} and answers up to {first['longest_answer']} tokens.",
        f"- **Error on held-out load, median of {len(results)} runs: {error:.1%}** (limit "
        f"{HELD_OUT_LIMIT:.0%}); of one flat price per token on the same load: {flat:.1%}.",
        f"- Refused: {len(refused)} of {len(results)}."
        + "".join(f" {reason}" for reason in refused[:1]),
        *(
            f"- {kind} by the client's clock / by vLLM's per-request metrics: "
            + ", ".join(f"{one['ratios'][f'{kind}_tok_per_s']:.3f}" for one in checks)
            + "."
            for kind in KINDS
            if all("ratios" in one and one["ratios"][f"{kind}_tok_per_s"] for one in checks)
        ),
        *(
            f"- Bend by the square of the {first['bends'][index]['curve']} length: "
            + ", ".join(f"{one['bends'][index]['share']:.1%}" for one in results)
            + " of a window at most (refused above 10 %)."
            for index in range(len(first["bends"]))
        ),
        "",
        *markdown(heads, rows),
    ]


def rate(result: dict[str, Any], name: str) -> str:
    """Return a rate with its 95 % interval."""
    if result[name] is None:
        return "-"
    low, high = result["intervals"][name]
    return f"{result[name]:,.0f} ({low:,.0f} to {'no end' if high is None else f'{high:,.0f}'})"


def median(results: Sequence[dict[str, Any]], name: str) -> float:
    """Return the median of a figure over the runs."""
    return statistics.median(float(one[name]) for one in results)


def shown(result: dict[str, Any]) -> str:
    """Return one run in a line."""
    names = ("seed", "held_out_error", "flat_price_error", "r_squared", "seconds", "refused")
    return json.dumps({name: result[name] for name in names})


if __name__ == "__main__":
    sys.exit(main())
