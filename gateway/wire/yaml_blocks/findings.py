"""Declares the place of a node in a document, and collects the errors and notes found there; stops
after too many errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import yaml

from gateway.domain.words import shown
from gateway.errors import Finding, PolicyRejected, place_text

MAX_ERRORS = 100  # few people read more, and listing a garbled megabyte's errors would take minutes
TAG = "tag:yaml.org,2002:"
_KINDS = {
    "null": "nothing",
    "bool": "true or false",
    "int": "a number",
    "float": "a number",
    "timestamp": "a date",
    "merge": "a merge key",
    "str": "text",
    "seq": "a list",
    "map": "a mapping",
}


def kind_of(node: yaml.Node) -> str:
    """Return a node's YAML type in words. Never its value: it may be a secret."""
    return _KINDS.get(str(node.tag).removeprefix(TAG), "another kind of value")


class Wrong(Exception):
    """A value cannot be used. The block that reads it turns the message into a finding."""


class Findings:
    """All findings in one document so far.

    If the document is in several files, `files` has the file of each node, and `positions` that of
    a list's item in its own file. Both are by the node's `id`.
    """

    def __init__(self) -> None:
        """Start without any finding."""
        self.files: dict[int, str] = {}
        self.positions: dict[int, int] = {}
        self.errors: list[Finding] = []
        self.notes: list[Finding] = []

    def add_error(self, spot: Spot, message: str) -> None:
        """Add an error to the document's findings. Raises `PolicyRejected` if there are too many to
        continue.
        """
        self.errors.append(Finding(spot.line, spot.path or "document", message, file=spot.file))
        if len(self.errors) >= MAX_ERRORS:
            stopped = f"stopped reading after {MAX_ERRORS} errors"
            last = Finding(spot.line, "document", stopped, file=spot.file)
            raise PolicyRejected((*in_order(self.errors), last))

    def rejected(self) -> PolicyRejected:
        """Return the exception that reports all errors found in the document."""
        return PolicyRejected(in_order(self.errors))


@dataclass(frozen=True, slots=True)
class Spot:
    """One node of a document, and the path of fields that leads to it (`deployments[0].region`)."""

    node: yaml.Node
    path: str
    findings: Findings

    @property
    def line(self) -> int:
        """The line number, counted from 1 as in editors."""
        return int(self.node.start_mark.line) + 1

    @property
    def file(self) -> str:
        """The file that the node is in; empty if the document is one text."""
        return self.findings.files.get(id(self.node), "")

    @property
    def place(self) -> str:
        """The line for a message, and the file if there are several."""
        return place_text(self.file, self.line)

    def member(self, name: str, node: yaml.Node) -> Spot:
        """Return the place of a field of the mapping at this place."""
        path = f"{self.path}.{shown(name)}" if self.path else shown(name)
        return Spot(node, path, self.findings)

    def item(self, index: int) -> Spot:
        """Return the place of an item of the list at this place."""
        node = self.node.value[index]
        shown_index = self.findings.positions.get(id(node), index)
        return Spot(node, f"{self.path}[{shown_index}]", self.findings)

    def at(self, path: Iterable[str | int]) -> Spot:
        """Return the spot that a path leads to: fields, list positions, and names of list items.

        A field that is absent has its mapping's line.
        """
        spot = self
        for step in path:
            if isinstance(spot.node, yaml.SequenceNode):
                spot = spot.item(step if isinstance(step, int) else _positions(spot.node)[step])
            else:
                spot = spot.member(str(step), fields_of(spot.node).get(str(step), spot.node))
        return spot

    def error(self, message: str) -> None:
        """Report an error at this place. Raises `PolicyRejected` if there are too many to
        continue.
        """
        self.findings.add_error(self, message)

    def note(self, message: str) -> None:
        """Report a note at this place: a fact that is worth knowing and is not an error."""
        place = self.path or "document"
        note = Finding(self.line, place, message, is_error=False, file=self.file)
        self.findings.notes.append(note)


@lru_cache(maxsize=4)  # a document's notes come list by list; without it each would walk its list
def fields_of(mapping: yaml.MappingNode) -> dict[str, yaml.Node]:
    """Return the values of a YAML mapping by name; of a name that is there twice, the first."""
    pairs = reversed(mapping.value)
    return {key.value: value for key, value in pairs if isinstance(key, yaml.ScalarNode)}


@lru_cache(maxsize=4)
def _positions(items: yaml.SequenceNode) -> dict[str, int]:
    """Return the position of each item of a YAML list by its `name` or `key`."""
    named = enumerate(fields_of.__wrapped__(item) for item in items.value)
    return {(one["name"] if "name" in one else one["key"]).value: at for at, one in named}


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings from the first line to the last, file by file."""
    return tuple(sorted(findings, key=lambda finding: (finding.file, finding.line)))
