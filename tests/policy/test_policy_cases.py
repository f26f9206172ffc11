"""Files of cases: read with line numbers, decided, and compared."""

from __future__ import annotations

from datetime import date

import pytest

from gateway.domain.operation import Operation
from gateway.domain.policy.policy import PolicyVersion
from gateway.domain.routing.replay import Place
from gateway.errors import CasesRejected
from gateway.services.policy.apply import prices_of
from gateway.services.policy.cases import run_cases
from gateway.wire.parsed_policy import parse
from gateway.wire.policy.case_files import Case, parse_cases
from tests.factories import NOW

POLICY = """\
version: 1
regions: {eu: [eu-de]}
classes: {internal: {regions: [any]}, confidential: {regions: [eu]}}
deployments:
  - {name: gpt-us, provider: openai_compatible, base_url: "https://us.example/v1", model: m, region: us,
     capabilities: [tools], price: {input_usd_per_mtok: 1, output_usd_per_mtok: 4}}
  - {name: gpt-eu, provider: openai_compatible, base_url: "https://eu.example/v1", model: m, region: eu-de,
     capabilities: [], price: {input_usd_per_mtok: 1, output_usd_per_mtok: 4}}
  - {name: free, provider: openai_compatible, base_url: "https://free.example/v1", model: m, region: eu-de}
routes:
  - {name: assistant, deployments: [gpt-us, gpt-eu]}
  - {name: american, deployments: [gpt-us]}
  - {name: unpriced, deployments: [free]}
teams:
  - {name: payments, cost_centre: CC-1, data_class: internal, routes: [assistant, american, unpriced]}
  - {name: legal, cost_centre: CC-2, data_class: internal, routes: [assistant]}
"""  # noqa: E501
PLACE = Place(gateway_region="unknown", day=date(2026, 11, 22))


def results(text: str) -> list[tuple[int, str, str, bool]]:
    """Line, expected, got and whether it is met, of each case."""
    policy = parse(POLICY).policy
    version = PolicyVersion(version=1, sha256="", policy=policy)
    prices = prices_of(policy, at=NOW, builtin=lambda **_: None)
    found = run_cases(parse_cases(text), version, prices=prices, place=PLACE)
    return [(one.case.line, one.expected, one.got, one.is_met) for one in found]


def test_a_case_is_read_whole() -> None:
    """Every written field is used."""
    text = (
        "cases:\n"
        "  - {team: payments, route: gpt-4o, class: restricted, data_tags: [phi], operation: "
        "embeddings,\n"
        "     needs: [tools], denied: residency}\n"
        "  - {team: legal, route: assistant, expect: [b, a]}\n"
    )
    assert parse_cases(text) == (
        Case(
            line=2,
            team="payments",
            route="gpt-4o",
            data_class="restricted",
            data_tags=frozenset({"phi"}),
            operation=Operation.EMBEDDINGS,
            needs=frozenset({"tools"}),
            denied="residency",
        ),
        Case(line=4, team="legal", route="assistant", expect=("b", "a")),
    )


def test_the_decision_of_a_policy_is_compared() -> None:
    """Deployments count in their order; a denial by its reason."""
    text = """\
cases:
  - {team: payments, route: assistant, expect: [gpt-us, gpt-eu]}
  - {team: payments, route: assistant, expect: [gpt-eu, gpt-us]}
  - {team: payments, route: assistant, class: confidential, expect: [gpt-eu]}
  - {team: payments, route: american, class: confidential, denied: residency}
  - {team: payments, route: assistant, class: confidential, needs: [tools], denied: residency}
  - {team: payments, route: assistant, needs: [vision], denied: capability}
  - {team: payments, route: assistant, operation: embeddings, denied: operation}
  - {team: payments, route: unpriced, denied: price}
  - {team: payments, route: nowhere, denied: model}
  - {team: legal, route: american, denied: route}
  - {team: legal, route: assistant, denied: residency}
  - {team: nobody, route: assistant, denied: route}
"""
    both = "gpt-us, gpt-eu"
    assert results(text) == [
        (2, both, both, True),
        (3, "gpt-eu, gpt-us", both, False),
        (4, "gpt-eu", "gpt-eu", True),
        (5, "denied: residency", "denied: residency", True),
        (6, "denied: residency", "denied: residency", True),
        (7, "denied: capability", "denied: capability", True),
        (8, "denied: operation", "denied: operation", True),
        (9, "denied: price", "denied: price", True),
        (10, "denied: model", "denied: model", True),
        (11, "denied: route", "denied: route", True),
        (12, "denied: residency", both, False),
        (13, "denied: route", "not decided", False),
    ]


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("cases: []", 1, "nothing to test"),
        ("cases: 3", 1, "must be a list"),
        ("[]", 1, "must be a mapping"),
        ("cases:\n  - {team: a, expect: [b]}", 2, "is missing"),
        ("cases:\n  - {team: a, route: r}", 2, "write either"),
        ("cases:\n  - {team: a, route: r, expect: [x], denied: price}", 2, "write either"),
        ("cases:\n  - {team: a, route: r, expect: []}", 2, "is empty"),
        ("cases:\n  - {team: a, route: r, denied: because}", 2, "is not known"),
        ("cases:\n  - {team: a, route: r, clas: internal, expect: [x]}", 2, "class"),
        ("cases:\n  - {team: a, route: r, needs: [magic], expect: [x]}", 2, "is not known"),
        ("cases:\n  - three", 2, "must be a mapping"),
        ("cases: [", 1, "not valid YAML"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, line: int, word: str) -> None:
    """A test that is not run must not look like one that passed."""
    with pytest.raises(CasesRejected) as rejected:
        parse_cases(text)
    assert any(
        finding.line == line and word in finding.message for finding in rejected.value.findings
    )
    assert "Nothing was tested" in rejected.value.message
