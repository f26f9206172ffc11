"""Measures the levers of an engine and the figures of `engine plan` on this machine's GPU.

    python -m bench.engine_on_gpu --out FILE.json      measure; each finished part is kept at once
    python -m bench.engine_on_gpu --from FILE.json --write

The model has the shape of Llama 3.1 8B and random weights: they time like trained ones, and no
hub is asked. Only speculation needs answers that mean something, and takes the model `tiny`.
The engines share the GPU: each gets `--utilisation` of its memory, and at most two are up.
`--rehearse` runs the same parts with `tiny` on a CPU, to try this program itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

from bench.engine_report import markdown
from bench.levers.experiments import (
    bodies,
    drafts,
    first_tokens,
    gap_p99,
    hit_share,
    lengths,
    median_ms,
    mixed_load,
    pooled_mean,
    rate,
    run_inside,
    speculated_cases,
    write_job,
)
from bench.levers.seen import Seen, kv_use, watched
from bench.levers.side_by_side import engines_of, gain, take_turns, with_interval
from bench.stand.machine import commit, describe
from bench.stand.page import replace_between
from engine import home as homes
from engine.load.prompts import PromptWriter, prompt_writer
from engine.load.workload import Workload
from engine.plan.architecture import count
from engine.plan.config import read_config
from engine.plan.gpus import Gpu, gpu_named
from engine.plan.layout import MEMORY_UTILISATION, Layout, Served, fit
from engine.plan.roofline import Work, predict

PAGE = Path(__file__).parents[1] / "docs" / "engine-report.md"
MODEL = "meta-llama/Llama-3.1-8B"
CONTEXT = 8192
PART_LIMIT_S = 150
CARRIED = ("chat_template.jinja", "generation_config.json", "tokenizer_config.json")


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run: the engine that most parts use, and the sizes of their load."""

    model: str
    device: str
    utilisation: float
    rounds: int
    streams: tuple[int, ...]
    prompt: int
    answer: int
    shared: int
    long: int
    arrivals_s: tuple[float, ...]
    base: str = ""
    results: dict[str, Any] = field(default_factory=dict)

    def profile(self, **changed: object) -> str:
        """Return the profile of the base engine with some settings changed."""
        settings: dict[str, object] = {
            "device": self.device,
            "max_model_len": CONTEXT,
            "max_num_seqs": max(self.streams),
            "max_num_batched_tokens": CONTEXT,
            "chunked_prefill": "false",
            "prefix_caching": "false",
            **changed,
        }
        return "".join(f"{name}: {value}\n" for name, value in settings.items())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write what was measured into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE.json")
    parser.add_argument("--from", dest="given", type=Path, metavar="FILE.json")
    parser.add_argument("--write", action="store_true", help="into docs/engine-report.md")
    parser.add_argument("--utilisation", type=float, default=0.42)
    parser.add_argument("--limit", type=float, default=480, metavar="SECONDS")
    parser.add_argument("--commit", metavar="NAME", help="of a copy that has no git")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args(arguments)
    if options.given:
        lines = report(json.loads(options.given.read_text(encoding="utf-8")))
        print("\n".join(lines))
        if options.write:
            replace_between(PAGE, "<!-- bench: gpu -->", "<!-- /bench: gpu -->", lines=lines)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        measure(bench_of(options, Path(scratch)), options)
    return 0


def bench_of(options: argparse.Namespace, scratch: Path) -> Bench:
    """Return the sizes for a GPU, or those of a rehearsal."""
    if options.rehearse:
        return Bench(
            model="tiny",
            device="cpu",
            utilisation=options.utilisation,
            rounds=1,
            streams=(1, 4),
            prompt=64,
            answer=16,
            shared=512,
            long=600,
            arrivals_s=(0.2, 0.4),
        )
    return Bench(
        model=str(random_model(scratch / "llama-3.1-8b")),
        device="gpu",
        utilisation=options.utilisation,
        rounds=3,
        streams=(1, 8, 32, 128),
        prompt=512,
        answer=128,
        shared=3072,
        long=6000,
        arrivals_s=(0.5, 1.5, 2.5),
    )


def random_model(folder: Path) -> Path:
    """Write a model without weights: a shape of the plan's table, and a tokenizer as large.

    The tokenizer is tiny's, with a name for each further number, so that every token has a text.
    """
    folder.mkdir(parents=True)
    tiny = homes.SHIPPED_MODELS / "tiny"
    config = {
        **read_config(MODEL).fields,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in CARRIED:
        shutil.copy(tiny / name, folder / name)
    tokenizer = json.loads((tiny / "tokenizer.json").read_text(encoding="utf-8"))
    words = tokenizer["model"]["vocab"]
    known = set(words.values()) | {one["id"] for one in tokenizer["added_tokens"]}
    words |= {f"w{number}": number for number in range(config["vocab_size"]) if number not in known}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def measure(bench: Bench, options: argparse.Namespace) -> None:
    """Run all parts; a part that fails says so in the results and stops no other."""
    began_s = time.monotonic()

    def keep(name: str, part: Callable[[], Any]) -> None:
        """Run one part and save its result, or its error."""
        if time.monotonic() - began_s > options.limit:
            bench.results[name] = {"error": f"not run: {options.limit:.0f} s were over"}
        else:
            started_s = time.monotonic()
            try:
                with limited(PART_LIMIT_S):
                    bench.results[name] = part()
            except Exception as error:  # the other parts are to be measured
                bench.results[name] = {"error": f"{type(error).__name__}: {error}"[-2000:]}
            shown = json.dumps(bench.results[name])[:600]
            print(f"== {name}: {time.monotonic() - started_s:.0f} s: {shown}", flush=True)
        options.out.write_text(json.dumps(bench.results, indent=1), encoding="utf-8")

    bench.results["facts"] = {**facts(bench), "commit": options.commit or commit()}
    keep("roofline", lambda: json.loads(inside_engine("roofline.py")))
    with ExitStack() as stack:

        def start() -> str:
            """Start the base engine."""
            bench.base = stack.enter_context(one_engine(bench.profile(), bench.model))
            return bench.base

        keep("base", start)
        if not bench.base:
            return
        for name, part in PARTS.items():
            keep(name, lambda part=part: part(bench))  # type: ignore[misc]
    keep("speculation", lambda: speculation(bench))


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise `TimeoutError` in the block after some seconds."""

    def late(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def facts(bench: Bench) -> dict[str, Any]:
    """Return the machine, the versions and the date."""
    asked = "import torch, vllm; print(torch.__version__, vllm.__version__)"
    home = homes.engine_home(os.environ)
    versions = subprocess.run(
        [str(home.python), "-c", asked], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.split()
    gpu = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        if bench.device == "gpu"
        else ["echo", "no GPU: a rehearsal"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "when": f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC",
        "machine": describe(),
        "gpu": gpu,
        "versions": versions[-2:],
        "rounds": bench.rounds,
        "utilisation": bench.utilisation,
    }


def inside_engine(script: str) -> str:
    """Run a program of `engine/inside` in the engine's environment; return its output."""
    home = homes.engine_home(os.environ)
    done = subprocess.run(
        [str(home.python), str(homes.PACKAGE / "inside" / script)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


@contextmanager
def one_engine(profile: str, model: str) -> Iterator[str]:
    """Serve one profile for the block; yield its address."""
    with engines_of({"engine": profile}, {"engine": model}) as urls:
        yield urls["engine"]


def writer_of(url: str) -> PromptWriter:
    """Return a writer of prompts for an engine."""
    return prompt_writer(url, model=None, key=None, seed=0)


def gpu_of(bench: Bench) -> Gpu:
    """Return the GPU in the plan's table, with the share of its memory that one engine gets."""
    name = "H100" if "H100" in bench.results["facts"]["gpu"] else "H200"
    gpu = gpu_named(name)
    share = bench.utilisation / MEMORY_UTILISATION
    return replace(gpu, memory_bytes=int(gpu.memory_bytes * share))


def served(quantization: str = "none") -> Served:
    """Return the model as the plan sees it."""
    return Served(
        model=count(read_config(MODEL)),
        quantization=quantization,
        kv_cache="auto",
        context=CONTEXT,
    )


def memory(bench: Bench) -> dict[str, Any]:
    """Return the KV tokens of the engine and those of the plan."""
    with kv_use(bench.base) as use:
        pass
    planned = fit(served(), gpu_of(bench), Layout()).kv_tokens
    return {"engine_kv_tokens": use.tokens, "planned_kv_tokens": planned}


def batching(bench: Bench) -> list[dict[str, Any]]:
    """Return the rate and the times by the number of streams, in rounds of waves."""
    writer, number = writer_of(bench.base), 0
    seen: dict[int, list[Seen]] = {streams: [] for streams in bench.streams}
    for turn in range(bench.rounds + 1):
        for streams in bench.streams if turn % 2 else reversed(bench.streams):
            asked = lengths(streams, prompt=bench.prompt, answer=bench.answer, first=number)
            number += len(asked)
            one = watched(bench.base, bodies(writer, asked), streams=streams)
            if turn:
                seen[streams].append(one)
    rows = []
    for streams, row in seen.items():
        work = Work(prompt=bench.prompt, answer=bench.answer, batch=streams)
        planned = predict(served(), gpu_of(bench), Layout(), work)
        rows.append(
            {
                "streams": streams,
                "tok_per_s": rate(row),
                "gain": with_interval(gain(seen[bench.streams[0]], row, "throughput_tok_per_s")),
                "tpot_ms": median_ms(row, "tpot_s"),
                "ttft_ms": median_ms(row, "ttft_s"),
                "step_tokens": pooled_mean(row, "iteration_tokens_total"),
                "planned_tok_per_s": planned.throughput_tok_per_s,
                "planned_tpot_ms": 1000 * planned.tpot_s,
                "planned_ttft_ms": 1000 * planned.ttft_s,
            }
        )
    return rows


def prefix_caching(bench: Bench) -> dict[str, Any]:
    """Return TTFT without and with the prefix cache, for a long shared system prompt."""

    def run_round(url: str, writer: PromptWriter, number: int) -> Seen:
        asked = lengths(
            4, prompt=bench.shared + 64, answer=4, shared=bench.shared, first=4 * number
        )
        return watched(url, bodies(writer, asked), streams=1)

    with one_engine(bench.profile(prefix_caching="true"), bench.model) as url:
        urls = {"off": bench.base, "on": url}
        seen = take_turns(urls, {"": run_round}, rounds=bench.rounds)
    off, on = seen["off", ""], seen["on", ""]
    return {
        "shared": bench.shared,
        "gain": with_interval(gain(on, off, "ttft_s")),
        "off_ms": median_ms(off, "ttft_s"),
        "on_ms": median_ms(on, "ttft_s"),
        "hit_share": hit_share(on),
    }


def fp8(bench: Bench) -> list[dict[str, Any]]:
    """Return the gain of 8-bit weights and activations; the plan's gain beside it."""
    cases = {}
    chosen = (bench.streams[0], bench.streams[-2])
    for streams in chosen:

        def run_round(url: str, writer: PromptWriter, number: int, streams: int = streams) -> Seen:
            first = 100_000 * streams + number * streams
            asked = lengths(streams, prompt=bench.prompt, answer=bench.answer, first=first)
            return watched(url, bodies(writer, asked), streams=streams)

        cases[str(streams)] = run_round
    quantization = "fp8" if bench.device == "gpu" else "none"
    profile = bench.profile(quantization=quantization)
    with one_engine(profile, bench.model) as url:
        seen = take_turns({"off": bench.base, "on": url}, cases, rounds=bench.rounds)
    rows = []
    for streams in chosen:
        off, on = seen["off", str(streams)], seen["on", str(streams)]
        work = Work(prompt=bench.prompt, answer=bench.answer, batch=streams)
        planned = [
            predict(served(name), gpu_of(bench), Layout(), work).throughput_tok_per_s
            for name in ("none", "fp8")
        ]
        rows.append(
            {
                "streams": streams,
                "off_tok_per_s": rate(off),
                "on_tok_per_s": rate(on),
                "gain": with_interval(gain(off, on, "throughput_tok_per_s")),
                "planned_gain": planned[1] / planned[0],
            }
        )
    return rows


def chunked_prefill(bench: Bench) -> dict[str, Any]:
    """Return the worst gap of running streams while long prompts arrive."""
    chunk = 512
    profile = bench.profile(chunked_prefill="true", max_num_batched_tokens=chunk)
    found: dict[str, dict[str, list[Any]]] = {}
    with one_engine(profile, bench.model) as url:
        urls = {"off": bench.base, "on": url}
        writers = {name: writer_of(one) for name, one in urls.items()}
        for number in range(bench.rounds + 1):
            for name in urls if number % 2 else reversed(list(urls)):
                running, arrived = asyncio.run(
                    mixed_load(
                        urls[name],
                        writers[name],
                        number,
                        answer=4 * bench.answer,
                        prompt=bench.long,
                        arrivals_s=bench.arrivals_s,
                    )
                )
                if number:
                    kept = found.setdefault(name, {"running": [], "arrived": []})
                    kept["running"].append(Seen(run=running, rise={}))
                    kept["arrived"].append(arrived)
    rows = {
        name: {
            "worst_ms": 1000
            * statistics.median(
                max(gap for one in round_.run.answered for gap in one.gaps_s)
                for round_ in row["running"]
            ),
            "p99_ms": 1000 * gap_p99(row["running"]),
            "newcomer_ms": 1000 * statistics.median(first_tokens(row["arrived"])),
        }
        for name, row in found.items()
    }
    return {"chunk": chunk, "long": bench.long, **rows}


def static_batches(bench: Bench) -> dict[str, Any]:
    """Return the time of static batches in `transformers` and of the engine on the same load."""
    size, total = 16, 64 if bench.device == "gpu" else 16
    drawn = islice(
        Workload(kind="mixed", prompt_tokens=64, answer_tokens=bench.answer // 2).requests(), total
    )
    asked = [replace(one, prompt_tokens=64) for one in drawn]
    number_format = "bfloat16" if bench.device == "gpu" else "float32"
    writer = writer_of(bench.base)
    model = bench.model
    if model == "tiny":
        model = str(homes.SHIPPED_MODELS / "tiny")
    with tempfile.TemporaryDirectory() as scratch, kv_use(bench.base) as use:
        watched(bench.base, bodies(writer, asked[:size]), streams=size)
        fresh = replace(writer, salt=f"{writer.salt} 1")
        seen = watched(bench.base, bodies(fresh, asked), streams=size)
        job = Path(scratch) / "job.json"
        write_job(job, fresh, asked, batch=size, number_format=number_format)
        answered = json.loads(run_inside("static_batches.py", model, str(job)))
    assert answered["tokens"] == seen.run.output_tokens, "the loads differ"
    return {
        "requests": total,
        "batch": size,
        "shortest": min(one.answer_tokens for one in asked),
        "longest": max(one.answer_tokens for one in asked),
        "tokens": answered["tokens"],
        "static_s": answered["seconds"],
        "continuous_s": seen.run.duration_s,
        "kv_tokens": use.tokens,
        "kv_peak_tokens": use.peak * use.tokens,
        "kv_mean_tokens": use.mean * use.tokens,
        "kv_reserved_tokens": size * CONTEXT,
    }


def calibration(bench: Bench) -> dict[str, Any]:
    """Return the result of one short calibration of the base engine."""
    argv = [sys.executable, "-m", "engine", "calibrate", writer_of(bench.base).model]
    argv += ["--url", bench.base, "--seconds", "80" if bench.device == "gpu" else "30"]
    argv += [
        "--concurrency",
        "16",
        "--prompt",
        str(2 * bench.prompt),
        "--answer",
        str(bench.answer),
    ]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    names = ("held_out_error", "flat_price_error", "r_squared", "seconds", "refused")
    rates = [name for name in found if name.endswith("tok_per_s")]
    return {name: found[name] for name in (*names, *rates)}


PARTS: Mapping[str, Callable[[Bench], Any]] = {
    "memory": memory,
    "batching": batching,
    "prefix-caching": prefix_caching,
    "fp8": fp8,
    "chunked-prefill": chunked_prefill,
    "static-batches": static_batches,
    "calibration": calibration,
}


def speculation(bench: Bench) -> list[dict[str, Any]]:
    """Return the gain of drafts by n-grams, on an answer that the prompt holds and on another."""
    cases = speculated_cases()
    on = bench.profile(speculative="{method: ngram, tokens: 4}")
    with (
        one_engine(bench.profile(), "tiny") as off_url,
        one_engine(on, "tiny") as on_url,
    ):
        seen = take_turns({"off": off_url, "on": on_url}, cases, rounds=bench.rounds)
    rows = []
    for case in cases:
        without, drafting = seen["off", case], seen["on", case]
        drafted, accepted_share = drafts(drafting)
        rows.append(
            {
                "case": case,
                "off_tok_per_s": rate(without),
                "on_tok_per_s": rate(drafting),
                "gain": with_interval(gain(without, drafting, "throughput_tok_per_s")),
                "accepted_share": accepted_share,
                "drafted": drafted,
            }
        )
    return rows


def report(results: Mapping[str, Any]) -> list[str]:
    """Return the lines of the section."""
    seen = results["facts"]
    torch, vllm = seen["versions"]
    lines = [
        f"- {seen['when']}, commit {seen['commit']}: `python -m bench.engine_on_gpu`",
        f"- {seen['gpu']}; {seen['machine']}; torch {torch}, vLLM {vllm}",
        "- The shape of Llama 3.1 8B with random weights in bfloat16, served by "
        f"`engine serve`, {seen['utilisation']:.0%} of the GPU's memory an engine; "
        f"{seen['rounds']} rounds in turns.",
        "- The machine had no network: vLLM ran without FlashInfer and torch.compile, with CUDA "
        "graphs for decoding (`tiny`: without), and without `--max-num-queued-reqs`, which this "
        "release lacks.",
        "",
    ]
    for name, write in SECTIONS.items():
        found = results.get(name, {"error": "not run"})
        is_broken = isinstance(found, dict) and "error" in found
        lines += [f"**{TITLES[name]}.**", ""] if not is_broken else []
        lines += [f"**{TITLES[name]}**: not measured ({found['error']})."] if is_broken else []
        lines += write(found) if not is_broken else []
        lines.append("")
    return lines[:-1]


def _roofline(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the micro-benchmark."""
    rates = {name: value for name, value in found.items() if name.startswith("matrix_flop_per_s_")}
    shown = ", ".join(
        f"{value / 1e12:,.0f} TFLOP/s in {name.rpartition('_')[2]}" for name, value in rates.items()
    )
    return [f"Matrix products: {shown}. Memory: {found['copy_bytes_per_s'] / 1e12:.2f} TB/s."]


def _memory(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of the KV cache's size."""
    engine, planned = found["engine_kv_tokens"], found["planned_kv_tokens"]
    return [
        f"KV cache of the engine: {engine:,} tokens; of the plan for the same share of the memory: "
        f"{planned:,} (plan / engine {planned / engine:.3f})."
    ]


def _batching(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table by streams, with the plan beside it."""
    heads = ["streams", "output tok/s", "against 1", "TPOT", "TTFT", "engine: tokens in a step"]
    heads += ["plan: tok/s", "plan: TPOT", "plan / measured tok/s"]
    return markdown(
        heads,
        [
            [
                str(one["streams"]),
                f"{one['tok_per_s']:,.0f}",
                one["gain"],
                f"{one['tpot_ms']:.2f} ms",
                f"{one['ttft_ms']:.0f} ms",
                f"{one['step_tokens']:.1f}",
                f"{one['planned_tok_per_s']:,.0f}",
                f"{one['planned_tpot_ms']:.2f} ms",
                f"{one['planned_tok_per_s'] / one['tok_per_s']:.2f}",
            ]
            for one in found
        ],
    )


def _prefix_caching(found: Mapping[str, Any]) -> list[str]:
    """Return the line of prefix caching."""
    return [
        f"A system prompt of {found['shared']:,} tokens: TTFT {found['off_ms']:.0f} ms without, "
        f"{found['on_ms']:.0f} ms with the cache; off / on **{found['gain']}**. The engine took "
        f"{found['hit_share']:.1%} of the tokens from the cache."
    ]


def _fp8(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of FP8."""
    heads = ["streams", "bfloat16, tok/s", "FP8, tok/s", "FP8 / bfloat16", "plan: FP8 / bfloat16"]
    return markdown(
        heads,
        [
            [
                str(one["streams"]),
                f"{one['off_tok_per_s']:,.0f}",
                f"{one['on_tok_per_s']:,.0f}",
                one["gain"],
                f"×{one['planned_gain']:.2f}",
            ]
            for one in found
        ],
    )


def _chunked_prefill(found: Mapping[str, Any]) -> list[str]:
    """Return the table of chunked prefill."""
    rows = [
        [
            title,
            *(f"{found[name][figure]:.0f} ms" for figure in ("worst_ms", "p99_ms", "newcomer_ms")),
        ]
        for name, title in (("off", "off"), ("on", f"{found['chunk']} tokens"))
    ]
    smoother = found["off"]["worst_ms"] / found["on"]["worst_ms"]
    return [
        f"Two streams write while prompts of {found['long']:,} tokens arrive. Worst gap off / "
        f"chunked: **×{smoother:.1f}**.",
        "",
        *markdown(["chunks", "worst gap", "p99 of the gaps", "newcomer's TTFT"], rows),
    ]


def _static_batches(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of static batches."""
    reserved, peak = found["kv_reserved_tokens"], found["kv_peak_tokens"]
    return [
        f"{found['requests']} requests, answers of {found['shortest']} to {found['longest']} "
        f"tokens, batches of {found['batch']}: `transformers`, padded, "
        f"{found['tokens'] / found['static_s']:,.0f} tok/s; the engine "
        f"{found['tokens'] / found['continuous_s']:,.0f} tok/s: "
        f"**×{found['static_s'] / found['continuous_s']:.1f}**. KV memory used at the peak: "
        f"{peak:,.0f} tokens; reserving the context of {CONTEXT:,} for each: {reserved:,} "
        f"(×{reserved / peak:.0f})."
    ]


def _calibration(found: Mapping[str, Any]) -> list[str]:
    """Return the line of the calibration."""
    refused = f" Refused: {'; '.join(map(str, found['refused']))}." if found["refused"] else ""
    return [
        f"One run of 80 s at 16 requests at once: R² {found['r_squared']:.4f}, "
        f"error on held-out load {found['held_out_error']:.1%}, of a flat price "
        f"{found['flat_price_error']:.1%}.{refused}"
    ]


def _speculation(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of speculation."""
    heads = ["answer (model `tiny`)", "off, tok/s", "on, tok/s", "on / off", "accepted drafts"]
    return markdown(
        heads,
        [
            [
                one["case"],
                f"{one['off_tok_per_s']:,.0f}",
                f"{one['on_tok_per_s']:,.0f}",
                one["gain"],
                f"{one['accepted_share']:.0%} of {one['drafted']:,.0f}",
            ]
            for one in found
        ],
    )


SECTIONS: Mapping[str, Callable[[Any], list[str]]] = {
    "roofline": _roofline,
    "memory": _memory,
    "batching": _batching,
    "prefix-caching": _prefix_caching,
    "speculation": _speculation,
    "fp8": _fp8,
    "chunked-prefill": _chunked_prefill,
    "static-batches": _static_batches,
    "calibration": _calibration,
}
TITLES = {
    "roofline": "Roofline",
    "memory": "Memory, plan against the engine",
    "batching": "Continuous batching, and the plan against it",
    "prefix-caching": "Prefix caching",
    "speculation": "Speculation by n-grams",
    "fp8": "Quantization to FP8",
    "chunked-prefill": "Chunked prefill",
    "static-batches": "Continuous against static batches",
    "calibration": "Calibration",
}


if __name__ == "__main__":
    sys.exit(main())
