"""The place that an upstream reports: a contradicted promise is detected, an unknown value is
ignored.
"""

from __future__ import annotations

from datetime import date

import pytest

from gateway.domain.places.regions import RegionTree
from gateway.domain.policy.policy import ResidencyRule
from gateway.domain.providers.known_hosts import Statement
from gateway.domain.residency.stated_place import contradiction, stated_region
from tests.factories import deployment

TREE = RegionTree({"de": ("eu-de",), "home": ("hall-1", "hall-2")})
DAY = date(2026, 11, 22)
EU = ResidencyRule(rule_id="class:confidential", regions=frozenset({"eu"}))


def contradicts(stated: str, *, promised: str, rule: ResidencyRule = EU) -> bool:
    here = Statement(at_rest="de", telemetry="de")
    found = contradiction(
        stated,
        deployment(region=promised, residency=here),
        rules=(rule,),
        regions=TREE,
        gateway_region="unknown",
        day=DAY,
    )
    if found is not None:
        assert (found.deployment, found.promised, found.stated) == ("one", promised, stated)
    return found is not None


@pytest.mark.parametrize(
    ("headers", "geo", "region"),
    [
        ({}, None, None),
        ({"x-ms-region": "Sweden Central"}, None, "se"),
        ({"x-ms-region": "eastus2"}, None, "us"),
        ({"x-ms-region": "Atlantis North"}, None, None),
        ({}, "us", "us"),
        ({}, "GLOBAL", "global"),
        ({}, "not_available", None),
        ({"x-ms-region": "France Central"}, "not_available", "fr"),
    ],
)
def test_words_of_upstreams(headers: dict[str, str], geo: str | None, region: str | None) -> None:
    """A new region's name is no statement: taking a deployment out for it would be an outage of our
    own making.
    """
    assert stated_region(headers, geo) == region


@pytest.mark.parametrize(
    ("promised", "stated", "is_wrong"),
    [
        ("eu", "se", False),  # finer, and allowed
        ("eu", "us", True),
        ("eu", "global", True),
        ("global", "global", False),
        ("eu-de", "de", False),  # coarser: it may be there
        ("de", "eu", False),
        ("de", "fr", True),
        ("home", "us", True),
    ],
)
def test_a_statement_may_be_finer_or_coarser_but_not_elsewhere(
    promised: str, stated: str, is_wrong: bool
) -> None:
    """`eu` was promised: Sweden keeps that, the United States and `global` do not."""
    assert contradicts(stated, promised=promised) == is_wrong


def test_a_finer_statement_must_be_allowed_itself() -> None:
    """Europe was promised and allowed but for one country, and it ran just there."""
    but_switzerland = ResidencyRule(
        rule_id="class:confidential", regions=frozenset({"europe"}), deny_regions=frozenset({"ch"})
    )
    assert contradicts("ch", promised="europe", rule=but_switzerland)
    assert not contradicts("de", promised="europe", rule=but_switzerland)


def test_a_deployment_without_a_place_is_checked_only_by_rules() -> None:
    """A deployment that is `global` may take public requests, and its reported place contradicts
    no promise.
    """
    anywhere = ResidencyRule(rule_id="class:public", regions=frozenset({"any"}))
    assert not contradicts("us", promised="global", rule=anywhere)
    assert contradicts("us", promised="global", rule=EU)


def test_a_rule_in_shadow_contradicts_nothing() -> None:
    """A rule in shadow mode takes nothing out of use."""
    shadow = ResidencyRule(rule_id="tag:phi", regions=frozenset({"de"}), is_shadow=True)
    assert not contradicts("se", promised="eu", rule=shadow)
