"""Draws a plan as SVG: throughput against time per token, a line for each GPU."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 80, 150, 50, 56
COLOURS = ("#3b82c4", "#e08a2e", "#8a63c7", "#c2413b", "#3f8f5b", "#6b7280", "#b0577f")
STEPS = 4


def picture(document: Mapping[str, Any]) -> str:
    """Return the SVG of a plan; each point is a batch size."""
    lines: dict[str, list[tuple[float, float, int]]] = {}
    for row in document["rows"]:
        if row["fits"]:
            name = f"{row['gpus']} × {row['gpu']}"
            point = (row["tpot_s"] * 1000, row["throughput_tok_per_s"], row["batch"])
            lines.setdefault(name, []).append(point)
    points = [point for line in lines.values() for point in line]
    most_x = max((x for x, _, _ in points), default=1.0) * 1.05
    most_y = max((y for _, y, _ in points), default=1.0) * 1.05
    title = f"{document['model']['name']}: output against time per token"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="sans-serif" font-size="12"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 24, title, size=15),
        *_axes(most_x, most_y),
    ]
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[index % len(COLOURS)]
        at = [(_x(x, most_x), _y(y, most_y), batch) for x, y, batch in line]
        parts += _line(name, at, colour=colour, place=index)
    return "\n".join([*parts, "</svg>", ""])


def _x(value: float, most: float) -> float:
    """Return the horizontal position of a time in ms."""
    return LEFT + value / most * (WIDTH - LEFT - RIGHT)


def _y(value: float, most: float) -> float:
    """Return the vertical position of a throughput."""
    return HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM)


def _axes(most_x: float, most_y: float) -> list[str]:
    """Return the grid with its figures and units."""
    parts = []
    for step in range(STEPS + 1):
        x, y = _x(most_x * step / STEPS, most_x), _y(most_y * step / STEPS, most_y)
        parts += [
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>',
            _text(LEFT - 8, y + 4, f"{most_y * step / STEPS:,.0f}", anchor="end"),
            _text(x, HEIGHT - BOTTOM + 20, f"{most_x * step / STEPS:.1f}", anchor="middle"),
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [
        *parts,
        _text(middle, HEIGHT - 14, "ms per output token (TPOT)", anchor="middle"),
        _text(LEFT, TOP - 10, "output tokens per second"),
    ]


def _line(
    name: str, at: Sequence[tuple[float, float, int]], *, colour: str, place: int
) -> list[str]:
    """Return one GPU's line with its points and its name."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in at)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for x, y, batch in at:
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        parts.append(_text(x + 6, y - 6, str(batch)))
    y = TOP + 10 + place * 20
    parts.append(
        f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
    )
    parts.append(_text(WIDTH - RIGHT + 34, y, name))
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    """Return one text of the picture."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="#444">{escape(text)}</text>'
    )
