"""The gateway's residency against an independent oracle, over sockets.

`python -m tests.residency` runs 20,000.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from fnmatch import fnmatchcase

from gateway.domain.providers.known_hosts import KNOWN_PLACES
from gateway.domain.providers.table import PROVIDERS as TABLE
from gateway.domain.residency import rules as residency
from gateway.wire.policy.residency import DENIABLE_PROVIDERS
from tests.residency import oracle
from tests.residency.__main__ import SEED, field_findings, trials
from tests.residency.cases import COMPANIES, DENIABLE, ENGINES, PROVIDERS, TRANSLATED_ALONE, case
from tests.residency.corpus import TRANSLATED, UPSTREAMS, entries
from tests.residency.hosts import HOSTS
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
    """The fields of two dozen dialects: a field that routes, fetches, searches or is unknown
    reaches no upstream, neither as it came nor in a translation.
    """
    assert asyncio.run(field_findings()) == []
    assert all(entry["source"] for entry in entries())


def test_generator_and_oracle_know_every_provider_and_host() -> None:
    """One that is added to the gateway's table alone would never be drawn, and so never judged."""
    assert set(PROVIDERS) == set(TABLE)
    assert set(DENIABLE) == set(DENIABLE_PROVIDERS)
    assert set(ENGINES) == set(oracle.ENGINES) == {n for n, one in TABLE.items() if one.is_engine}
    assert set(COMPANIES) == {name for name, one in TABLE.items() if one.needs_key}
    assert set(TRANSLATED_ALONE) == {name for name, one in TABLE.items() if not one.native}
    assert {n: one.company for n, one in TABLE.items() if one.company} == oracle.COMPANY
    patterns = {place.host for place in KNOWN_PLACES}
    patterns |= {host for one in TABLE.values() for host in one.hosts}
    unseen = {one for one in patterns if not any(fnmatchcase(host, one) for host in HOSTS)}
    assert unseen == set()


def test_the_corpus_reaches_every_dialect() -> None:
    """Each dialect of a caller as it is and translated, and each translated dialect of an
    upstream.
    """
    assert {one for _, operations in UPSTREAMS for one in operations} >= {"messages", "responses"}
    translated = {upstream.get("provider", "openai_compatible") for upstream, _ in TRANSLATED}
    assert translated >= {*TRANSLATED_ALONE, "anthropic", "ollama"} - {"vertex"}
    assert {entry["operation"] for entry in entries()} >= {"chat", "responses", "messages"}


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
