"""Parses the text of a policy document completely: returns the policy with notes, or raises with
every error and its line.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.policy.policy import Policy
from gateway.domain.policy_notes import notes_on
from gateway.errors import Finding
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy_rules import check, note_ineffective_blocks
from gateway.wire.yaml_blocks.findings import in_order
from gateway.wire.yaml_blocks.nodes import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPolicy:
    """A document's text, its policy, and the notes about it, in the order of the document."""

    text: str
    policy: Policy
    notes: tuple[Finding, ...]


def parse(text: str) -> ParsedPolicy:
    """Return the policy and notes of a document's text. Raises `PolicyRejected` with every error
    found, and only that.
    """
    root = read_document(text)
    document = PolicyDocument.read(root)
    if document is not None:
        check(document)
    if document is None or root.findings.errors:
        raise root.findings.rejected()
    policy = document.policy()
    note_ineffective_blocks(document, policy)
    for path, message in notes_on(policy):
        root.at(path).note(message)
    return ParsedPolicy(text=text, policy=policy, notes=in_order(root.findings.notes))
