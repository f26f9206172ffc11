"""Writes a `Policy` as a document with every default, as YAML too, and builds its JSON Schema; the
modules here declare the fields.

`document` and the modules that it names declare the fields. Rules between fields are in
`wire.policy_rules`; `wire.parsed_policy` reads a text with both.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import yaml

from gateway.domain.policy.policy import Policy
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.yaml_blocks import json_schema as blocks_schema


def effective(policy: Policy) -> dict[str, Any]:
    """Return the policy as a document with every default written out."""
    return PolicyDocument.of_value(policy).model_dump(by_alias=True, exclude_none=True)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a policy document."""
    return blocks_schema.json_schema(PolicyDocument, "Tollgate policy")


def to_yaml(policy: Policy) -> str:
    """Return the effective policy as YAML; `parse` of it gives the same policy."""
    return document_yaml(effective(policy))


def document_yaml(document: dict[str, Any]) -> str:
    """Return a document's members as YAML."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """A dumper that writes decimals unchanged and never an alias: `parse` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: a repeated value is written out each time."""
        return True


def _plain_number(dumper: yaml.SafeDumper, number: Decimal) -> yaml.ScalarNode:
    """Return a YAML number with exactly the digits of a decimal."""
    text = f"{number:f}"
    # The tag that YAML itself would choose: any other is written out as `!!float`.
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)


_Dumper.add_representer(Decimal, _plain_number)
