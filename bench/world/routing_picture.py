"""Draws a day as a picture: requests by deployment, hour by hour.

Plain SVG, readable on light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.world.routing_world import Place

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 300, 60, 44, 34
COLOURS = ("#3b82c4", "#e08a2e", "#8a63c7", "#c2413b")


def picture(by_hour: Mapping[int, Mapping[str, int]], *, places: Sequence[Place]) -> str:
    """Return stacked bars of 24 hours, with the deployments from below in their order."""
    names = [place.name for place in places]
    most = _round_above(max(sum(counts.values()) for counts in by_hour.values()))
    high, wide = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - 10) / 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" '
        f'font-size="12" role="img"><title>Requests by hour and place</title>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for step in range(5):
        y = TOP + high * (1 - step / 4)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6ea"/>'
        )
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="#555">{most * step / 4:,.0f}</text>'
        )
    for hour in range(24):
        base = float(TOP + high)
        for name, colour in zip(names, COLOURS, strict=False):
            tall = high * by_hour.get(hour, {}).get(name, 0) / most
            base -= tall
            parts.append(
                f'<rect x="{LEFT + hour * wide + 2:.1f}" y="{base:.1f}" width="{wide - 4:.1f}" '
                f'height="{tall:.1f}" '
                f'fill="{colour}"/>'
            )
        if hour % 3 == 0:
            x = LEFT + (hour + 0.5) * wide
            parts.append(
                f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="middle" '
                f'fill="#555">{hour}:00</text>'
            )
    for place, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x = LEFT + place * 110
        parts.append(f'<rect x="{x}" y="14" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="24" fill="#333">{name}</text>')
    parts.append(
        f'<text x="{WIDTH - 10}" y="24" text-anchor="end" fill="#555">requests an hour</text>'
    )
    return "\n".join([*parts, "</svg>", ""])


def _round_above(value: int) -> int:
    """The next number whose quarters are round."""
    unit = 4 * int(10 ** max(len(str(value)) - 2, 0))
    return -(-value // unit) * unit
