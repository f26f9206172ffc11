"""Declares the field types of any document: texts, names, booleans, days and numbers, each read
from its text.

Numbers are read from the text: a float on the way would change a price.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

import yaml

from gateway.domain.words import shown, suggestion
from gateway.wire.yaml_blocks.blocks import Scalar
from gateway.wire.yaml_blocks.findings import TAG, Spot, Wrong, kind_of

_INTEGER = re.compile(r"0|[1-9][0-9]{0,14}")
_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,11})(\.[0-9]{1,12})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def plain_text(spot: Spot) -> str:
    """Return the text at a place in a document. Raises `Wrong` if YAML reads another type (`no` is
    false).
    """
    value = _scalar(spot, "text")
    if spot.node.tag != TAG + "str":
        kind = kind_of(spot.node)
        raise Wrong(f'must be text; YAML reads this as {kind}, so put it in quotes: "…"')
    return value


def _scalar(spot: Spot, wanted: str) -> str:
    """Return the text of a scalar node, quoted or not. Raises `Wrong`, with the `wanted` type in
    words, for null, a list or a mapping.
    """
    if not isinstance(spot.node, yaml.ScalarNode) or spot.node.tag == TAG + "null":
        raise Wrong(f"must be {wanted}, not {kind_of(spot.node)}")
    return str(spot.node.value)


def text(pattern: str, rule: str) -> Scalar:
    """Return the type of a text that matches a pattern completely; `rule` describes the pattern in
    words.
    """
    compiled = re.compile(pattern)

    def read(spot: Spot) -> str:
        """Return a text that matches the pattern. Raises `Wrong`."""
        value = plain_text(spot)
        if not compiled.fullmatch(value):
            raise Wrong(f"'{shown(value)}' is not allowed: {rule}")
        return value

    return Scalar(read, {"type": "string", "pattern": f"^(?:{pattern})$"})


def text_without(problem_of: Callable[[str], str | None], base: Scalar | None = None) -> Scalar:
    """Return the type of a text in which `problem_of` finds no problem. `base` reads it, any text
    by default.
    """
    source = base or Scalar(plain_text, {"type": "string"})

    def read(spot: Spot) -> str:
        """Return a text without a problem. Raises `Wrong` with the problem."""
        value: str = source.read(spot)
        problem = problem_of(value)
        if problem:
            raise Wrong(problem)
        return value

    return Scalar(read, source.schema)


def one_of(names: Collection[str]) -> Scalar:
    """Return the type of a name out of a known set."""

    def read(spot: Spot) -> str:
        """Return a known name. Raises `Wrong` with the name that was probably meant."""
        value = plain_text(spot)
        if value not in names:
            raise Wrong(f"'{shown(value)}' is not known{suggestion(value, names)}")
        return value

    return Scalar(read, {"type": "string", "enum": list(names)})


def member_of(kind: type[StrEnum]) -> Scalar:
    """Return the type of a member of an enumeration, written as its value."""
    return converted(one_of([member.value for member in kind]), kind, lambda member: member.value)


def integer(least: int, most: int) -> Scalar:
    """Return the type of a whole number within bounds."""

    def read(spot: Spot) -> int:
        """Return a whole number within the bounds. Raises `Wrong`."""
        value = _scalar(spot, "a whole number")
        if not _INTEGER.fullmatch(value) or not least <= int(value) <= most:
            raise Wrong(f"must be a whole number from {least} to {most}, written in digits")
        return int(value)

    number = {"type": "integer", "minimum": least, "maximum": most}
    return Scalar(read, _or_quoted(number, _INTEGER))


def decimal(
    unit: str, *, above: str | None = None, least: str | None = None, most: str = "1000000"
) -> Scalar:
    """Return the type of an exact decimal within bounds."""
    limit, bound = (above, "exclusiveMinimum") if above is not None else (least or "0", "minimum")
    named = f"above {above}" if above is not None else f"from {least}"
    wanted = f"must be {unit}, {named} to {most}, as a plain decimal such as 0.80"

    def read(spot: Spot) -> Decimal:
        """Return an exact decimal within the bounds. Raises `Wrong`."""
        value = _scalar(spot, "a number")
        if not _DECIMAL.fullmatch(value):
            raise Wrong(wanted)
        number = Decimal(value)
        is_small = number <= Decimal(limit) if above is not None else number < Decimal(limit)
        if is_small or number > Decimal(most):
            raise Wrong(wanted)
        return number

    schema = {"type": "number", bound: int(limit), "maximum": int(most)}
    return Scalar(read, _or_quoted(schema, _DECIMAL))


def _or_quoted(schema: dict[str, Any], pattern: re.Pattern[str]) -> dict[str, Any]:
    """Return the JSON Schema of a number that may stand in quotes."""
    return {"anyOf": [schema, {"type": "string", "pattern": f"^(?:{pattern.pattern})$"}]}


def converted(scalar: Scalar, take: Callable[[Any], Any], write: Callable[[Any], Any]) -> Scalar:
    """Return the type of a scalar that the domain has in another form. `take` may raise `Wrong`."""
    return Scalar(lambda spot: take(scalar.read(spot)), scalar.schema, write)


def float_of(number: Scalar) -> Scalar:
    """Return the type of a number that the domain has as a float."""
    return converted(number, float, lambda value: Decimal(str(value)))


def _read_boolean(spot: Spot) -> bool:
    """Return the boolean at a place; only `true` and `false` are read, because readers mistake
    YAML's other spellings (yes, on, ...) easily.
    """
    value = _scalar(spot, "true or false")
    if value not in ("true", "false"):
        raise Wrong("must be true or false")
    return value == "true"


def _read_day(spot: Spot) -> date:
    """Return the day at a place. YAML parses an unquoted one as a date, which is intended."""
    wanted = "must be a day, written as in 2026-11-20"
    if not isinstance(spot.node, yaml.ScalarNode) or not _DAY.fullmatch(spot.node.value):
        raise Wrong(wanted)
    try:
        return date.fromisoformat(spot.node.value)
    except ValueError:
        raise Wrong(f"{wanted}; there is no such day") from None


_BOOLEAN = {"anyOf": [{"type": "boolean"}, {"enum": ["true", "false"]}]}
_DAY_SCHEMA = {"type": "string", "pattern": f"^{_DAY.pattern}$"}
Boolean = Annotated[bool, Scalar(_read_boolean, _BOOLEAN)]
Day = Annotated[date, Scalar(_read_day, _DAY_SCHEMA, lambda day: day.isoformat())]
