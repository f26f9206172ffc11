"""The error of a request that no deployment may take: the deciding fact and the next step."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.domain.policy.policy import ResidencyRule
from gateway.domain.residency.rules import Denial
from gateway.domain.routing.messages import MOST_NAMED, MOST_SHOWN, OBSTACLES, Unplaced
from tests import factories


def refusal(kind: str, **changes: Any) -> Any:
    """Return the error for a request without a deployment."""
    values: dict[str, Any] = {
        "team": "payments",
        "route": "assistant",
        "data_class": "internal",
        "rules": (),
        "denials": (),
        "details": "one: its obstacle",
    }
    return OBSTACLES[kind](Unplaced(**values | changes))


@pytest.mark.parametrize("kind", OBSTACLES)
def test_each_refusal_has_its_details_and_a_next_step(kind: str) -> None:
    """A caller who cannot fix the request knows whom to ask, or which route to try."""
    text = str(refusal(kind))
    assert "one: its obstacle" in text
    assert any(
        word in text for word in ("Ask an admin", "ask an admin", "An admin", "another route")
    )


@pytest.mark.parametrize("kind", ["leaves_region", "field"])
def test_the_fields_at_fault_are_named_if_they_are_known(kind: str) -> None:
    """A body may have a hundred members."""
    assert "In this request: " not in str(refusal(kind))
    assert "In this request: store, tools[0]. " in str(refusal(kind, fields=("store", "tools[0]")))


@pytest.mark.parametrize(
    ("serving", "step"),
    [
        (None, "Use another route."),
        ((), "No route of your team does: ask an admin for one."),
        (("b", "c"), "Use a route that does: b, c."),
    ],
)
def test_an_endpoint_that_is_not_served_names_the_routes_that_serve_it(
    serving: tuple[str, ...] | None, step: str
) -> None:
    """None is no known request, so that no route can be named."""
    assert str(refusal("operation", serving=serving)).endswith(step)


@pytest.mark.parametrize(
    ("names", "line"),
    [(("x", "y z"), "`listed: [x]`"), (("y z",), ""), ((), ""), (("x" * 200,), "")],
)
def test_an_unlisted_member_is_named_shortly_and_with_its_line(
    names: tuple[str, ...], line: str
) -> None:
    """An admin copies the line of the policy, which lists no text of a caller."""
    error = refusal("unlisted", unlisted=names)
    assert line in str(error)
    assert ("listed: [" in str(error)) is bool(line)
    assert error.param == (names[0][:MOST_SHOWN] if names else None)
    many = refusal("unlisted", unlisted=tuple(f"m{one}" for one in range(9)))
    assert f"'m{MOST_NAMED - 1}'" in str(many)
    assert f"'m{MOST_NAMED}'" not in str(many)


def denied(rule: ResidencyRule, field: str) -> Denial:
    """Return the denial of a rule's field."""
    return Denial(rule_id=rule.rule_id, field=field, is_shadow=False, why="")


def test_a_residency_refusal_names_the_broken_rules_and_how_to_explain_them() -> None:
    """Tags are part of the command: without them it explains another request."""
    internal = factories.class_rule("internal", "eu", self_hosted_only=True)
    phi = ResidencyRule(rule_id="tag:phi", at_rest=frozenset({"eu"}))
    one = str(refusal("residency", rules=(internal, phi), denials=(denied(internal, "regions"),)))
    assert "residency rule internal→eu (self-hosted only): one" in one
    assert one.endswith("--route assistant --class internal --data-tag phi")
    assert "'residency' block" not in one
    both = (denied(internal, "gateway_regions"), denied(phi, "at_rest"))
    two = str(refusal("residency", rules=(internal, phi), denials=both, fields=("store",)))
    assert "residency rules internal→eu (self-hosted only), tag:phi: one" in two
    assert "A deployment that is allowed may not be sent store: leave that out." in two
    assert "The 'residency' block of a deployment" in two
    assert "TOLLGATE_REGION is a gateway's own region." in two
