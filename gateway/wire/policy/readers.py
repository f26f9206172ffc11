"""Readers of single values, lists and blocks of fields.

A reader returns the value or raises `Wrong`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeVar

import yaml

from gateway.wire.policy.findings import Findings, Spot, Wrong, nearest, shown, suggestion

T = TypeVar("T")
Read = Callable[[Spot, Findings], Any]

_TAG = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"0|[1-9][0-9]{0,14}")
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a block, for reading and for the reference.

    `default` is used if the field is absent; `default_text` describes it in the reference.
    """

    name: str
    read: Read
    meaning: str
    example: str
    is_required: bool = False
    default: Any = None
    default_text: str = "—"


@dataclass(frozen=True, slots=True)
class Entry:
    """A mapping as read: its valid values, and the position of each field."""

    spot: Spot
    values: dict[str, Any] = field(default_factory=dict)
    spots: dict[str, Spot] = field(default_factory=dict)

    def of(self, name: str, kind: type[T]) -> T | None:
        """Return the value of a field, or None if it is absent or was invalid."""
        value = self.values.get(name)
        return value if isinstance(value, kind) else None

    def place(self, name: str) -> Spot:
        """Return the field's spot, or that of the block if the field is absent."""
        return self.spots.get(name) or self.spot.member(name, self.spot.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A mapping with known fields. `refused` fields have their own message."""

    name: str
    fields: tuple[Field, ...]
    refused: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, spot: Spot, findings: Findings) -> Entry:
        """Read all fields, adding a finding for each that is invalid, unknown or missing."""
        known = {field.name: field for field in self.fields}
        entry = Entry(spot)
        misspelt: set[str | None] = set()
        for name, value in members(spot, findings):
            entry.spots[name] = value
            if name in known:
                _read_into(entry.values, name, value, known[name].read, findings)
            elif name in self.refused:
                findings.error(value, self.refused[name])
            else:
                misspelt.add(nearest(name, known))
                findings.error(value, f"a {self.name} has no such field{suggestion(name, known)}")
        for absent in (f for f in self.fields if f.name not in entry.spots):
            if absent.is_required and absent.name in misspelt:
                continue  # one mistake, one error
            if absent.is_required:
                findings.error(
                    entry.place(absent.name),
                    f"is missing; write for example '{absent.name}: {absent.example}'",
                )
            else:
                entry.values[absent.name] = absent.default
        return entry


def members(spot: Spot, findings: Findings) -> list[tuple[str, Spot]]:
    """Return the fields of a mapping, each once. Raises `Wrong` if the node is not a mapping."""
    if not isinstance(spot.node, yaml.MappingNode):
        raise Wrong(spot, f"must be a mapping of names to values, not {_kind(spot.node)}")
    found: dict[str, Spot] = {}
    for key, value in spot.node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
            findings.error(
                Spot(key, spot.path),
                f"a field name must be text, not {_kind(key)}; put it in quotes",
            )
        elif key.value in found:
            first = found[key.value].line
            findings.error(
                Spot(key, spot.member(key.value, value).path),
                f"is there twice (first in line {first})",
            )
        else:
            found[key.value] = spot.member(key.value, value)
    return list(found.items())


def list_of(read: Read) -> Read:
    """Return a reader of lists.

    Invalid items become findings; the others are returned with their spots.
    """

    def read_list(spot: Spot, findings: Findings) -> Listed:
        if not isinstance(spot.node, yaml.SequenceNode):
            raise Wrong(spot, f"must be a list such as [a, b], not {_kind(spot.node)}")
        listed = Listed()
        for index, node in enumerate(spot.node.value):
            at = spot.item(index, node)
            try:
                listed.append((at, read(at, findings)))
            except Wrong as wrong:
                findings.error(wrong.spot, wrong.message)
        return listed

    return read_list


class Listed(list[tuple[Spot, Any]]):
    """The items of a list with their spots."""

    @property
    def items(self) -> tuple[Any, ...]:
        """The items without their spots."""
        return tuple(value for _, value in self)


def entries(listed: Listed | None) -> Iterator[Entry]:
    """Yield the blocks of a list, if it could be read."""
    return iter(listed.items if listed is not None else ())


def map_of(read_key: Callable[[Spot, str], None], read: Read) -> Read:
    """Return a reader of mappings whose field names the author chooses."""

    def read_map(spot: Spot, findings: Findings) -> Entry:
        entry = Entry(spot)
        for name, value in members(spot, findings):
            try:
                read_key(value, name)
            except Wrong as wrong:
                findings.error(wrong.spot, wrong.message)
                continue
            entry.spots[name] = value
            _read_into(entry.values, name, value, read, findings)
        return entry

    return read_map


def declared_only(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block to be written, without undeclared fields that have no default (a price, a
    window).
    """
    return {name: value for name, value in block.items() if value is not None}


def text(pattern: re.Pattern[str], *, rule: str) -> Read:
    """Return a reader of text that matches `pattern` completely; `rule` describes the pattern in
    words.
    """

    def read_text(spot: Spot, findings: Findings) -> str:
        value = plain_text(spot)
        if not pattern.fullmatch(value):
            raise Wrong(spot, f"'{shown(value)}' is not allowed: {rule}")
        return value

    return read_text


def one_of(names: Collection[str]) -> Read:
    """Return a reader of one name out of a known set."""

    def read_name(spot: Spot, findings: Findings) -> str:
        value = plain_text(spot)
        if value not in names:
            raise Wrong(spot, f"'{shown(value)}' is not known{suggestion(value, names)}")
        return value

    return read_name


def integer(*, least: int, most: int) -> Read:
    """Return a reader of whole numbers within bounds."""

    def read_integer(spot: Spot, findings: Findings) -> int:
        value = _scalar(spot, "a whole number")
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
            raise Wrong(spot, f"must be a whole number from {least} to {most}, written in digits")
        return int(value)

    return read_integer


def decimal(*, above: str | None = None, least: str | None = None, most: str, unit: str) -> Read:
    """Return a reader of exact decimals, straight from the text: a float on the way would change
    a price.
    """

    def read_decimal(spot: Spot, findings: Findings) -> Decimal:
        value = _scalar(spot, "a number")
        from_where = f"above {above}" if above is not None else f"from {least}"
        wanted = f"must be {unit}, {from_where} to {most}, as a plain decimal such as 0.80"
        if not _DECIMAL.fullmatch(value):
            raise Wrong(spot, wanted)
        number = Decimal(value)
        too_small = number <= Decimal(above) if above is not None else number < Decimal(least or 0)
        if too_small or number > Decimal(most):
            raise Wrong(spot, wanted)
        return number

    return read_decimal


def boolean(spot: Spot, findings: Findings) -> bool:
    """Read `true` or `false`; YAML's other spellings (yes, on, ...) are refused because readers
    mistake them easily.
    """
    value = _scalar(spot, "true or false")
    if value not in ("true", "false"):
        raise Wrong(spot, "must be true or false")
    return value == "true"


def plain_text(spot: Spot) -> str:
    """Return the text of a scalar.

    Raises `Wrong` if YAML would read it as another type (`no` is false).
    """
    value = _scalar(spot, "text")
    if spot.node.tag != _TAG + "str":
        raise Wrong(
            spot, f'must be text; YAML reads this as {_kind(spot.node)}, so put it in quotes: "…"'
        )
    return value


def _read_into(
    values: dict[str, Any], name: str, spot: Spot, read: Read, findings: Findings
) -> None:
    try:
        values[name] = read(spot, findings)
    except Wrong as wrong:
        findings.error(wrong.spot, wrong.message)


def _scalar(spot: Spot, wanted: str) -> str:
    if not isinstance(spot.node, yaml.ScalarNode) or spot.node.tag == _TAG + "null":
        raise Wrong(spot, f"must be {wanted}, not {_kind(spot.node)}")
    return str(spot.node.value)


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


def _kind(node: yaml.Node) -> str:
    """Return a node's YAML type in words. Never its value: it may be a secret."""
    return _KINDS.get(str(node.tag).removeprefix(_TAG), "another kind of value")
