"""The reference cannot rot: the code lists itself and every entry must be documented."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest
from pydantic.fields import FieldInfo

from gateway.domain.policy.known_members import KNOWN_MEMBERS
from gateway.domain.policy.request_fields import FEATURES
from gateway.domain.routing.objectives import OBJECTIVES
from gateway.wire.parsed_policy import parse
from gateway.wire.policy.document import BLOCKS
from gateway.wire.policy.routes import RouteBlock

REFERENCE = (Path(__file__).parents[2] / "docs" / "reference" / "policy.md").read_text(
    encoding="utf-8"
)


def row(name: str, field: FieldInfo) -> str:
    shown = "**required**"
    if not field.is_required():
        shown = cast(dict[str, str], field.json_schema_extra)["x-default"]
    return f"| `{name}` | {shown} | {field.description} | `{(field.examples or [''])[0]}` |"


@pytest.mark.parametrize("heading", BLOCKS)
def test_every_field_is_documented(heading: str) -> None:
    """A field without a line in the reference does not exist for its users.

    The line is generated text: copy it.
    """
    section = REFERENCE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    documented = [line for line in section.splitlines() if line.startswith("| `")]
    block = BLOCKS[heading]
    fields = [(name, block.model_fields[of]) for name, of in block.names().items()]
    assert documented == [row(name, field) for name, field in fields]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_has_its_meaning_in_the_reference(name: str) -> None:
    """A new objective was accepted and listed, and nothing explained it."""
    assert f"`{name}`" in str(RouteBlock.model_fields["objective"].description)


def example() -> str:
    return REFERENCE.partition("```yaml\n")[2].partition("```")[0]


def test_the_example_of_the_reference_is_valid_and_nothing_in_it_is_odd() -> None:
    """People copy it."""
    parsed = parse(example())
    assert set(parsed.policy.teams) == {"payments", "search"}
    assert parsed.notes == ()


def test_the_identities_in_the_reference_are_those_of_its_example() -> None:
    """They are typed into `tollgate budget`, and looked for in the ledger."""
    policy = parse(example()).policy
    payments = policy.teams["payments"]
    accounts = policy.accounts(payments, project="checkout", key_id="0A1b2C3d4E", day=None)
    for account in accounts:
        assert f"`{account.account_id}`" in REFERENCE
    assert len(accounts) == 5


def test_the_reference_lists_every_field_that_needs_leave() -> None:
    """A field that is refused and not documented would be a riddle; so would one that is documented
    and passes.
    """
    rows = [
        f"| `{feature.name}` | {_listed(feature.members)} | {_field_list(feature.fields)} | "
        f"{feature.why} |"
        for feature in FEATURES.values()
    ]
    known = f"Known members that need no leave: {_listed(sorted(KNOWN_MEMBERS))}."
    head = [
        "| Feature | Members, for any value | By their value | Why |",
        "|---|---|---|---|",
    ]
    section = REFERENCE.partition("<!-- features:begin -->\n")[2].partition(
        "\n<!-- features:end -->"
    )[0]
    assert section.strip() == "\n".join([*head, *rows, "", known])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _field_list(fields: Iterable[str]) -> str:
    return ", ".join(field if " " in field else f"`{field}`" for field in fields)
