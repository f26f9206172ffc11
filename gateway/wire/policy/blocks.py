"""Blocks of a policy document: pydantic models that report every error and go on.

A block is a mapping with known fields. A new field is one line group in its block (type,
description, example, default) and one member of the domain value; the reference page and the JSON
Schema follow. Models are validated from the document's nodes (`Spot`), so each error knows its
line. A value with an error becomes `INVALID` instead of an exception: the rules between fields are
checked on the rest, and an author sees all errors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, cast

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PrivateAttr,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from gateway.wire.policy.findings import Findings, Spot, Wrong, nearest, suggestion

TAG = "tag:yaml.org,2002:"


class Invalid:
    """The stand-in for a value with an error; its finding is reported already."""


INVALID: Final = Invalid()


@dataclass(frozen=True, slots=True, eq=False)  # a key by identity: a schema has no hash
class Scalar:
    """The way of one scalar: `read` returns its value or raises `Wrong`, `write` returns it as it
    stands in a document, `schema` is its JSON Schema.
    """

    read: Callable[[Spot], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        write = self.write
        return core_schema.with_info_plain_validator_function(
            self._validate,
            serialization=None
            if write is None
            else core_schema.plain_serializer_function_ser_schema(write),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return dict(self.schema)

    def _validate(self, spot: Spot | Invalid, info: core_schema.ValidationInfo) -> Any:
        if isinstance(spot, Invalid):
            return spot
        try:
            return self.read(spot)
        except Wrong as wrong:
            _findings(info).error(wrong.spot, wrong.message)
            return INVALID


@dataclass(frozen=True, slots=True)
class Items:
    """Reads a list. An item with an error keeps its place as `INVALID`."""

    is_unique: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._validate, handler(source))

    def _validate(
        self,
        spot: Spot | Invalid,
        inner: core_schema.ValidatorFunctionWrapHandler,
        info: core_schema.ValidationInfo,
    ) -> Any:
        if isinstance(spot, Invalid):
            return spot
        if not isinstance(spot.node, yaml.SequenceNode):
            message = f"must be a list such as [a, b], not {kind_of(spot.node)}"
            _findings(info).error(spot, message)
            return INVALID
        places = [spot.item(index, node) for index, node in enumerate(spot.node.value)]
        read = inner(places)
        for index, value in enumerate(read if self.is_unique else ()):
            if value is not INVALID and value in read[:index]:
                _findings(info).error(places[index], f"{value} is there twice; remove one")
        return read


@dataclass(frozen=True, slots=True)
class Entries:
    """Reads a mapping whose names the author chooses; `check_name` raises `Wrong`."""

    check_name: Callable[[Spot, str], None]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._validate, handler(source))

    def _validate(
        self,
        spot: Spot | Invalid,
        inner: core_schema.ValidatorFunctionWrapHandler,
        info: core_schema.ValidationInfo,
    ) -> Any:
        if isinstance(spot, Invalid):
            return spot
        findings, named = _findings(info), {}
        for name, value in _members(spot, findings).items() if _is_mapping(spot, findings) else ():
            try:
                self.check_name(value, name)
                named[name] = value
            except Wrong as wrong:
                findings.error(wrong.spot, wrong.message)
        return inner(named) if isinstance(spot.node, yaml.MappingNode) else INVALID


def required(meaning: str, example: str) -> Any:
    """Return a field that each block has. `example` is YAML."""
    return Field(description=meaning, examples=[example])


def optional(meaning: str, example: str, default: Any = None, *, shown: str = "") -> Any:
    """Return a field that may be absent; `shown` describes its default in the reference."""
    plain = "none" if default is None else f"`{default}`"
    extra: dict[str, Any] = {"x-default": shown or plain}
    return Field(default, description=meaning, examples=[example], json_schema_extra=extra)


class Block(BaseModel):
    """A mapping with known fields. `refused` fields have their own message."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: ClassVar[str]
    refused: ClassVar[Mapping[str, str]] = {}
    _spot: Spot = PrivateAttr()
    _spots: dict[str, Spot] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _validate(
        cls,
        spot: Any,
        inner: core_schema.ValidatorFunctionWrapHandler,
        info: core_schema.ValidationInfo,
    ) -> Any:
        findings = _findings(info)
        if isinstance(spot, Invalid) or not _is_mapping(spot, findings):
            return INVALID
        spots, misspelt = _members(spot, findings), set()
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        for name in [name for name in spots if name not in fields]:
            message = cls.refused.get(name)
            if message is None:
                misspelt.add(nearest(name, fields))
                message = f"a {cls.title} has no such field{suggestion(name, fields)}"
            findings.error(spots[name], message)
        missing = [
            name for name, field in fields.items() if field.is_required() and name not in spots
        ]
        given = {name: at for name, at in spots.items() if name in fields}
        block = cast(Block, inner(given | dict.fromkeys(missing, INVALID)))
        block._spot, block._spots = spot, spots
        for name in missing:
            if name not in misspelt:  # one mistake, one error
                example = (fields[name].examples or [""])[0]
                findings.error(
                    block.place(name), f"is missing; write for example '{name}: {example}'"
                )
        return block

    @classmethod
    def read(cls, root: Spot, findings: Findings) -> Self | None:
        """Return the block at `root`, None if it is no mapping. All errors go to `findings`."""
        block = cls.model_validate(root, context=findings)
        return None if isinstance(block, Invalid) else block

    def values(self) -> dict[str, Any]:
        """Return all fields by name."""
        return {name: getattr(self, name) for name in type(self).model_fields}

    @classmethod
    def of_value(cls, value: object, **others: Any) -> Self:
        """Return the block of a domain value: its members by the same names, and `others`."""
        same = (name for name in cls.model_fields if name not in others)
        given = {name: getattr(value, name) for name in same} | others
        return cast("Self", cls.model_construct(**given))

    @property
    def spot(self) -> Spot:
        """Return the block's own place in the document."""
        return self._spot

    def has(self, name: str) -> bool:
        """Return True if the document has this field, valid or not."""
        return name in self._spots

    def is_readable(self, name: str) -> bool:
        """Return True if a field is valid or absent."""
        return getattr(self, name) is not INVALID

    @property
    def is_empty(self) -> bool:
        """Return True if the document has no field of it."""
        return not self._spots

    def of(self, name: str) -> Any:
        """Return a field's value, None if it is absent or invalid."""
        value = getattr(self, name)
        return None if value is INVALID else value

    def place(self, name: str) -> Spot:
        """Return a field's place, the block's own if the field is absent."""
        return self._spots.get(name) or self._spot.member(name, self._spot.node)

    def items_of(self, name: str) -> Iterator[tuple[Spot, Any]]:
        """Yield the valid items of a list with their places."""
        spot, values = self._spots.get(name), self.of(name)
        return iter(()) if spot is None or values is None else placed(spot, values)

    def blocks_of(self, name: str) -> Iterator[Any]:
        """Yield the valid blocks of a list."""
        return (block for block in self.of(name) or () if block is not INVALID)

    def entries_of(self, name: str) -> dict[str, tuple[Spot, Any]]:
        """Return the entries of a mapping with their places; an invalid value is None."""
        spot, values = self._spots.get(name), self.of(name)
        if spot is None or values is None:
            return {}
        places = {
            key.value: spot.member(key.value, at)
            for key, at in reversed(spot.node.value)
            if isinstance(key, yaml.ScalarNode)
        }
        return {
            key: (places[key], None if value is INVALID else value) for key, value in values.items()
        }


def placed(spot: Spot, values: Sequence[Any]) -> Iterator[tuple[Spot, Any]]:
    """Yield the valid items of the list at `spot`, each with its place."""
    for index, value in enumerate(values):
        if value is not INVALID:
            yield spot.item(index, spot.node.value[index]), value


def _findings(info: core_schema.ValidationInfo) -> Findings:
    return cast(Findings, info.context)


def _is_mapping(spot: Spot, findings: Findings) -> bool:
    is_mapping = isinstance(spot.node, yaml.MappingNode)
    if not is_mapping:
        findings.error(spot, f"must be a mapping of names to values, not {kind_of(spot.node)}")
    return is_mapping


def _members(spot: Spot, findings: Findings) -> dict[str, Spot]:
    """Return the fields of a mapping, each once."""
    found: dict[str, Spot] = {}
    for key, value in spot.node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != TAG + "str":
            findings.error(
                Spot(key, spot.path),
                f"a field name must be text, not {kind_of(key)}; put it in quotes",
            )
        elif key.value in found:
            first, path = found[key.value].line, spot.member(key.value, value).path
            findings.error(Spot(key, path), f"is there twice (first in line {first})")
        else:
            found[key.value] = spot.member(key.value, value)
    return found


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
