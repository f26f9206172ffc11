"""Objectives, bounds, degrading, replicas and priorities: from the document to the policy and
back.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.policy.policy import Balance, LatencyPrior, Priority, Route, Timeouts
from gateway.services.policy.policy_diff import changes
from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, to_yaml
from tests.policy.documents import EXAMPLE, changed, findings

# The route of the design's own example, and the one that it degrades to.
DESIGNED = changed(
    '  - {name: assistant, aliases: [gpt-4o, "gpt-4o-*"], deployments: [qwen-eu, gpt-eu]}\n',
    '  - {name: assistant, aliases: [gpt-4o, "gpt-4o-*"], deployments: [qwen-eu, gpt-eu], '
    "objective: cheapest,\n"
    "     latency: {ttft_p95_ms: 800}, degrade_to: assistant-small}\n"
    "  - {name: assistant-small, deployments: [partner]}\n",
)
REPLICA = """\
  - name: qwen-eu-2
    provider: vllm
    base_url: "http://127.0.0.1:8002/v1"
    model: qwen3-32b
    region: eu-de
    group: qwen
    gpu: {type: H200, usd_per_gpu_hour: 3.10, input_tok_per_s: 40000, output_tok_per_s: 2500, target_utilisation: 0.5}
  - name: partner
"""  # noqa: E501
REPLICAS = changed(
    "  - name: partner\n", REPLICA, text=changed("    context_window: 32768\n", "    group: qwen\n")
).replace("[qwen-eu, gpt-eu]", "[qwen-eu, qwen-eu-2, gpt-eu]")


def test_the_designed_document_is_valid_and_read_exactly() -> None:
    """Milliseconds and dollars become seconds and nano-dollars, once."""
    parsed = parse(DESIGNED)
    assert parsed.policy.routes["assistant"] == Route(
        name="assistant",
        deployments=("qwen-eu", "gpt-eu"),
        aliases=("gpt-4o", "gpt-4o-*"),
        objective="cheapest",
        ttft_p95_s=0.8,
        degrade_to="assistant-small",
    )
    assert parsed.policy.routes["assistant"].is_bounded
    assert not [note for note in parsed.notes if "assistant-small" in note.message], (
        "a route to degrade to is used"
    )


def test_every_field_of_a_route_reaches_the_policy() -> None:
    """A field that is read and lost is a broken promise."""
    text = changed(
        "objective: priority",
        "objective: weighted, weights: {partner: 2.5}, max_cost_usd: 0.000000001, timeout_s: 0.5",
    )
    route = parse(text).policy.routes["partner-chat"]
    assert (route.weights, route.max_cost_nusd, route.timeout_s) == ({"partner": 2.5}, 1, 0.5)
    balanced = parse(
        changed("objective: priority", "objective: balanced, balance: {cost: 0.7}")
    ).policy
    assert balanced.routes["partner-chat"].balance == Balance(cost=0.7, latency=0.5)


def test_every_field_of_deployments_and_teams_reaches_the_policy() -> None:
    """A missing field has the default that the reference names."""
    text = changed(
        "[store]", "[store]\n    latency: {ttft_ms: 250}\n    max_in_flight: 7\n    group: solo"
    )
    text = changed("{total_s: 120}", "{total_s: 120, first_token_s: 5}", text=text)
    text = changed("name: search,", "name: search, priority: low,", text=text)
    policy = parse(text).policy
    partner, qwen = policy.deployments["partner"], policy.deployments["qwen-eu"]
    assert (partner.prior, partner.max_in_flight, partner.group) == (
        LatencyPrior(ttft_s=0.25, tpot_s=0.02),
        7,
        "solo",
    )
    assert partner.timeouts == Timeouts(total_s=120.0, first_token_s=5.0)
    assert (qwen.prior, qwen.max_in_flight, qwen.group, qwen.timeouts.first_token_s) == (
        None,
        None,
        None,
        60.0,
    )
    assert {name: team.priority for name, team in policy.teams.items()} == {
        "payments": Priority.NORMAL,
        "search": Priority.LOW,
    }


@pytest.mark.parametrize("text", [DESIGNED, REPLICAS])
def test_the_effective_document_gives_the_same_policy(text: str) -> None:
    """`show --effective` and `export` are documents that may be applied."""
    policy = parse(text).policy
    assert parse(to_yaml(policy)).policy == policy


ms = st.decimals("0.000000000001", "3600000", places=12)
share = st.decimals("0.000001", "1000000", places=6)


@settings(deadline=None, max_examples=25)
@given(
    ms,
    ms,
    ms,
    share,
    share,
    st.decimals("0.000000001", "9000000", places=9),
    st.decimals("0.001", "86400", places=3),
)
def test_any_figures_are_read_written_and_read_the_same(
    ttft_ms: Decimal,
    tpot_ms: Decimal,
    bound_ms: Decimal,
    weight: Decimal,
    cost: Decimal,
    usd: Decimal,
    timeout_s: Decimal,
) -> None:
    """Seconds are floats inside: the printed value must still be the one in force."""
    text = changed(
        "[store]", f"[store]\n    latency: {{ttft_ms: {ttft_ms:f}, tpot_ms: {tpot_ms:f}}}"
    )
    text = changed(
        "objective: priority",
        f"objective: balanced, balance: {{cost: {cost:f}, latency: {weight:f}}}, "
        f"latency: {{ttft_p95_ms: {bound_ms:f}}}, max_cost_usd: {usd:f}, timeout_s: {timeout_s:f}",
        text=text,
    )
    text = changed(
        "deployments: [qwen-eu, gpt-eu]}",
        f"deployments: [qwen-eu, gpt-eu], objective: weighted, weights: {{gpt-eu: {weight:f}, "
        f"qwen-eu: 1}}}}",
        text=text,
    )
    policy = parse(text).policy
    assert parse(to_yaml(policy)).policy == policy


def test_circles_of_any_length_are_found_in_each_of_their_routes() -> None:
    """Degrading must end; who is only led into a circle is not at fault."""
    document: dict[str, Any] = yaml.safe_load(EXAMPLE)
    ways = {"r0": "r1", "r1": "r2", "r2": "r0", "r3": "r0", "r4": "partner-chat"}
    for name, to in ways.items():
        document["routes"].append(
            {
                "name": name,
                "deployments": ["partner"],
                "degrade_to": to,
                "latency": {"ttft_p95_ms": 1},
            }
        )
    found = findings(yaml.safe_dump(document, sort_keys=False)) or ()
    assert [(one.field, one.message.partition(";")[0]) for one in found] == [
        ("routes[2].degrade_to", "leads back to 'r0' (r0 to r1 to r2 to r0)"),
        ("routes[3].degrade_to", "leads back to 'r1' (r1 to r2 to r0 to r1)"),
        ("routes[4].degrade_to", "leads back to 'r2' (r2 to r0 to r1 to r2)"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "different"),
    [
        ("127.0.0.1:8002", "127.0.0.1:8003", None),
        ("{type: H200, usd_per", "{type: H100, usd_per", "gpu"),
        (
            "model: qwen3-32b\n    region: eu-de\n    group",
            "model: qwen3\n    region: eu-fr\n    group",
            "model, region",
        ),
    ],
)
def test_replicas_are_one_engine_at_one_price(old: str, new: str, different: str | None) -> None:
    """A session may be served by any of them: another price or place would be a silent change of
    both.
    """
    found = findings(changed(old, new, text=REPLICAS))
    if different is None:
        assert found is None
    else:
        (one,) = found or ()
        assert one.field == "deployments[2].group"
        assert f"but {different} of this deployment is not that of 'qwen-eu'" in one.message


@pytest.mark.parametrize(
    ("old", "new", "fields"),
    [
        ("objective: priority", "objective: prio, weights: {partner: 1}", ["routes[1].objective"]),
        ("objective: priority", "objective: prio, balance: {cost: 1}", ["routes[1].objective"]),
        ("objective: priority", "objective: weighted, weights: 3", ["routes[1].weights"]),
        (
            "deployments: [partner], objective: priority",
            "objective: weighted, weights: {partner: 1}",
            ["routes[1].deployments"],
        ),
        (
            "name: partner-chat, deployments: [partner], objective: priority",
            "deployments: [partner], max_cost_usd: 1, degrade_to: assistant",
            ["routes[1].name", "teams[1].routes[1]"],
        ),
    ],
)
def test_a_mistake_neither_hides_nor_causes_another(old: str, new: str, fields: list[str]) -> None:
    """An unreadable part is not called wrong a second time."""
    assert [one.field for one in findings(changed(old, new)) or ()] == fields


def test_routes_that_cannot_be_read_say_nothing_of_degrading() -> None:
    """Only written fields are judged."""
    routes = EXAMPLE[EXAMPLE.index("routes:\n") : EXAMPLE.index("teams:\n")]
    assert [one.field for one in findings(EXAMPLE.replace(routes, "routes: 3\n")) or ()] == [
        "routes"
    ]


def test_a_changed_route_is_shown_field_by_field() -> None:
    """`plan` shows the facts for a decision, in the document's own units."""
    (added, change) = changes(parse(EXAMPLE).policy, parse(DESIGNED).policy)[::-1]
    assert (added.verb, added.kind, added.name) == ("added", "route", "assistant-small")
    assert change.details == (
        "objective: priority → cheapest",
        "latency: — → {ttft_p95_ms: 800}",
        "degrade_to: — → assistant-small",
    )


def test_defaults_stand_in_the_effective_document() -> None:
    """An admin reads there the values in force, not the typed ones."""
    document = effective(parse(EXAMPLE).policy)
    assert document["routes"][0]["timeout_s"] == 600
    assert document["deployments"][0]["timeouts"]["first_token_s"] == 60
    assert document["teams"][0]["priority"] == "normal"
    assert "balance" not in document["routes"][0], "it counts for nothing here"
