"""Declares `python -m engine bench` with its options, runs the load and prints the figures."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine import vllm_command
from engine.arguments.numbers import count, positive, whole
from engine.bench import text
from engine.bench.engines import engine_of, profile_gpus, require_engine
from engine.bench.figures import Rent, Slo, failure_counts, pooled, read_slo, run_row
from engine.bench.picture import picture
from engine.bench.ratios import ratios
from engine.errors import UsageError
from engine.load.client import LoadClient, server_url
from engine.load.loops import LoadSettings, run_load
from engine.load.measured import LoadRun, MeasuredRequest
from engine.load.prompts import PromptWriter, prompt_writer
from engine.load.workload import WORKLOADS, Workload
from engine.plan.demand import read_demand
from engine.progress import StageProgress

DEFAULT_REQUESTS, DEFAULT_WARMUP, DEFAULT_ROUNDS = 100, 2, 10
DEFAULT_PROMPT, DEFAULT_ANSWER = 256, 64
DEFAULT_SILENCE_S = 120.0
DESCRIPTION = """\
Measure time to first token (TTFT), time per output token (TPOT), gap between tokens (ITL), time to
the end, throughput, goodput and cost of an engine under load.

  --url      a server that runs: any OpenAI-compatible one, needs no setup
  --profile  an engine that is started for this run (see: python -m engine serve --help)
  --compare  two profiles side by side: their rounds alternate, the ratios have 95 % intervals
"""
DETAILS = """\
examples:
  python -m engine bench --url http://127.0.0.1:8001 --concurrency 8
  python -m engine bench --url http://127.0.0.1:8001/v1 --rate 4 --seconds 60 --slo ttft_ms=500,tpot_ms=50
  python -m engine bench --compare a.yaml b.yaml --concurrency 16 --requests 200 --picture ab.svg
  tollgate report demand --days 30 --format json | python -m engine bench --workload ledger --demand - …

load:
  --rate is an open loop: Poisson arrivals, drawn beforehand. Latency counts from the drawn arrival, so a
  stall of the server is seen by everything that was due during it. --concurrency is a closed loop.
  Answers have exactly the asked length (max_tokens and ignore_eos); prompts too if the server has
  vLLM's /tokenize, else a word counts as a token.

workloads:
  chat           every request has --prompt and --answer tokens
  shared-prefix  as chat, but 90 % of the prompt is one system message of all requests
  mixed          lengths from 1/4 to 4 times --prompt and --answer, which are the medians
  ledger         lengths and shared part as in a demand file (see: python -m engine plan --help)

The same --seed draws the same lengths and arrivals; texts differ in each run, so that a run does not
read the prefix cache of an earlier one.

usd_per_mtok is USD per million output tokens: --gpu-usd-per-hour x GPUs / output tokens per hour. The price
is your rent of one GPU for an hour; `python -m engine plan --list gpus` has ranges with sources. Without
it usd_per_mtok is null. GPUs are --gpus, else those of the profile.

Failed are: a status other than 200, an error event, an end without finish_reason, silence, a stream without
end, token counts that cannot be.

Exit codes: 0 success, 1 a request failed or an engine did not start, 2 bad usage, 3 no answer at all.
"""  # noqa: E501


@dataclass(slots=True, kw_only=True)
class _Bench:
    """One engine under load, and its rounds so far."""

    profile: str | None
    rent: Rent
    client: LoadClient
    writer: PromptWriter
    workload: Workload
    begin: int = 0
    """The number of the next request: no round repeats a prompt of another."""
    rounds: list[LoadRun] = field(default_factory=list)

    def run_round(self, settings: LoadSettings, on_done: Callable[[MeasuredRequest], None]) -> None:
        """Run one round and keep it."""
        run = run_load(
            self.client,
            settings,
            self.workload,
            self.writer,
            begin=self.begin,
            on_done=on_done,
        )
        self.begin += settings.warmup + len(run.requests)
        self.rounds.append(run)


def add_bench(command: argparse.ArgumentParser) -> None:
    """Add the options of `bench` to its parser."""
    command.description = DESCRIPTION
    command.epilog = DETAILS
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_engines(command)
    _add_load(command)
    add = command.add_argument
    add("--slo", metavar="ttft_ms=…,tpot_ms=…", help="for the goodput; also e2e_ms")
    add("--gpu-usd-per-hour", type=positive, metavar="X", help="rent of one GPU; see below")
    add(
        "--gpus",
        type=whole,
        metavar="N",
        help="GPUs of the engine; default: the profile's, or 1",
    )
    add("--format", choices=("table", "json", "csv"), default="table", help="default: table")
    add("--picture", type=Path, metavar="FILE.svg", help="draw the latencies of each run")
    add("--progress", choices=("text", "json"), default="text", help="on standard error")


def _add_engines(command: argparse.ArgumentParser) -> None:
    """Add the options that name the engines."""
    engines = command.add_mutually_exclusive_group(required=True)
    engines.add_argument("--url", metavar="U", help="with or without /v1")
    engines.add_argument("--profile", metavar="P", help="a name, or a YAML file")
    engines.add_argument(
        "--compare", nargs=2, metavar=("A.yaml", "B.yaml"), help="ratios are B / A"
    )
    add = command.add_argument
    add("--model", metavar="NAME", help="--url: as the server calls it; else the model to serve")
    add("--api-key-file", type=Path, metavar="FILE", help="of the server at --url")


def _add_load(command: argparse.ArgumentParser) -> None:
    """Add the options of the load."""
    loop = command.add_mutually_exclusive_group(required=True)
    loop.add_argument("--rate", type=positive, metavar="R", help="requests per second, open loop")
    loop.add_argument("--concurrency", type=whole, metavar="N", help="streams, closed loop")
    add = command.add_argument
    add(
        "--requests",
        type=whole,
        metavar="N",
        help=f"of each engine; default {DEFAULT_REQUESTS}",
    )
    add(
        "--seconds",
        type=positive,
        metavar="S",
        help="of each engine, in place of --requests",
    )
    add(
        "--warmup",
        type=count,
        default=DEFAULT_WARMUP,
        metavar="N",
        help="default: %(default)s",
    )
    add("--rounds", type=whole, default=DEFAULT_ROUNDS, metavar="N", help="of --compare: 10")
    add("--seed", type=int, default=0, metavar="N", help="default: %(default)s")
    add("--prompt", type=whole, metavar="N", help=f"tokens; default {DEFAULT_PROMPT}")
    add("--answer", type=whole, metavar="N", help=f"tokens; default {DEFAULT_ANSWER}")
    add("--workload", choices=WORKLOADS, default="chat", help="default: chat")
    add("--demand", metavar="FILE", help="of --workload ledger; - is standard input")
    add(
        "--timeout",
        type=positive,
        default=DEFAULT_SILENCE_S,
        metavar="S",
        help="the longest silence of an answer; default: %(default)s",
    )


def run_bench(options: argparse.Namespace) -> int:
    """Run the load and print the figures; return 1 if a request failed, else 0. Raises
    `EngineError` and its subclasses.
    """
    workload = _workload(options)
    slo = None if options.slo is None else read_slo(options.slo)
    progress = StageProgress(stage="bench", format=options.progress, out=sys.stderr)
    with ExitStack() as engines:
        benches = _benches(options, workload, engines, progress)
        _run_rounds(options, benches, progress)
    document = _document(benches, slo)
    _print(document, options)
    for bench in benches:
        for reason, failed in failure_counts(pooled(bench.rounds)):
            print(f"{bench.profile or 'the server'}: {failed} failed: {reason}", file=sys.stderr)
    return 1 if any(run["failed"] for run in document["runs"]) else 0


def _workload(options: argparse.Namespace) -> Workload:
    """Return the workload of the options. Raises `UsageError` or `EngineError`."""
    is_ledger = options.workload == "ledger"
    if is_ledger != (options.demand is not None):
        raise UsageError(
            "--workload ledger and --demand FILE belong together. The file comes from: tollgate "
            "report demand --days 30 --format json"
        )
    return Workload(
        kind=options.workload,
        prompt_tokens=options.prompt or DEFAULT_PROMPT,
        answer_tokens=options.answer or DEFAULT_ANSWER,
        seed=options.seed,
        demand=read_demand(options.demand) if is_ledger else None,
    )


def _benches(
    options: argparse.Namespace,
    workload: Workload,
    engines: ExitStack,
    progress: StageProgress,
) -> list[_Bench]:
    """Return the engines to measure, started if they are profiles; `engines` ends them."""
    if options.url is not None:
        key = vllm_command.read_key(options.api_key_file) if options.api_key_file else None
        return [_bench(options, workload, url=server_url(options.url), key=key)]
    profiles: Sequence[str] = options.compare or [options.profile]
    gpus = [profile_gpus(profile) for profile in profiles]
    require_engine()
    return [
        _bench(
            options,
            workload,
            url=engines.enter_context(engine_of(profile, model=options.model, progress=progress)),
            profile=profile,
            gpus=used,
        )
        for profile, used in zip(profiles, gpus, strict=True)
    ]


def _bench(
    options: argparse.Namespace,
    workload: Workload,
    *,
    url: str,
    key: str | None = None,
    profile: str | None = None,
    gpus: int = 1,
) -> _Bench:
    """Return one engine that answers at an address."""
    model = options.model if profile is None else None
    return _Bench(
        profile=profile,
        rent=Rent(usd_per_gpu_hour=options.gpu_usd_per_hour, gpus=options.gpus or gpus),
        client=LoadClient(url=url, key=key, silence_s=options.timeout),
        writer=prompt_writer(url, model=model, key=key, seed=options.seed),
        workload=workload,
    )


def _run_rounds(
    options: argparse.Namespace, benches: Sequence[_Bench], progress: StageProgress
) -> None:
    """Run the rounds of all engines. Of two engines each goes first in every other round."""
    count = min(options.rounds, options.requests or options.rounds) if options.compare else 1
    requests = options.requests
    if requests is None and options.seconds is None:
        requests = DEFAULT_REQUESTS
    each = None if requests is None else math.ceil(requests / count)
    shown = _Shown(progress, each and each * count * len(benches), options.seconds)
    for number in range(count):
        settings = LoadSettings(
            rate_per_s=options.rate,
            concurrency=options.concurrency,
            requests=each,
            seconds=options.seconds and options.seconds / count,
            warmup=0 if number else options.warmup,
        )
        for bench in benches if number % 2 == 0 else reversed(benches):
            bench.run_round(settings, shown.on_done)


class _Shown:
    """The progress of a run, by requests or, if their number is unknown, by seconds."""

    def __init__(
        self, progress: StageProgress, requests: int | None, seconds: float | None
    ) -> None:
        """Begin with nothing done."""
        self._progress, self._requests, self._seconds = progress, requests, seconds
        self._done = 0
        self._began_s = progress.elapsed_s

    def on_done(self, _measured: MeasuredRequest) -> None:
        """Show one more request."""
        self._done += 1
        passed_s = self._progress.elapsed_s - self._began_s
        if self._requests is not None:
            left_s = passed_s / self._done * (self._requests - self._done)
            done, total, unit = float(self._done), float(self._requests), "requests"
        else:
            total = self._seconds or passed_s
            done, unit = min(passed_s, total), "s"
            left_s = total - done
        self._progress.advance("load", "Load", done=done, total=total, unit=unit, left_s=left_s)


def _document(benches: Sequence[_Bench], slo: Slo | None) -> dict[str, Any]:
    """Return the JSON of the contract."""
    rows = [
        run_row(bench.profile, pooled(bench.rounds), slo=slo, rent=bench.rent) for bench in benches
    ]
    compared = ratios(benches[0].rounds, benches[1].rounds) if len(benches) == 2 else []
    return {"runs": rows, "ratios": [asdict(one) for one in compared]}


def _print(document: dict[str, Any], options: argparse.Namespace) -> None:
    """Write the picture and print the figures. Raises `UsageError` if a file cannot be written."""
    if options.picture:
        loop = f"rate {options.rate:g}/s" if options.rate else f"{options.concurrency} streams"
        try:
            drawn = picture(document, title=f"Latency under load: {options.workload}, {loop}")
            options.picture.write_text(drawn, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.picture} cannot be written: {error.strerror}.") from error
    shown: dict[str, Callable[[dict[str, Any]], str]] = {
        "json": lambda one: json.dumps(one, indent=2),
        "csv": text.as_csv,
        "table": text.as_text,
    }
    print(shown[options.format](document))
