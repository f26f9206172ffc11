"""Documents below the limit of a megabyte that take minutes or hours to read.

Each replica reads a new version while it serves, so its author would stop them all.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest

from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse
from gateway.wire.yaml_blocks.nodes import MAX_CHARACTERS

HEAD = "version: 1\nclasses: {internal: {regions: [any]}}\n"
EMPTY = "deployments: []\nroutes: []\nteams: []\n"
ENGINE = """\
deployments:
  - {name: d, provider: vllm, base_url: "http://127.0.0.1:8001/v1", model: m, region: de}
"""


def chain() -> str:
    """Return routes of which each degrades to the next."""
    route = "  - {{name: r{0}, deployments: [d], max_cost_usd: 1, degrade_to: r{1}}}\n"
    routes = "".join(route.format(one, one + 1) for one in range(10_000))
    return f"{HEAD}{ENGINE}routes:\n{routes}  - {{name: r10000, deployments: [d]}}\nteams: []\n"


def teams() -> str:
    """Return teams with a route each."""
    team = "  - {{name: t{0}, cost_centre: C, data_class: internal, routes: [r{0}]}}\n"
    routes = "".join(f"  - {{name: r{one}, deployments: [d]}}\n" for one in range(8_000))
    return f"{HEAD}{ENGINE}routes:\n{routes}teams:\n{''.join(map(team.format, range(8_000)))}"


def shares() -> str:
    """Return a budget with 100,000 thresholds."""
    listed = ",".join(f"0.{one:06d}" for one in range(1, 100_000))
    budget = f"{{period: month, limit_usd: 1, kind: soft, alert_at: [{listed}]}}"
    return f"{HEAD}{EMPTY}cost_centres: [{{name: C, budgets: [{budget}]}}]\n"


def notes() -> str:
    """Return a team of which each project and each data tag is worth a note."""
    project = "{{name: p{0}, budgets: [{{period: day, limit_usd: 9}}]}}"
    projects = ",".join(map(project.format, range(9_000)))
    tags = ",".join(f"t{one}: {{mode: shadow}}" for one in range(9_000))
    team = "{name: t, cost_centre: C, data_class: internal, routes: [], budgets: [OWN], projects: "
    team = team.replace("OWN", "{period: day, limit_usd: 1}") + f"[{projects}]}}"
    empty = EMPTY.replace("teams: []", f"teams: [{team}]")
    return f"{HEAD}data_tags: {{{tags}}}\n{empty}"


def patterns() -> str:
    """Return a route with 40,000 patterns as aliases."""
    listed = ", ".join(f'"y{one:06d}*"' for one in range(40_000))
    route = f"{{name: r, deployments: [d], aliases: [{listed}]}}"
    return f"{HEAD}{ENGINE}routes: [{route}]\nteams: []\n"


def regions() -> str:
    """Return 19 levels of 84 regions, each region under all those above it."""
    levels = [[f"r{level}-{place}" for place in range(84)] for level in range(19)]
    lines = "".join(
        f"  {parent}: [{', '.join(below)}]\n"
        for above, below in pairwise(levels)
        for parent in above
    )
    return f"{HEAD}regions:\n{lines}{EMPTY}"


DOCUMENTS = {
    "regions": regions(),
    "notes": notes(),
    "tabs": HEAD + EMPTY + "\t\n" * 490_000,
    "chain": chain(),
    "teams": teams(),
    "shares": shares(),
    "patterns": patterns(),
}


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_megabyte_is_read_in_seconds(document: str) -> None:
    """2,000 of the routes took 14 s and 20,000 of the tabs 4 s, and the time grew with the cube
    and the square of their number: this test would not end.
    """
    assert len(document) <= MAX_CHARACTERS
    with suppress(PolicyRejected):
        parse(document)


def test_a_tab_is_found_where_it_indents() -> None:
    """Also in a line that is blank otherwise, if text follows; not at the end."""
    with pytest.raises(PolicyRejected) as rejected:
        parse(HEAD + " \t\n\n" + EMPTY)
    assert [finding.line for finding in rejected.value.findings] == [3]
    assert "a tab indents this line" in rejected.value.findings[0].message
