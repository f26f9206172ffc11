"""The gateway's residency against an independent oracle, over sockets.

`python -m tests.residency` runs 20,000.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.domain.residency import rules as residency
from tests.residency.__main__ import SEED, field_findings, trials
from tests.residency.cases import case
from tests.residency.corpus import entries
from tests.residency.oracle import EU, World

CASES = 250


def test_no_request_reaches_a_forbidden_endpoint() -> None:
    """Every denial by its rule, and no connection to an endpoint that is not allowed: down, lying
    or redirecting.
    """
    print(f"seed {SEED}")
    tally = asyncio.run(trials(SEED, range(CASES), lanes=4, quiet=True))
    assert tally.findings == []
    assert tally.seen["no deployment may"] > CASES // 20, (
        "cases without an allowed deployment are among them"
    )
    assert tally.seen["200"] > CASES // 5, "and cases in which somebody may"


def test_a_residency_rule_refuses_every_field_that_could_lead_elsewhere() -> None:
    """The fields of eighteen dialects: a field that routes, fetches, searches or is unknown
    reaches no upstream.
    """
    assert asyncio.run(field_findings()) == []
    assert all(entry["source"] for entry in entries())


def test_the_oracle_knows_the_world() -> None:
    """The truth table that the rest rests on: who is in the Union, who in the Area, who only in
    Europe.
    """
    world = World({"eu": ["eu-1"], "home": ["de", "ch"]})
    assert len(EU) == 27
    assert world.is_covered("de", ["eu"])
    assert world.is_covered("eu", ["eea"])
    assert world.is_covered("no", ["eea"])
    assert not world.is_covered("no", ["eu"])
    assert not world.is_covered("ch", ["eea"])
    assert not world.is_covered("uk", ["eu"])
    assert world.is_covered("uk", ["europe"])
    assert not world.is_covered("eu", [*EU]), "the document has another place in it"
    assert world.is_covered("eu", [*EU, "eu-1"])
    assert not world.is_covered("europe", ["eea", "ch", "uk"])
    assert not world.is_covered("global", ["europe"])
    assert world.is_covered("global", ["any"])
    assert world.touches("home", "eu")
    assert world.touches("unknown", "us")
    assert not world.touches("us", "eu")


def test_a_case_is_the_same_every_time() -> None:
    """A failure that is reported can be run again by its number."""
    assert case(SEED, 17) == case(SEED, 17)
    assert replace(case(SEED, 17), number=18) != case(SEED, 18)
    assert residency.__name__ == "gateway.domain.residency.rules"
