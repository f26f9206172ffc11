"""The six experiments: each returns the lines of its section in docs/engine-report.md."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.engine_report import markdown
from bench.levers.seen import Seen, kv_use, metrics_page, totals, watched
from bench.levers.side_by_side import RunRound, engines_of, gain, in_turns, with_interval
from engine import home as homes
from engine import training_chats
from engine.bench.figures import quantile
from engine.children import OUR_INTERPRETERS
from engine.cpu import number_format_here
from engine.load.client import LoadClient
from engine.load.loops import closed_loop, open_loop
from engine.load.measured import LoadRun
from engine.load.prompts import PromptWriter, prompt_writer
from engine.load.workload import LoadRequest, Workload

INSIDE = Path(__file__).parents[1] / "inside"
CPU = "device: cpu\n"
KV_BYTES_PER_TOKEN_OF_MID = 2 * 12 * 6 * 64
"""Keys and values of 12 layers with 6 heads of 64; times the bytes of a number."""


def run_inside(script: str, *arguments: str) -> str:
    """Run a program in the engine's environment and return its standard output."""
    home = homes.engine_home(os.environ)
    variables = {name: value for name, value in os.environ.items() if name not in OUR_INTERPRETERS}
    done = subprocess.run(
        [str(home.python), str(INSIDE / script), *arguments],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def models(folder: Path) -> dict[str, str]:
    """Return the folders of `mid` and `mid-int8`, made if they are missing."""
    if not (folder / "mid-int8" / "config.json").exists():
        run_inside("random_models.py", str(homes.SHIPPED_MODELS / "tiny"), str(folder))
    return {name: str(folder / name) for name in ("mid", "mid-int8")}


def lengths(
    count: int, *, prompt: int, answer: int, shared: int = 0, first: int = 0
) -> list[LoadRequest]:
    """Return requests of equal lengths, in tokens."""
    return [
        LoadRequest(
            number=first + number, prompt_tokens=prompt, shared_tokens=shared, answer_tokens=answer
        )
        for number in range(count)
    ]


def bodies(writer: PromptWriter, requests: Sequence[LoadRequest]) -> list[dict[str, Any]]:
    """Return the bodies of requests."""
    return [writer.body(one) for one in requests]


def median_ms(seen: Sequence[Seen], name: str) -> float:
    """Return the median of `ttft_s` or `tpot_s` over all requests of some rounds, in ms."""
    values: list[float | None] = [
        getattr(one, name) for round_ in seen for one in round_.run.answered
    ]
    return 1000 * statistics.median(value for value in values if value is not None)


def rate(seen: Sequence[Seen]) -> float:
    """Return the output tokens per second of some rounds."""
    return sum(one.run.output_tokens for one in seen) / sum(one.run.duration_s for one in seen)


def pooled_mean(seen: Sequence[Seen], histogram: str) -> float:
    """Return the mean of an engine's histogram over some rounds."""
    above, below = (
        sum(one.rise.get(f"{histogram}_{part}", 0.0) for one in seen) for part in ("sum", "count")
    )
    return above / below if below else 0.0


def batching(folder: Path, rounds: int) -> list[str]:
    """Return the section of continuous batching: 1, 8 and 32 streams on one engine."""
    streams = (1, 8, 32)
    seen: dict[int, list[Seen]] = {count: [] for count in streams}
    profile = f"{CPU}max_num_seqs: 32\nmax_num_batched_tokens: 2048\n"
    with engines_of({"cpu": profile}, {"cpu": models(folder)["mid"]}) as urls:
        writer = prompt_writer(urls["cpu"], model=None, key=None, seed=0)
        number = 0
        for turn in range(rounds + 1):
            for count in streams if turn % 2 else reversed(streams):
                asked = lengths(max(2, 2 * count), prompt=64, answer=64, first=number)
                number += len(asked)
                one = watched(urls["cpu"], bodies(writer, asked), streams=count)
                if turn:
                    seen[count].append(one)
    rows = []
    for count in streams:
        row = seen[count]
        steps = pooled_mean(row, "iteration_tokens_total")
        rows.append(
            [
                str(count),
                f"{rate(row):,.0f}",
                with_interval(gain(seen[1], row, "throughput_tok_per_s")),
                f"{median_ms(row, 'tpot_s'):.1f} ms",
                f"{median_ms(row, 'ttft_s'):.0f} ms",
                f"{steps:.1f}",
                f"{1000 * pooled_mean(row, 'request_time_per_output_token_seconds'):.1f} ms",
            ]
        )
    heads = ["streams", "output tok/s", "against 1 stream", "TPOT", "TTFT"]
    heads += ["engine: tokens in a step", "engine: TPOT, mean"]
    return [
        f"Model `mid`, 64 tokens in, 64 out, {rounds} rounds in turns on one engine. A step that "
        "reads the weights serves all its sequences. Anchor: ×17.5 at 32 streams (AVX-512, AMX).",
        "",
        *markdown(heads, rows),
    ]


def prefix_caching(folder: Path, rounds: int) -> list[str]:
    """Return the section of prefix caching: a system prompt of 3,072 tokens, on and off."""
    mid = models(folder)["mid"]
    profiles = {
        name: f"{CPU}max_num_seqs: 8\nmax_num_batched_tokens: 2048\nprefix_caching: {switch}\n"
        for name, switch in (("off", "false"), ("on", "true"))
    }

    def run_round(url: str, writer: PromptWriter, number: int) -> Seen:
        asked = lengths(2, prompt=3104, answer=4, shared=3072, first=2 * number)
        return watched(url, bodies(writer, asked), streams=1)

    seen = in_turns(profiles, dict.fromkeys(profiles, mid), {"": run_round}, rounds=rounds)
    rows = []
    for (name, _), row in seen.items():
        rows.append(
            [
                name,
                f"{median_ms(row, 'ttft_s'):,.0f} ms",
                f"{hit_share(row):.1%}",
                f"{1000 * pooled_mean(row, 'request_prefill_time_seconds'):,.0f} ms",
            ]
        )
    return [
        "Model `mid`, a system prompt of 3,072 tokens and 32 tokens of one's own, one stream, "
        f"{rounds} rounds in turns. TTFT off / on: "
        f"**{with_interval(gain(seen['on', ''], seen['off', ''], 'ttft_s'))}**. Anchor: ×31.",
        "",
        *markdown(
            ["prefix caching", "TTFT", "engine: tokens from the cache", "engine: prefill, mean"],
            rows,
        ),
    ]


def hit_share(seen: Sequence[Seen]) -> float:
    """Return the share of the prompts' tokens that came from an engine's prefix cache."""
    hits, asked = (
        sum(one.rise[f"prefix_cache_{part}_total"] for one in seen) for part in ("hits", "queries")
    )
    return hits / asked if asked else 0.0


def speculated_cases() -> dict[str, RunRound]:
    """Return the rounds for drafts by n-grams: an answer that the prompt holds, and one without a
    repeated token, of the model `tiny`; each asks four times.
    """
    story = [
        {"role": "user", "content": "Tell me a story"},
        {"role": "assistant", "content": training_chats.STORY},
        {"role": "user", "content": "Tell me a story"},
    ]
    countdown = [{"role": "user", "content": "Count down from 58"}]

    def asking(messages: list[dict[str, str]]) -> RunRound:
        """Return the round that asks one question four times."""

        def run_round(url: str, writer: PromptWriter, _number: int) -> Seen:
            body = {
                "model": writer.model,
                "messages": messages,
                "max_tokens": 400,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            return watched(url, [body] * 4, streams=1)

        return run_round

    return {"a story that the prompt holds": asking(story), "a countdown": asking(countdown)}


def drafts(seen: Sequence[Seen]) -> tuple[float, float]:
    """Return the tokens that were drafted, and the share of them that was accepted."""
    drafted, accepted = (
        sum(one.rise.get(f"spec_decode_num_{part}_tokens_total", 0.0) for one in seen)
        for part in ("draft", "accepted")
    )
    return drafted, accepted / drafted if drafted else 0.0


def speculation(_folder: Path, rounds: int) -> list[str]:
    """Return the section of n-gram speculation: an answer copied from the prompt, and one
    without a repeated token.
    """
    base = f"{CPU}max_num_seqs: 8\nmax_num_batched_tokens: 2048\n"
    profiles = {"off": base, "on": f"{base}speculative: {{method: ngram, tokens: 4}}\n"}
    cases = speculated_cases()
    seen = in_turns(profiles, dict.fromkeys(profiles, "tiny"), cases, rounds=rounds)
    lines = []
    for case in cases:
        off, on = seen["off", case], seen["on", case]
        drafted, accepted_share = drafts(on)
        lengths_of = [
            {one.output_tokens for round_ in row for one in round_.run.answered}
            for row in (off, on)
        ]
        assert lengths_of[0] == lengths_of[1], "speculation changed an answer"
        lines.append(
            [
                case,
                f"{rate(off):,.0f}",
                f"{rate(on):,.0f}",
                with_interval(gain(off, on, "throughput_tok_per_s")),
                f"{accepted_share:.0%} of {drafted:,.0f}",
            ]
        )
    heads = ["answer", "off, tok/s", "on, tok/s", "on / off", "engine: accepted drafts"]
    return [
        "Model `tiny` (trained), greedy, 4 drafted tokens, n-grams of 2 to 4, one stream, "
        f"{rounds} rounds in turns. Answers are equally long. Anchors: ×1.4 and ×0.8.",
        "",
        *markdown(heads, lines),
    ]


def int8(folder: Path, rounds: int) -> list[str]:
    """Return the section of int8 weights, or the reason why this CPU refuses them."""
    found = models(folder)
    base = f"{CPU}max_num_seqs: 16\nmax_num_batched_tokens: 2048\n"
    profiles = {"default": base, "int8": f"{base}quantization: int8\n"}
    if reason := refusal(profiles["int8"], found["mid-int8"]):
        return [f"Refused on this CPU: {reason}"]
    paths = {"default": found["mid"], "int8": found["mid-int8"]}

    def on_streams(streams: int) -> RunRound:
        """Return the round with a number of streams."""

        def run_round(url: str, writer: PromptWriter, number: int) -> Seen:
            count = max(2, streams)
            asked = lengths(count, prompt=128, answer=48, first=1000 * streams + number * count)
            return watched(url, bodies(writer, asked), streams=streams)

        return run_round

    cases = {str(streams): on_streams(streams) for streams in (1, 16)}
    seen = in_turns(profiles, paths, cases, rounds=rounds)
    lines = []
    for case in cases:
        rows = [seen[name, case] for name in profiles]
        engine_ms = [
            1000 * pooled_mean(row, "request_time_per_output_token_seconds") for row in rows
        ]
        lines.append(
            [
                case,
                *(f"{rate(row):,.0f}" for row in rows),
                with_interval(gain(rows[0], rows[1], "throughput_tok_per_s")),
                " / ".join(f"{one:.1f} ms" for one in engine_ms),
            ]
        )
    sizes = [
        sum(file.stat().st_size for file in Path(path).glob("*.safetensors")) / 1e6
        for path in paths.values()
    ]
    heads = ["streams", "default, tok/s", "int8, tok/s", "int8 / default"]
    heads += ["engine: TPOT, default / int8"]
    return [
        f"Model `mid` in {number_format_here(os.environ)} and as W8A8 (compressed-tensors): files "
        f"of {sizes[0]:.0f} and {sizes[1]:.0f} MB. 128 tokens in, 48 out, {rounds} rounds. "
        "Anchor: ×1.5 (AVX-512, AMX, against bfloat16).",
        "",
        *markdown(heads, lines),
    ]


def refusal(profile: str, model: str) -> str | None:
    """Return the reasons why `engine serve` refuses a profile on this machine, or None."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        path.write_text(profile, encoding="utf-8")
        argv = [sys.executable, "-m", "engine", "serve", "--dry-run", "--profile", str(path)]
        done = subprocess.run(
            [*argv, "--model", model], stdout=subprocess.PIPE, text=True, check=False
        )
    refused = json.loads(done.stdout)["refused"]
    return "; ".join(f"{one['key']}: {one['reason']}" for one in refused) or None


def chunked_prefill(folder: Path, rounds: int) -> list[str]:
    """Return the section of chunked prefill: long prompts arrive while two streams write."""
    mid = models(folder)["mid"]
    profiles = {
        "off": f"{CPU}max_num_seqs: 8\nmax_num_batched_tokens: 8192\nchunked_prefill: false\n",
        "256 tokens": f"{CPU}max_num_seqs: 8\nmax_num_batched_tokens: 256\nchunked_prefill: true\n",
    }
    newcomers: dict[str, list[LoadRun]] = {name: [] for name in profiles}

    def run_round(url: str, writer: PromptWriter, number: int) -> Seen:
        before = totals(metrics_page(url))
        name = next(one for one, known in addresses.items() if known == url)
        running, arrived = asyncio.run(mixed_load(url, writer, number))
        if number:
            newcomers[name].append(arrived)
        after = totals(metrics_page(url))
        return Seen(run=running, rise={one: after[one] - before.get(one, 0.0) for one in after})

    with engines_of(profiles, dict.fromkeys(profiles, mid)) as addresses:
        writers = {
            name: prompt_writer(url, model=None, key=None, seed=0)
            for name, url in addresses.items()
        }
        seen: dict[str, list[Seen]] = {name: [] for name in addresses}
        for number in range(rounds + 1):
            for name in addresses if number % 2 else reversed(addresses):
                one = run_round(addresses[name], writers[name], number)
                if number:
                    seen[name].append(one)
    worst = {
        name: [max(gap for one in round_.run.answered for gap in one.gaps_s) for round_ in row]
        for name, row in seen.items()
    }
    rows = [
        [
            name,
            f"{1000 * statistics.median(worst[name]):,.0f} ms",
            f"{1000 * gap_p99(row):,.0f} ms",
            f"{1000 * statistics.median(first_tokens(newcomers[name])):,.0f} ms",
            f"{pooled_mean(row, 'iteration_tokens_total'):.0f}",
        ]
        for name, row in seen.items()
    ]
    smoother = statistics.median(worst["off"]) / statistics.median(worst["256 tokens"])
    heads = ["chunked prefill", "worst gap of a stream", "p99 of the gaps", "newcomer's TTFT"]
    heads += ["engine: tokens in a step, mean"]
    return [
        "Model `mid`: two streams write while three prompts of 800 tokens arrive, "
        f"{rounds} rounds in turns; the worst gap is the median over the rounds. Worst gap off / "
        f"chunked: **×{smoother:.1f}**. Anchor: ×16.",
        "",
        *markdown(heads, rows),
    ]


async def mixed_load(
    url: str,
    writer: PromptWriter,
    number: int,
    *,
    answer: int = 300,
    prompt: int = 800,
    arrivals_s: Sequence[float] = (1.0, 3.5, 6.0),
) -> tuple[LoadRun, LoadRun]:
    """Run two streams that write `answer` tokens; meanwhile long prompts arrive."""
    client = LoadClient(url=url, silence_s=300)
    written = bodies(writer, lengths(2, prompt=32, answer=answer, first=100 * number))
    asked = lengths(len(arrivals_s), prompt=prompt, answer=2, first=100 * number + 10)
    try:
        running, arrived = await asyncio.gather(
            closed_loop(client, written, streams=2),
            open_loop(client, zip(arrivals_s, bodies(writer, asked), strict=True)),
        )
    finally:
        client.close()
    assert all(one.failure is None for one in (*running.requests, *arrived.requests))
    return running, arrived


def gap_p99(seen: Sequence[Seen]) -> float:
    """Return the p99 of the gaps of all streams, in seconds."""
    gaps = [gap for round_ in seen for one in round_.run.answered for gap in one.gaps_s]
    return quantile(sorted(gaps), 0.99)


def first_tokens(runs: Sequence[LoadRun]) -> Iterator[float]:
    """Yield the TTFT of each request."""
    for run in runs:
        yield from (one.ttft_s for one in run.answered if one.ttft_s is not None)


def write_job(
    path: Path,
    writer: PromptWriter,
    asked: Sequence[LoadRequest],
    *,
    batch: int,
    number_format: str,
) -> None:
    """Write the job of `static_batches.py`: the requests that the engine gets, by their texts."""
    texts = [writer.messages(one)[0]["content"] for one in asked]
    requests = [
        {"text": text, "answer": one.answer_tokens} for text, one in zip(texts, asked, strict=True)
    ]
    given = {"batch": batch, "number_format": number_format, "requests": requests}
    path.write_text(json.dumps(given), encoding="utf-8")


def static_batches(folder: Path, rounds: int) -> list[str]:
    """Return the section of continuous against static batches of 16, with mixed answers."""
    mid, size, count = models(folder)["mid"], 16, 64
    number_format = number_format_here(os.environ)
    profile = f"{CPU}max_num_seqs: {size}\nmax_num_batched_tokens: 2048\n"
    drawn = list(
        islice(Workload(kind="mixed", prompt_tokens=64, answer_tokens=64).requests(), count)
    )
    asked = [replace(one, prompt_tokens=64) for one in drawn]
    seen, static_s = [], []
    with (
        engines_of({"cpu": profile}, {"cpu": mid}) as urls,
        tempfile.TemporaryDirectory() as scratch,
    ):
        writer = prompt_writer(urls["cpu"], model=None, key=None, seed=0)
        job = Path(scratch) / "job.json"
        with kv_use(urls["cpu"]) as use:
            for turn in range(rounds):
                fresh = replace(writer, salt=f"{writer.salt} {turn}")
                seen.append(watched(urls["cpu"], bodies(fresh, asked), streams=size))
                write_job(job, fresh, asked, batch=size, number_format=number_format)
                answered = json.loads(run_inside("static_batches.py", mid, str(job)))
                assert answered["tokens"] == seen[-1].run.output_tokens
                static_s.append(answered["seconds"])
    tokens = sum(one.answer_tokens for one in asked)
    gains = [static / one.run.duration_s for static, one in zip(static_s, seen, strict=True)]
    number_bytes = 4 if number_format == "float32" else 2
    token_bytes = KV_BYTES_PER_TOKEN_OF_MID * number_bytes
    peak = use.peak * use.tokens
    reserved = size * 8192
    longest = size * (64 + max(one.answer_tokens for one in asked))
    rows = [
        ["static, transformers", f"{rounds * tokens / sum(static_s):,.0f}", "-"],
        [
            "continuous, vLLM",
            f"{rate(seen):,.0f}",
            f"{pooled_mean(seen, 'iteration_tokens_total'):.1f}",
        ],
    ]
    each = ", ".join(f"{one:.2f}" for one in gains)
    return [
        f"The same weights (`mid`, {number_format}) and requests: {count} prompts of 64 tokens, "
        f"answers of {min(one.answer_tokens for one in asked)} to "
        f"{max(one.answer_tokens for one in asked)} tokens ({tokens:,} in all), batches of {size}, "
        f"{rounds} rounds in turns. `transformers` pads and waits for the longest answer of each "
        f"batch, and uses all cores. Continuous / static: **×{statistics.median(gains):.2f}** "
        f"(rounds: {each}).",
        "",
        *markdown(["batches", "asked output tok/s", "engine: tokens in a step"], rows),
        "",
        f"KV memory, from the engine's own blocks: at most {use.peak:.1%} of {use.tokens:,} tokens "
        f"= {peak:,.0f} tokens ({peak * token_bytes / 2**20:,.0f} MiB), "
        f"{use.mean * use.tokens:,.0f} on average. Reserving the context of 8,192 for {size} "
        f"sequences takes {reserved:,} tokens ({reserved * token_bytes / 2**20:,.0f} MiB): "
        f"**×{reserved / peak:.1f}** the peak. Reserving the longest of these requests takes "
        f"{longest:,} tokens: ×{longest / peak:.1f}.",
    ]
