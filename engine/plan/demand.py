"""Sizes the months of a demand: replicas that carry the peak within the SLO, GPUs and USD."""

import calendar
import json
import math
import re
import sys
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import EngineError, UsageError
from engine.plan.gpus import Gpu
from engine.plan.layout import Fit, Served
from engine.plan.levers import largest_batch
from engine.plan.roofline import Times, Work, predict

KEYS = (
    "requests_per_day",
    "prompt_tokens",
    "output_tokens",
    "cached_share",
    "growth_per_month",
    "peak_to_mean",
    "start",
    "slo",
)
DAY_S = 86_400
MOST, MOST_TOKENS = 1e12, 1e9
"""The largest figure, and the longest prompt or answer, that are read: more is a slip."""
MOST_SHOWN = 100
"""Characters of a wrong value in a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The traffic to serve; lengths in tokens, growth as a share per month."""

    requests_per_day: float
    prompt_p50: int
    prompt_p95: int
    answer_p50: int
    answer_p95: int
    cached_share: float
    growth_per_month: float
    peak_to_mean: float
    year: int
    month: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """One month of the plan."""

    month: str
    tokens: int
    replicas: int
    gpus: int
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica carries within the SLO."""

    batch: int
    requests_per_s: float


def read_demand(name: str) -> Demand:
    """Return the demand in a YAML or JSON file; `-` is standard input.

    Raises: UsageError: the file cannot be read. EngineError: as `parse_demand`.
    """
    try:
        text = sys.stdin.read() if name == "-" else Path(name).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The demand file {name} cannot be read: {error}.") from error
    return parse_demand(text, name)


def parse_demand(text: str, name: str) -> Demand:
    """Return the demand in a YAML or JSON text; `name` is its source, for messages.

    Raises: EngineError: a key is missing, unknown or wrong.
    """
    document = _parsed(text, name)
    unknown = sorted(str(key) for key in set(document) - set(KEYS))
    missing = [key for key in KEYS if key not in document]
    if unknown or missing:
        wrong = [f"unknown key {key}" for key in unknown]
        wrong += [f"missing key {key}" for key in missing]
        raise EngineError(
            f"The demand file {name} is refused: {'; '.join(wrong)}. Its keys are"
            f" {', '.join(KEYS)}."
        )
    year, month = _start(document["start"])
    prompt_p50, prompt_p95 = _lengths(document, "prompt_tokens")
    answer_p50, answer_p95 = _lengths(document, "output_tokens")
    return Demand(
        requests_per_day=_number(document, "requests_per_day", least=0.001, most=MOST),
        prompt_p50=prompt_p50,
        prompt_p95=prompt_p95,
        answer_p50=answer_p50,
        answer_p95=answer_p95,
        cached_share=_number(document, "cached_share", least=0, most=1),
        growth_per_month=_number(document, "growth_per_month", least=-0.99, most=10),
        peak_to_mean=_number(document, "peak_to_mean", least=1, most=MOST),
        year=year,
        month=month,
        ttft_s=_bound_s(document, "ttft_ms"),
        tpot_s=_bound_s(document, "tpot_ms"),
    )


def _parsed(text: str, name: str) -> dict[str, Any]:
    """Return the object in a JSON or YAML text. Raises `EngineError`."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        # Only this file format needs more than the standard library.
        from engine.arguments.yaml_text import read_yaml

        try:
            document = read_yaml(text)
        except ValueError as error:
            raise EngineError(
                f"The demand file {name} is neither JSON nor YAML: {error}"
            ) from error
    if not isinstance(document, dict):
        raise EngineError(f"The demand file {name} is not an object with the keys of a demand.")
    return document


def _part(document: dict[str, Any], key: str) -> dict[str, Any]:
    """Return an inner object. Raises `EngineError` naming it."""
    value = document[key]
    if not isinstance(value, dict):
        shown = repr(value)[:MOST_SHOWN]
        raise EngineError(f"{key} of the demand must be an object, not {shown}.")
    return value


def _number(
    document: dict[str, Any],
    key: str,
    *,
    least: float,
    most: float,
    inside: str = "",
) -> float:
    """Return a number within bounds. Raises `EngineError` naming the key and its value."""
    value = document.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]  # a number here
        shown = repr(value)[:MOST_SHOWN]
        raise EngineError(
            f"{inside}{key} of the demand is {shown}; it must be from {least:g} to {most:g}."
        )
    return float(value)  # type: ignore[arg-type]  # a number here


def _lengths(document: dict[str, Any], key: str) -> tuple[int, int]:
    """Return the p50 and p95 of a length. Raises `EngineError` naming it, also if the p95 is below
    the p50.
    """
    part = _part(document, key)
    p50, p95 = (
        round(_number(part, name, least=1, most=MOST_TOKENS, inside=f"{key}."))
        for name in ("p50", "p95")
    )
    if p95 < p50:
        raise EngineError(f"{key} of the demand has a p95 of {p95} below its p50 of {p50}.")
    return p50, p95


def _bound_s(document: dict[str, Any], key: str) -> float:
    """Return a bound of the SLO in seconds."""
    return _number(_part(document, "slo"), key, least=0.001, most=MOST, inside="slo.") / 1000


def _start(value: object) -> tuple[int, int]:
    """Return year and month of `YYYY-MM`. Raises `EngineError`."""
    text = str(value)
    if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])", text) or text.startswith("0000"):
        shown = repr(value)[:MOST_SHOWN]
        raise EngineError(f"start of the demand is {shown}; write a month as YYYY-MM.")
    return int(text[:4]), int(text[5:])


def capacity(demand: Demand, served: Served, gpu: Gpu, found: Fit) -> Capacity:
    """Return the largest load that one replica carries within the SLO.

    The SLO is kept at the p95 lengths: the first token waits for one decode step and its prefill,
    and prompts are read between the decode steps. The rate is that of the p50 lengths.

    Raises: EngineError: not even one request at a time keeps the SLO; the message has both times.
    """
    room = largest_batch(served, gpu, found, demand.prompt_p95 + demand.answer_p95)
    sizes = range(1, room + 1)
    # Each time rises with the batch, so the sizes that keep the SLO come first.
    kept = bisect_left(
        sizes, True, key=lambda batch: not _keeps_slo(demand, served, gpu, found, batch=batch)
    )
    if not kept:
        if not room:
            raise EngineError(
                f"A request of {demand.prompt_p95 + demand.answer_p95} tokens (p95) does not fit"
                f" beside the weights on {found.layout.gpus} × {gpu.name}. Take more GPUs."
            )
        alone = _times(demand, served, gpu, found, batch=1, is_p95=True)
        raise EngineError(
            f"The SLO (ttft_ms {demand.ttft_s * 1000:g}, tpot_ms {demand.tpot_s * 1000:g}) cannot"
            f" be kept: alone on {found.layout.gpus} × {gpu.name}, a p95 request takes"
            f" {alone.ttft_s * 1000:.0f} ms to its first token and {alone.tpot_s * 1000:.1f} ms for"
            " each other one. Take more or faster GPUs, fewer bits, or a looser SLO."
        )
    parts = found.layout.data * found.layout.pipeline
    # A batch that its copies and stages share evenly may carry more than the next larger one.
    even = max(1, kept // parts * parts)
    rates = {
        batch: _times(demand, served, gpu, found, batch=batch, is_p95=False).throughput_tok_per_s
        / demand.answer_p50
        for batch in (kept, even)
    }
    best = max(rates, key=rates.__getitem__)
    return Capacity(batch=best, requests_per_s=rates[best])


def _keeps_slo(demand: Demand, served: Served, gpu: Gpu, found: Fit, *, batch: int) -> bool:
    """Return True if a batch keeps the SLO at the p95 lengths, and at the p50 ones under load."""
    worst = _times(demand, served, gpu, found, batch=batch, is_p95=True)
    usual = _times(demand, served, gpu, found, batch=batch, is_p95=False)
    under_load_s = batch / usual.throughput_tok_per_s
    return worst.ttft_s + worst.tpot_s <= demand.ttft_s and (
        max(worst.tpot_s, under_load_s) <= demand.tpot_s
    )


def _times(
    demand: Demand, served: Served, gpu: Gpu, found: Fit, *, batch: int, is_p95: bool
) -> Times:
    """Return the times of a batch at the p50 or p95 lengths; cached tokens need no prefill."""
    prompt = demand.prompt_p95 if is_p95 else demand.prompt_p50
    answer = demand.answer_p95 if is_p95 else demand.answer_p50
    work = Work(
        prompt=prompt,
        answer=answer,
        batch=batch,
        cached=min(prompt - 1, round(prompt * demand.cached_share)),
    )
    return predict(served, gpu, found.layout, work)


def months(
    demand: Demand, carried: Capacity, *, gpus: int, usd_per_hour: float | None, count: int
) -> list[Month]:
    """Return the months of a demand; the first has not grown."""
    rows = []
    for index in range(count):
        year, month = divmod(demand.month - 1 + index, 12)
        year, month = demand.year + year, month + 1
        days = calendar.monthrange(year, month)[1]
        requests = demand.requests_per_day * (1 + demand.growth_per_month) ** index
        peak = requests / DAY_S * demand.peak_to_mean
        replicas = max(1, math.ceil(peak / carried.requests_per_s - 1e-9))
        rows.append(
            Month(
                month=f"{year:04d}-{month:02d}",
                tokens=round(requests * (demand.prompt_p50 + demand.answer_p50) * days),
                replicas=replicas,
                gpus=replicas * gpus,
                usd=None if usd_per_hour is None else replicas * gpus * 24 * days * usd_per_hour,
            )
        )
    return rows
