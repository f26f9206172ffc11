"""Parses a policy document completely, in one text or in several files: returns the policy with
notes, or raises with every error and its line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.domain.policy.policy import Policy
from gateway.domain.policy_notes import notes_on
from gateway.errors import Finding
from gateway.wire.policy.document import PolicyDocument
from gateway.wire.policy_rules import check, note_ineffective_blocks
from gateway.wire.yaml_blocks.findings import Spot, in_order
from gateway.wire.yaml_blocks.joined import SourceFile, read_documents
from gateway.wire.yaml_blocks.joined_text import joined_text
from gateway.wire.yaml_blocks.nodes import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPolicy:
    """A document's text, its policy, and the notes about it, in the order of the document.

    `files` are those that the text was joined from; a document in one text has one without a path.
    """

    text: str
    policy: Policy
    notes: tuple[Finding, ...]
    files: tuple[SourceFile, ...]


def parse(text: str) -> ParsedPolicy:
    """Return the policy and notes of a document's text. Raises `PolicyRejected` with every error
    found, and only that.
    """
    policy, notes = _read(read_document(text))
    return ParsedPolicy(text=text, policy=policy, notes=notes, files=(SourceFile("", text),))


def parse_files(files: Sequence[SourceFile]) -> ParsedPolicy:
    """Return the policy and notes of several files as one document, each finding with its file; of
    one file as `parse` does. Raises `PolicyRejected`.
    """
    if len(files) == 1:
        return parse(files[0].text)
    root = read_documents(files)
    policy, notes = _read(root)
    text = joined_text(files, root.node)
    return ParsedPolicy(text=text, policy=policy, notes=notes, files=tuple(files))


def _read(root: Spot) -> tuple[Policy, tuple[Finding, ...]]:
    """Return the policy and notes of a document's tree. Raises `PolicyRejected`."""
    document = PolicyDocument.read(root)
    if document is not None:
        check(document)
    if document is None or root.findings.errors:
        raise root.findings.rejected()
    policy = document.policy()
    note_ineffective_blocks(document, policy)
    for path, message in notes_on(policy):
        root.at(path).note(message)
    return policy, in_order(root.findings.notes)
