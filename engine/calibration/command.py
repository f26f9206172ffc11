"""Declares `python -m engine calibrate` with its options, and runs a calibration."""

import argparse
import json
import random
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.arguments.numbers import whole
from engine.calibration.design import (
    ALL_WINDOWS,
    LoadRange,
    fitted_windows,
    held_out_windows,
)
from engine.calibration.experiment import FEWEST_ROUNDS, Experiment, is_known_version
from engine.calibration.report import fitted, report
from engine.calibration.roofline import measure_roofline, require_environment
from engine.calibration.text import as_text
from engine.errors import UnknownStateError, UsageError
from engine.load.client import LoadClient, server_url
from engine.load.prompts import prompt_writer
from engine.progress import StageProgress, duration_text
from engine.serving.readiness import probe_of
from engine.vllm_command import read_key

DEFAULT_SECONDS, DEFAULT_CONCURRENCY = 240, 16
DEFAULT_PROMPT, DEFAULT_ANSWER = 1024, 128
UNMEASURED = 0.4
"""The part of a window's seconds for its first round, which is not measured."""
LEAST_PACE, MOST_OVERTIME = 3, 1.5
"""The windows after which the whole length is known well enough, and the share of --seconds above
which it is announced.
"""
DESCRIPTION = """\
Measure the seconds that an engine works for an input, a cached input and an output token, and check
them on other load. Prints JSON; the report for people goes to standard error. `tollgate engine
calibrate DEPLOYMENT` finds the engine in the policy, and stores the result as a price.
"""
EXAMPLES = """\
examples:
  python -m engine calibrate qwen-eu --url http://127.0.0.1:8001
  python -m engine calibrate qwen-eu --url http://127.0.0.1:8001 --concurrency 64 --prompt 4096

The engine must have no other work meanwhile. --concurrency is the load that the price is for; keep
it at or below the engine's max_num_seqs.

Exit codes: 0 success, 1 refused as a price or failed, 2 bad usage, 3 no answer of the engine.
"""


def add_calibrate(command: argparse.ArgumentParser) -> None:
    """Add the options of `calibrate` to its parser."""
    command.description = DESCRIPTION
    command.epilog = EXAMPLES
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    add = command.add_argument
    add("deployment", metavar="NAME", help="the name in the result")
    add("--url", required=True, metavar="URL", help="of the engine, with or without /v1")
    add("--model", metavar="NAME", help="default: the first that the engine lists")
    add("--api-key-file", type=Path, metavar="FILE", help="the file with the engine's key")
    for name, default, unit in (
        (
            "seconds",
            DEFAULT_SECONDS,
            "about as long as it lasts, if each window's three rounds fit",
        ),
        ("concurrency", DEFAULT_CONCURRENCY, "requests at once"),
        ("prompt", DEFAULT_PROMPT, "tokens of the longest prompt"),
        ("answer", DEFAULT_ANSWER, "tokens of the longest answer"),
    ):
        add(f"--{name}", type=whole, default=default, metavar="N", help=f"{unit}; {default}")
    add("--seed", type=whole, metavar="N", help="draws the same load again")
    add("--roofline", action="store_true", help="measure this machine's matrix rate and bandwidth")


def run_calibrate(options: argparse.Namespace) -> int:
    """Calibrate an engine and print the result; return 1 if it is no price. Raises `EngineError`
    and its subclasses.
    """
    load = LoadRange(prompt=options.prompt, answer=options.answer, concurrency=options.concurrency)
    if options.roofline:
        require_environment()
    progress = StageProgress(stage="calibrate", format="text", out=sys.stderr)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    experiment = _experiment(options, load, seed, progress)
    result = {**calibrate(options.deployment, load, experiment), "seed": seed}
    if options.roofline:
        progress.say("roofline", "Measuring the machine's matrix rate and bandwidth.")
        result["roofline"] = measure_roofline()
    print(as_text(result), file=sys.stderr)
    print(json.dumps(result, indent=2))
    return 1 if result["refused"] else 0


@dataclass(slots=True, kw_only=True)
class CalibrationPace:
    """Reports each window with the time that is left, and once if it is far more than asked."""

    progress: StageProgress
    asked_s: float
    _begun: int = 0
    _is_known: bool = False

    def on_window(self, _done: int, _total: int) -> None:
        """Report the window that begins, of the fitted and the held-out ones together."""
        done, self._begun = self._begun, self._begun + 1
        whole_s = self.progress.elapsed_s / done * ALL_WINDOWS if done else None
        if whole_s and done >= LEAST_PACE and whole_s > MOST_OVERTIME * self.asked_s:
            if not self._is_known:
                self.progress.say(
                    "measuring",
                    f"It will take about {duration_text(whole_s)} in place of --seconds"
                    f" {self.asked_s:g}: each of the {ALL_WINDOWS} windows sends at least"
                    f" {FEWEST_ROUNDS + 1} rounds of requests. A shorter --prompt or --answer takes"
                    " less.",
                )
            self._is_known = True
        self.progress.advance(
            "measuring",
            "Measuring the engine",
            done=done,
            total=ALL_WINDOWS,
            unit="windows",
            left_s=None if whole_s is None else whole_s - self.progress.elapsed_s,
        )


def calibrate(name: str, load: LoadRange, experiment: Experiment) -> dict[str, Any]:
    """Run the windows, fit, draw and run the held-out windows; return the result. Raises
    `EngineError`.
    """
    planned = fitted_windows(load, experiment.rng)
    calibration = fitted(load, experiment.run(planned))
    # Drawn only now: the fit cannot have been tuned to them.
    held_out = experiment.run(held_out_windows(load, experiment.rng, planned))
    return report(name, calibration, held_out)


def _experiment(
    options: argparse.Namespace, load: LoadRange, seed: int, progress: StageProgress
) -> Experiment:
    """Return the experiment on the asked engine. Raises `EngineError` if it cannot be measured."""
    key = read_key(options.api_key_file) if options.api_key_file else None
    version = _require_engine(options, key, load)
    url = server_url(options.url)
    return Experiment(
        client=LoadClient(url=url, key=key),
        writer=prompt_writer(url, model=options.model, key=key, seed=seed),
        window_s=options.seconds * (1 - UNMEASURED) / ALL_WINDOWS,
        rng=random.Random(seed),  # noqa: S311 - lengths, not secrets
        has_known_times=is_known_version(version),
        on_window=CalibrationPace(progress=progress, asked_s=options.seconds).on_window,
    )


def _require_engine(options: argparse.Namespace, key: str | None, load: LoadRange) -> str | None:
    """Return the engine's version, or None if it states none. Raises `UnknownStateError` unless the
    engine answers a token, and `UsageError` if its context is too short.
    """
    probe = probe_of(options.url, model=options.model, key=key)
    if (reason := probe.failure()) is not None:
        raise UnknownStateError(
            f"The engine at {options.url} did not answer a one-token request: {reason}. Start it, "
            "or check its address, model and key."
        )
    context = probe.context_tokens()
    if context is not None and load.prompt + load.answer > context:
        raise UsageError(
            f"--prompt {load.prompt} and --answer {load.answer} are longer than the engine's "
            f"context of {context} tokens. Give smaller ones."
        )
    return probe.version()
