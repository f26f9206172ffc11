"""Compares `engine plan` with published figures and writes the table of docs/engine-plan.md.

Run `python -m bench.plan_accuracy` to print it, with `--write` to renew the page and with `--fit`
to fit the two constants again. The figures are in tests/engine/plan_published.json, each with
source, date, settings and engine. Those with `is_fitted` tuned the two constants.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.stand.page import replace_between
from engine.plan import roofline
from engine.plan.architecture import count
from engine.plan.batch_limits import default_limits
from engine.plan.config import read_config
from engine.plan.gpus import gpu_named
from engine.plan.layout import Layout, Served, fit
from engine.plan.roofline import Work, predict

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "tests" / "engine" / "plan_published.json"
PAGE = ROOT / "docs" / "engine-plan.md"
LAB = ROOT / "docs" / "lab" / "engine_plan.txt"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"
MOST_AT_ONCE = 2048
"""Sequences at once if the source states no batch: trtllm-bench's default."""
HELD_OUT = "Served by vLLM, held out of the fit"
FITTED = "Served by vLLM, fitted"
OTHERS = "Served by other engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One published figure beside the plan's."""

    published: dict[str, Any]
    batch: int
    planned_tok_per_s: float

    @property
    def ratio(self) -> float:
        """Return plan / published."""
        return self.planned_tok_per_s / float(self.published["throughput_tok_per_s"])

    @property
    def factor(self) -> float:
        """Return by how much the plan is wrong, in either direction; at least 1."""
        return max(self.ratio, 1 / self.ratio)

    @property
    def pair(self) -> tuple[str, str]:
        """Return model and GPU."""
        return self.published["model"], self.published["gpu"]

    @property
    def group(self) -> str:
        """Return the heading below which the figure is printed."""
        if self.published["engine"] != "vLLM":
            return OTHERS
        return FITTED if self.published["is_fitted"] else HELD_OUT


def compare(published: dict[str, Any]) -> Compared:
    """Return the plan for the settings of a published figure.

    Without a batch, as many sequences run as fit with half of their answer written; in vLLM never
    more than its default.
    """
    prompt, answer = published["prompt"], published["answer"]
    served = Served(
        model=count(read_config(published["model"])),
        quantization=published["quantization"],
        kv_cache=published["kv_cache"],
        context=prompt + answer,
    )
    gpu, tensor = gpu_named(published["gpu"]), published["tensor"]
    layout = Layout(tensor=tensor, data=published["gpus"] // tensor)
    found = fit(served, gpu, layout)
    is_stated = published["batch"] is not None
    room = found.sequences_of(served, prompt + (answer if is_stated else answer // 2))
    batch = min(published["batch"] or MOST_AT_ONCE, room)
    if published["engine"] == "vLLM":
        batch = min(batch, default_limits(gpu).sequences * layout.data)
    times = predict(served, gpu, layout, Work(prompt=prompt, answer=answer, batch=batch))
    return Compared(published=published, batch=batch, planned_tok_per_s=times.throughput_tok_per_s)


def all_compared() -> list[Compared]:
    """Return every published figure beside the plan's."""
    return [compare(row) for row in json.loads(PUBLISHED.read_text(encoding="utf-8"))]


def table(rows: Sequence[Compared]) -> str:
    """Return the summary and the table in Markdown."""
    sources = sorted({(row.published["source"], row.published["date"]) for row in rows})
    number = {source: index for index, (source, _) in enumerate(sources, start=1)}
    lines = [_summary("All figures", rows)]
    for group in (HELD_OUT, FITTED, OTHERS):
        lines += _group(group, [row for row in rows if row.group == group], number)
    lines += ["", "Batches in brackets are the plan's own: the source states none.", ""]
    for source, date in sources:
        notes = sorted(
            {row.published["settings"] for row in rows if row.published["source"] == source}
        )
        lines.append(f"{number[source]}. {source}, {date}: {'; '.join(notes)}.")
    return "\n".join(lines)


def _summary(name: str, rows: Sequence[Compared]) -> str:
    """Return the size and the errors of some figures in a sentence."""
    factors = [row.factor for row in rows]
    return (
        f"{name}: {len(rows)} of {len({row.pair for row in rows})} pairs of model and GPU, median"
        f" factor {statistics.median(factors):.2f}, largest {max(factors):.2f}; median plan /"
        f" published {statistics.median(row.ratio for row in rows):.2f}."
    )


def _group(name: str, rows: Sequence[Compared], number: dict[str, int]) -> list[str]:
    """Return the lines of one group of figures, with its own summary."""
    lines = [
        "",
        f"### {name}",
        "",
        _summary("Figures", rows),
        "",
        "| model | GPU | weights, KV | prompt / answer | batch | published tok/s | plan tok/s"
        " | plan / published | source |",
        "|---|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        one = row.published
        kv = "fp8" if one["kv_cache"] == "fp8" else "16 bits"
        weights = "16 bits" if one["quantization"] == "none" else one["quantization"]
        digits = 0 if one["throughput_tok_per_s"] >= 100 else 1
        copies = ", copies" if one["tensor"] < one["gpus"] else ""
        batch = str(row.batch) if one["batch"] is not None else f"({row.batch})"
        lines.append(
            f"| {one['model']} | {one['gpus']} × {one['gpu']}{copies} | {weights}, {kv} |"
            f" {one['prompt']} / {one['answer']} | {batch} |"
            f" {one['throughput_tok_per_s']:,.{digits}f} | {row.planned_tok_per_s:,.{digits}f} |"
            f" {row.ratio:.2f} | {number[one['source']]} |"
        )
    return lines


def fitted_constants() -> tuple[float, float]:
    """Return the Hopper share and the work of an expert with the least squares of the logarithms
    of plan / published, over the fitted figures alone.
    """
    rows = [row for row in json.loads(PUBLISHED.read_text(encoding="utf-8")) if row["is_fitted"]]
    found: dict[tuple[float, float], float] = {}
    for share, work in itertools.product(range(30, 61), range(10, 31)):
        roofline.HOPPER_16BIT_SHARE, roofline.EXPERT_WORK = share / 100, work / 10
        squares = (math.log(compare(row).ratio) ** 2 for row in rows)
        found[share / 100, work / 10] = sum(squares)
    return min(found, key=found.__getitem__)


def summary(text: str) -> list[str]:
    """Return the lines of a table's text that sum up each of its parts, as a list."""
    lines = []
    for line in text.splitlines():
        if line.startswith("### "):
            lines.append(f"- {line.removeprefix('### ')}: ")
        elif line.startswith("Figures: "):
            lines[-1] += line.removeprefix("Figures: ")
        elif line.startswith("All figures: "):
            lines.append(f"- {line}")
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print the table, write it, or print the fitted constants."""
    if "--fit" in arguments:
        share, work = fitted_constants()
        print(f"HOPPER_16BIT_SHARE = {share}, EXPERT_WORK = {work}")
        return 0
    text = table(all_compared())
    if "--write" in arguments:
        LAB.write_text(f"{text}\n", encoding="utf-8")
        replace_between(PAGE, BEGIN, END, lines=summary(text))
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
