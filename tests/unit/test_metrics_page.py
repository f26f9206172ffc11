"""docs/reference/metrics.md has every metric of the gateway, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_page_lists_exactly_the_declared_metrics() -> None:
    """Rules and dashboards are written against these names."""
    metrics = Metrics()
    metrics.watch_engines(dict)
    declared = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in metrics.registry.collect()
    }
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line[:4] == "| `t"]
    assert {name for row in rows for name in re.findall(r"tollgate_\w+", row)} == declared
