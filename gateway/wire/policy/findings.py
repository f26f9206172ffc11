"""Positions in a document, and the list of errors and notes found there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

import yaml

from gateway.errors import Finding, PolicyRejected

MAX_ERRORS = 100  # few people read more, and listing a garbled megabyte's errors would take minutes


@dataclass(frozen=True, slots=True)
class Spot:
    """One node of the document and the path of fields that leads to it
    (`deployments[0].region`).
    """

    node: yaml.Node
    path: str

    @property
    def line(self) -> int:
        """The line number, counted from 1 as in editors."""
        return int(self.node.start_mark.line) + 1

    def member(self, name: str, node: yaml.Node) -> Spot:
        """Return the spot of a field of this mapping."""
        return Spot(node, f"{self.path}.{shown(name)}" if self.path else shown(name))

    def item(self, index: int, node: yaml.Node) -> Spot:
        """Return the spot of an item of this list."""
        return Spot(node, f"{self.path}[{index}]")


class Wrong(Exception):
    """A value cannot be used. The container that reads it turns this into a finding."""

    def __init__(self, spot: Spot, message: str) -> None:
        super().__init__(message)
        self.spot = spot
        self.message = message


class Findings:
    """All findings in one document so far."""

    def __init__(self) -> None:
        self.errors: list[Finding] = []
        self.notes: list[Finding] = []

    def error(self, spot: Spot, message: str) -> None:
        """Add an error. Raises `PolicyRejected` if there are too many to continue."""
        self.errors.append(Finding(spot.line, spot.path or "document", message))
        if len(self.errors) >= MAX_ERRORS:
            last = Finding(spot.line, "document", f"stopped reading after {MAX_ERRORS} errors")
            raise PolicyRejected((*in_order(self.errors), last))

    def note(self, spot: Spot, message: str) -> None:
        """Add a note: a fact that is worth knowing and is not an error."""
        self.notes.append(Finding(spot.line, spot.path or "document", message, is_error=False))

    def rejected(self) -> PolicyRejected:
        """Return the exception that reports all errors found."""
        return PolicyRejected(in_order(self.errors))


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings from the first line to the last."""
    return tuple(sorted(findings, key=lambda finding: finding.line))


def shown(text: str) -> str:
    """Return a document's text made safe to print: short, and without characters that move the
    cursor.
    """
    short = text if len(text) <= 60 else text[:57] + "..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the name that was probably meant, ignoring case."""
    folded = {name.lower(): name for name in sorted(known)}
    near = difflib.get_close_matches(word[:100].lower(), sorted(folded), n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'eu-de'?` or, if no name is near, the names that exist."""
    names = sorted(set(known))
    near = nearest(word, names)
    if near:
        return f"; did you mean '{near}'?"
    if not names:
        return ""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"; there is: {', '.join(names[:8])}{more}"
