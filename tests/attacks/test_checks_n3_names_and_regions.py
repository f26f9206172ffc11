"""Checks, "Not defects", bullet 3: `=` in a deployment's model, and several parents of a declared
region.
"""

from __future__ import annotations

import pytest

from gateway.errors import PolicyRejected
from gateway.wire.parsed_policy import parse
from tests.integration.money.test_gateway_budgets import policy

DOCUMENT = policy("http://127.0.0.1:1")


def regions(declared: str) -> str:
    return DOCUMENT.replace("version: 1\n", f"version: 1\nregions: {declared}\n")


def test_a_model_may_have_an_equals_sign() -> None:
    """Some servers put a model's options into its name."""
    assert (
        parse(DOCUMENT.replace("model: plain-1", "model: 'm-1=q4'")).policy.deployments["one"].model
        == "m-1=q4"
    )


def test_a_declared_region_may_have_several_parents() -> None:
    """Built-in regions may have several parents, such as a home of two countries; a declared
    site may be in two groupings.
    """
    tree = parse(regions("{home: [de, ch], emea: [site, uk], dach: [site, at]}")).policy.region_tree
    assert {"emea", "dach"} <= tree.ancestors("site")
    assert tree.covered("site", frozenset({"dach"}))
    assert tree.covered("site", frozenset({"emea"}))
    assert {"home", "eu", "europe"} <= tree.ancestors("de")


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("{a: [b, c], b: [d], c: [d], d: [a]}", "under itself"),
        ("{a: [b, b]}", "already"),
        ("{" + ", ".join(f"r{n}: [r{n + 1}]" for n in range(25)) + "}", "nested deeper"),
    ],
)
def test_a_cycle_of_regions_is_still_rejected(declared: str, message: str) -> None:
    """A region inside itself would allow everything below it."""
    with pytest.raises(PolicyRejected) as rejected:
        parse(regions(declared))
    assert any(message in finding.message for finding in rejected.value.findings), (
        rejected.value.findings
    )
