"""The policy document: YAML text in, a `Policy` with notes out, and back with every default written
out.

All errors are reported at once, each with its line, its field and the fix. `document` and the
modules that it names declare the fields, `checks` has the rules between them, `notes` the facts
that are worth knowing.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

from gateway.domain.policy.policy import Policy
from gateway.errors import Finding
from gateway.wire.policy.checks import check
from gateway.wire.policy.document import PolicyDocument, json_schema
from gateway.wire.policy.findings import Findings, in_order
from gateway.wire.policy.nodes import read_document
from gateway.wire.policy.notes import take_notes

__all__ = ["ParsedPolicy", "effective", "json_schema", "parse", "to_yaml"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPolicy:
    """A document's text, its policy, and the notes about it, in the order of the document."""

    text: str
    policy: Policy
    notes: tuple[Finding, ...]


def parse(text: str) -> ParsedPolicy:
    """Parse a policy document. Raises `PolicyRejected` with every error found, and only that."""
    findings = Findings()
    document = PolicyDocument.read(read_document(text), findings)
    if document is not None:
        check(document, findings)
    if document is None or findings.errors:
        raise findings.rejected()
    policy = document.policy()
    take_notes(document, policy, findings)
    return ParsedPolicy(text=text, policy=policy, notes=in_order(findings.notes))


def effective(policy: Policy) -> dict[str, Any]:
    """Return the policy as a document with every default written out."""
    return PolicyDocument.of_policy(policy).model_dump(exclude_none=True)


def to_yaml(policy: Policy) -> str:
    """Return the effective policy as YAML; `parse` of it gives the same policy."""
    return yaml.dump(
        effective(policy), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110
    )


class _Dumper(yaml.SafeDumper):
    """A dumper that writes decimals unchanged and never an alias: `parse` refuses aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _plain_number(dumper: yaml.SafeDumper, number: Decimal) -> yaml.ScalarNode:
    text = f"{number:f}"
    # The tag that YAML itself would choose: any other is written out as `!!float`.
    return dumper.represent_scalar(f"tag:yaml.org,2002:{'float' if '.' in text else 'int'}", text)


_Dumper.add_representer(Decimal, _plain_number)
