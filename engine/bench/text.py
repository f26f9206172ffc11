"""Prints a benchmark: the table for people and CSV."""

from collections.abc import Mapping
from typing import Any

from engine.bench.figures import COLUMNS, LATENCIES, QUANTILES
from engine.plan.text import csv_of, table

NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_s": "ITL", "e2e_s": "end to end"}
NONE = "-"


def as_text(document: Mapping[str, Any]) -> str:
    """Return a benchmark as text: a column for each run, then the ratios."""
    runs = document["runs"]
    rows = [
        [f"{NAMES[metric]} {name}", *(_ms(run[metric][name]) for run in runs)]
        for metric in LATENCIES
        for name in QUANTILES
    ]
    rows = [
        ["requests", *(f"{run['requests']:,}" for run in runs)],
        ["failed", *(f"{run['failed']:,}" for run in runs)],
        *rows,
        ["output tok/s", *(_number(run["throughput_tok_per_s"]) for run in runs)],
        ["goodput, requests/s", *(_number(run["goodput_per_s"]) for run in runs)],
        ["USD/Mtok", *(_usd(run["usd_per_mtok"]) for run in runs)],
    ]
    parts = [table(["", *(run["profile"] or "the server" for run in runs)], rows)]
    if document["ratios"]:
        ratios = [
            [one["metric"], _number(one["ratio"], 3), _interval(one)] for one in document["ratios"]
        ]
        parts.append(
            "Second / first, 95 % intervals (bootstrap over paired rounds):\n"
            + table(["metric", "ratio", "interval"], ratios)
        )
    return "\n\n".join(parts)


def as_csv(document: Mapping[str, Any]) -> str:
    """Return the runs as CSV, a column for each quantile."""
    heads: list[str] = []
    for column in COLUMNS:
        heads += [f"{column}_{name}" for name in QUANTILES] if column in LATENCIES else [column]
    rows = []
    for run in document["runs"]:
        row = {column: run[column] for column in COLUMNS if column not in LATENCIES}
        for metric in LATENCIES:
            row |= {f"{metric}_{name}": value for name, value in run[metric].items()}
        rows.append(row)
    return csv_of(heads, rows)


def _ms(value_s: float | None) -> str:
    """Return seconds as milliseconds."""
    return NONE if value_s is None else f"{value_s * 1000:,.1f} ms"


def _number(value: float | None, digits: int = 2) -> str:
    """Return a figure."""
    return NONE if value is None else f"{value:,.{digits}f}"


def _usd(value: float | None) -> str:
    """Return an amount; one above zero never prints as zero."""
    if value is None:
        return f"{NONE} (no price)"
    return f"{value:.4f}" if value >= 0.0001 else f"{value:.2g}"


def _interval(ratio: Mapping[str, Any]) -> str:
    """Return an interval."""
    if ratio["low"] is None:
        return f"{NONE} (too few rounds)"
    return f"{ratio['low']:.3f} to {ratio['high']:.3f}"
