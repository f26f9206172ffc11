"""Measures one real vLLM with `engine bench` and with `vllm bench serve`, in turns, on one load.

Run `python -m bench.bench_against_vllm` (about 20 minutes on two quiet cores); `--write` renews
docs/engine-report.md. It exits 1 unless each interval lies within 0.9 to 1.1.

Both send streaming chat requests in a closed loop with the same number of streams: prompts of the
same words, equal in tokens by the engine's own tokenizer, greedy answers of exact length, and the
same warm-up. Both count the time to the first token from the moment of sending. No prompt is sent
twice, so none is found in the prefix cache. Each tool goes first in every other pair.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench.engine_report import markdown, section
from engine import home as homes
from engine.bench.engines import engine_of
from engine.bench.figures import quantile
from engine.children import OUR_INTERPRETERS
from engine.load.client import CHAT_PATH
from engine.load.prompts import PromptWriter, prompt_writer
from engine.load.workload import Workload
from engine.progress import StageProgress

PAIRS, REQUESTS, STREAMS, WARMUP = 30, 24, 4, 2
PROMPT, ANSWER = 960, 64
"""A prompt long enough that the time to its first token is the engine's and not the client's: on a
server that answers in 1 ms, `vllm bench serve` reports 5 ms and `engine bench` 2 ms (2026-11-26).
"""
BEFORE_WARMUP = "Starting initial single prompt test run"
SETTLE_S = 2.0
RESAMPLES = 10_000
LOW, HIGH = 0.9, 1.1
METRICS = ("TTFT p50", "TPOT p50", "throughput")
Figures = Mapping[str, float]


def ours(url: str, options: argparse.Namespace) -> Figures:
    """Return the figures that `engine bench` prints."""
    argv = [sys.executable, "-m", "engine", "bench", "--url", url, "--format", "json"]
    argv += ["--concurrency", str(options.streams), "--requests", str(options.requests)]
    argv += [
        "--warmup",
        str(WARMUP),
        "--prompt",
        str(options.prompt),
        "--answer",
        str(options.answer),
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    (run,) = json.loads(done.stdout)["runs"]
    assert run["failed"] == 0
    return {
        "TTFT p50": run["ttft_s"]["p50"],
        "TPOT p50": run["tpot_s"]["p50"],
        "throughput": run["throughput_tok_per_s"],
    }


class HeldBenchmark:
    """A `vllm bench serve` that is loaded and stopped just before it sends its first request.

    Loading takes it 10 to 20 s of both cores, on which the machine changes. Held, it runs right
    after or right before `engine bench`.
    """

    def __init__(
        self, url: str, options: argparse.Namespace, writer: PromptWriter, folder: Path
    ) -> None:
        """Load it with prompts that `writer` makes."""
        self._options = options
        self._result = folder / "result.json"
        prompts = folder / "prompts.json"
        workload = Workload(prompt_tokens=options.prompt, answer_tokens=options.answer)
        chats = [
            [{"value": writer.messages(one)[0]["content"]}, {"value": ""}]
            for one in islice(workload.requests(), options.requests)
        ]
        prompts.write_text(json.dumps([{"conversations": chat} for chat in chats]), "utf-8")
        home = homes.engine_home(os.environ)
        argv = [str(home.python), str(homes.PACKAGE / "inside" / "vllm_cli.py"), "bench", "serve"]
        argv += ["--backend", "openai-chat", "--endpoint", CHAT_PATH, "--base-url", url]
        argv += ["--model", writer.model, "--tokenizer", str(homes.SHIPPED_MODELS / "tiny")]
        argv += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts)]
        argv += ["--disable-shuffle", "--sharegpt-output-len", str(options.answer), "--ignore-eos"]
        argv += ["--temperature", "0", "--num-prompts", str(options.requests), "--disable-tqdm"]
        argv += ["--max-concurrency", str(options.streams), "--num-warmups", str(WARMUP)]
        argv += ["--ready-check-timeout-sec", "0", "--save-result"]
        argv += ["--result-dir", str(folder), "--result-filename", self._result.name]
        self._process = subprocess.Popen(
            argv,
            env=vllm_variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        self._log = ""
        for line in self._process.stdout:
            self._log += line
            if line.startswith(BEFORE_WARMUP):
                break
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(SETTLE_S)  # a warm-up request that slipped out is answered meanwhile

    def run(self) -> Figures:
        """Let it run, and return the figures that it prints."""
        self._process.send_signal(signal.SIGCONT)
        output, _ = self._process.communicate()
        if self._process.returncode:
            raise RuntimeError(f"vllm bench serve failed:\n{(self._log + output)[-3000:]}")
        found = json.loads(self._result.read_text(encoding="utf-8"))
        count = self._options.requests
        assert found["completed"] == count, output[-3000:]
        assert found["total_input_tokens"] == count * self._options.prompt
        assert found["total_output_tokens"] == count * self._options.answer
        return {
            "TTFT p50": found["median_ttft_ms"] / 1000,
            "TPOT p50": found["median_tpot_ms"] / 1000,
            "throughput": found["output_throughput"],
        }


def vllm_variables() -> dict[str, str]:
    """Return the environment variables of `vllm bench serve`."""
    variables = {name: value for name, value in os.environ.items() if name not in OUR_INTERPRETERS}
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    return variables | quiet | {"PYTHONUNBUFFERED": "1"}


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the ratios of pairs with its 95 % interval, by the percentile bootstrap
    over pairs (sources: engine/bench/ratios.py). Other programs may disturb half of a pair; the
    median is the least moved by it.
    """
    rng = random.Random(0)
    medians = sorted(
        statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)
    )
    return statistics.median(ratios), quantile(medians, 0.025), quantile(medians, 0.975)


def measure(options: argparse.Namespace) -> list[tuple[Figures, Figures]]:
    """Return the figures of all pairs: ours, then vLLM's."""
    pairs = []
    progress = StageProgress(stage="bench", format="text", out=sys.stderr)
    with (
        engine_of("cpu", model="tiny", progress=progress) as url,
        tempfile.TemporaryDirectory() as folder,
    ):
        writer = prompt_writer(url, model=None, key=None, seed=0)
        for number in range(options.pairs):
            fresh = replace(writer, salt=f"{writer.salt} {number}")
            held = HeldBenchmark(url, options, fresh, Path(folder))
            if number % 2:
                other = held.run()
                own = ours(url, options)
            else:
                own = ours(url, options)
                other = held.run()
            pairs.append((own, other))
            print(number, dict(own), dict(other), file=sys.stderr, flush=True)
    return pairs


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if an interval leaves 0.9 to 1.1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens, less than 1024")
    parser.add_argument("--answer", type=int, default=ANSWER)
    parser.add_argument("--write", action="store_true", help="into docs/engine-report.md")
    options = parser.parse_args(arguments)
    pairs = measure(options)
    rows, is_within = [], True
    for metric in METRICS:
        ratio, low, high = interval([own[metric] / other[metric] for own, other in pairs])
        is_within = is_within and low >= LOW and high <= HIGH
        unit, scale = (" tok/s", 1.0) if metric == "throughput" else (" ms", 1000.0)
        medians = (
            sorted(side[metric] * scale for side in sides) for sides in zip(*pairs, strict=True)
        )
        cells = [f"{quantile(values, 0.5):,.1f}{unit}" for values in medians]
        rows.append([metric, *cells, f"{ratio:.3f}", f"{low:.3f} to {high:.3f}"])
    heads = ["median of the runs", "engine bench", "vllm bench serve", "ratio", "95 % interval"]
    load = (
        f"{options.pairs} pairs in turns; each run {options.requests} requests on "
        f"{options.streams} streams, {options.prompt} tokens in, {options.answer} out, profile "
        "`cpu`, model `tiny`. Ratio: median over the pairs of `engine bench` / `vllm bench serve`. "
        + ("Each interval lies within 0.9 to 1.1." if is_within else "NOT all within 0.9 to 1.1.")
    )
    command = f"python -m bench.bench_against_vllm {' '.join(arguments or sys.argv[1:])}".strip()
    section(
        "against-vllm", [load, "", *markdown(heads, rows)], command=command, write=options.write
    )
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
