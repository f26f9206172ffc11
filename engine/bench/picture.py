"""Draws a benchmark as SVG: a panel for each latency, with p50, p95 and p99 of each run."""

from collections.abc import Mapping
from html import escape
from typing import Any

from engine.bench.figures import LATENCIES, QUANTILES
from engine.bench.text import NAMES

WIDTH, LEFT, RIGHT, BAR, GAP, HEAD = 760, 150, 110, 14, 26, 64
COLOURS = ("#3b82c4", "#e08a2e", "#8a63c7", "#3f8f5b")


def picture(document: Mapping[str, Any], *, title: str) -> str:
    """Return the SVG of a benchmark; each panel has a scale of its own, from zero."""
    runs = document["runs"]
    panel = len(QUANTILES) * (len(runs) * BAR + 4) + GAP
    height = HEAD + len(runs) * 18 + len(LATENCIES) * panel + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 26, title, size=15),
    ]
    for index, run in enumerate(runs):
        parts += _legend(run, index)
    top = HEAD + len(runs) * 18
    for metric in LATENCIES:
        parts += _panel(document, metric, top)
        top += panel
    return "\n".join([*parts, "</svg>", ""])


def _legend(run: Mapping[str, Any], index: int) -> list[str]:
    """Return the colour, name and throughput of a run."""
    y = 46 + index * 18
    rate = run["throughput_tok_per_s"]
    figures = f"{run['requests']} requests, {run['failed']} failed"
    if rate is not None:
        figures += f", {rate:,.0f} output tok/s"
    return [
        f'<rect x="16" y="{y - 10}" width="12" height="12" fill="{COLOURS[index % 4]}"/>',
        _text(34, y, f"{run['profile'] or 'the server'}: {figures}"),
    ]


def _panel(document: Mapping[str, Any], metric: str, top: float) -> list[str]:
    """Return the bars of one latency."""
    runs = document["runs"]
    values = [run[metric][name] for run in runs for name in QUANTILES]
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    parts = [_text(16, top + 12, NAMES[metric], size=13)]
    y = top
    for name in QUANTILES:
        parts.append(_text(LEFT - 8, y + len(runs) * BAR / 2 + 4, name, anchor="end"))
        for index, run in enumerate(runs):
            value = run[metric][name]
            if value is not None:
                width = value / most * (WIDTH - LEFT - RIGHT)
                parts += [
                    f'<rect x="{LEFT}" y="{y:.1f}" width="{width:.1f}" height="{BAR - 2}" '
                    f'fill="{COLOURS[index % 4]}"/>',
                    _text(LEFT + width + 6, y + 10, f"{value * 1000:,.1f} ms"),
                ]
            y += BAR
        y += 4
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    """Return one text of the picture."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#444">{escape(text)}</text>'
    )
