"""Declares the base types of a document's mappings, lists and scalars: pydantic models that report
every error and go on.

A block is a mapping with known fields. A new field is one line group in its block (type,
description, example, default) and one member of the domain value; the reference page and the JSON
Schema follow. A field whose document name differs from the domain's has that name as its `alias`.
Models are validated from the document's nodes (`Spot`), so each error knows its line. A value with
an error becomes `INVALID` instead of an exception: the rules between fields are checked on the
rest, and an author sees all errors at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Final, Self, cast, get_args

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

from gateway.domain.words import nearest, suggestion
from gateway.wire.yaml_blocks.findings import TAG, Spot, Wrong, fields_of, kind_of


class Invalid:
    """The stand-in for a value with an error; its finding is reported already."""


INVALID: Final = Invalid()
Inner = core_schema.ValidatorFunctionWrapHandler


@dataclass(frozen=True, slots=True, eq=False)  # a key by identity: a schema has no hash
class Scalar:
    """The way of one scalar: `read` returns its value or raises `Wrong`, `write` returns it as it
    stands in a document, `schema` is its JSON Schema.
    """

    read: Callable[[Spot], Any]
    schema: Mapping[str, Any]
    write: Callable[[Any], Any] = lambda value: value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that reads this scalar from a document and writes it back."""
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return this scalar's JSON Schema to pydantic."""
        return dict(self.schema)

    def validate(self, spot: Spot | Invalid) -> Any:
        """Return the scalar's value, or `INVALID` after its error is reported."""
        if isinstance(spot, Invalid):
            return spot
        try:
            return self.read(spot)
        except Wrong as wrong:
            spot.error(str(wrong))
            return INVALID


def _guarded(read: Callable[[Spot, Inner], Any], parts: CoreSchema) -> CoreSchema:
    """Return the pydantic schema of a list or mapping that `read` reads; `parts` is that of its
    parts.
    """

    def validate(spot: Spot | Invalid, inner: Inner) -> Any:
        """Read a list or mapping; pass on the stand-in for a value with an error."""
        return spot if isinstance(spot, Invalid) else read(spot, inner)

    return core_schema.no_info_wrap_validator_function(validate, parts)


@dataclass(frozen=True, slots=True)
class Items:
    """Reads a list. An item with an error keeps its place as `INVALID`."""

    is_unique: bool = False

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that reads this list from a document."""
        return _guarded(self.read, handler(source))

    def read(self, spot: Spot, inner: Inner) -> Any:
        """Return the items of a list, or `INVALID` if it is no list."""
        if not isinstance(spot.node, yaml.SequenceNode):
            spot.error(f"must be a list such as [a, b], not {kind_of(spot.node)}")
            return INVALID
        read = inner([spot.item(index) for index in range(len(spot.node.value))])
        seen = set()
        for index, value in enumerate(read if self.is_unique else ()):
            if value is not INVALID and value in seen:
                spot.item(index).error(f"{value} is there twice; remove one")
            seen.add(value)
        return read


@dataclass(frozen=True, slots=True)
class Entries:
    """Reads a mapping whose names the author chooses; `check_name` raises `Wrong`."""

    check_name: Callable[[str], None]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that reads this mapping from a document."""
        return _guarded(self.read, handler(source))

    def read(self, spot: Spot, inner: Inner) -> Any:
        """Return the entries of a mapping that have valid names, or `INVALID` if it is no
        mapping.
        """
        if not _is_mapping(spot):
            return INVALID
        named = {}
        for name, value in members_of(spot).items():
            try:
                self.check_name(name)
                named[name] = value
            except Wrong as wrong:
                value.error(str(wrong))
        return inner(named)


@dataclass(frozen=True, slots=True)
class OrWord:
    """Reads a block, or one of some words, each of which stands for a whole domain value."""

    words: tuple[tuple[str, object], ...]

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that reads this block or word, and writes it back."""
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(self._written),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema of the block or the word to pydantic."""
        return {"anyOf": [*({"const": word} for word, _ in self.words), handler(schema)]}

    def _validate(self, spot: Spot | Invalid, inner: Inner) -> Any:
        """Return the word's value, or the block."""
        if isinstance(spot, Spot) and isinstance(spot.node, yaml.ScalarNode):
            for word, means in self.words:
                if spot.node.value == word and spot.node.tag == TAG + "str":
                    return means
            words = ", ".join(f"'{word}'" for word, _ in self.words)
            spot.error(f"must be {words} or a mapping of names to values")
            return INVALID
        return inner(spot)

    def _written(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Return a block or the word as it stands in a document."""
        return next((word for word, means in self.words if value == means), None) or inner(value)

    def stands_for(self, value: object) -> bool:
        """Return True if a word stands for a domain value."""
        return any(value == means for _, means in self.words)


@dataclass(frozen=True, slots=True)
class OrScalar:
    """Reads a list or a block, or one `scalar` in its place."""

    scalar: Scalar

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the pydantic schema that reads this list or scalar, and writes it back."""
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(self._written),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON Schema of the list or the scalar to pydantic."""
        return {"anyOf": [dict(self.scalar.schema), handler(schema)]}

    def _validate(self, spot: Spot | Invalid, inner: Inner) -> Any:
        """Return the scalar's value, or the list."""
        is_scalar = isinstance(spot, Spot) and isinstance(spot.node, yaml.ScalarNode)
        return self.scalar.validate(spot) if is_scalar else inner(spot)

    def _written(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Return a list or the scalar as it stands in a document."""
        return inner(value) if isinstance(value, list) else self.scalar.write(value)


def required(meaning: str, example: str, *, alias: str | None = None) -> Any:
    """Return the declaration of a field that each block must have; `meaning` and `example` (YAML)
    are for the reference.
    """
    return Field(description=meaning, examples=[example], alias=alias)


def optional(
    meaning: str, example: str, default: Any = None, *, shown: str = "", alias: str | None = None
) -> Any:
    """Return the declaration of a field that may be absent; `shown` describes its default in the
    reference.
    """
    plain = "none" if default is None else f"`{default}`"
    extra: dict[str, Any] = {"x-default": shown or plain}
    return Field(
        default, description=meaning, examples=[example], json_schema_extra=extra, alias=alias
    )


class Block(BaseModel):
    """A mapping with known fields. `makes` is its value in the domain; the fields in `sets` are
    sets there. `refused` fields have their own message.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    title: ClassVar[str]
    makes: ClassVar[Callable[..., Any]]
    sets: ClassVar[Collection[str]] = ()
    refused: ClassVar[Mapping[str, str]] = {}
    _spot: Spot = PrivateAttr()
    _spots: dict[str, Spot] = PrivateAttr(default_factory=dict)

    @classmethod
    @cache
    def names(cls) -> dict[str, str]:
        """Return the attribute of each field, by its name in a document."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @classmethod
    @cache
    def _required(cls) -> dict[str, str]:
        """Return the example of each required field, by its name in a document."""
        fields = {name: cls.model_fields[attribute] for name, attribute in cls.names().items()}
        needed = {name: field for name, field in fields.items() if field.is_required()}
        return {name: (field.examples or [""])[0] for name, field in needed.items()}

    @model_validator(mode="wrap")
    @classmethod
    def _validate(cls, spot: Any, inner: Inner) -> Any:
        """Return the block of a mapping, or `INVALID`; report unknown, refused and missing
        fields.
        """
        if isinstance(spot, Invalid) or not _is_mapping(spot):
            return INVALID
        spots, misspelt, names = members_of(spot), set(), cls.names()
        for name in [name for name in spots if name not in names]:
            message = cls.refused.get(name)
            if message is None:
                misspelt.add(nearest(name, names))
                message = f"a {cls.title} has no such field{suggestion(name, names)}"
            spots[name].error(message)
        missing = {name: text for name, text in cls._required().items() if name not in spots}
        given = {name: at for name, at in spots.items() if name in names}
        block = cast(Block, inner(given | dict.fromkeys(missing, INVALID)))
        block._spot, block._spots = spot, spots
        for name, example in missing.items():
            if name not in misspelt:  # one mistake, one error
                block.error(name, f"is missing; write for example '{name}: {example}'")
        return block

    @classmethod
    def read(cls, root: Spot) -> Self | None:
        """Return the block at `root`, None if it is no mapping. All errors go to the document's
        findings.
        """
        block = cls.model_validate(root)
        return None if isinstance(block, Invalid) else block

    def value(self, **others: Any) -> Any:
        """Return the domain value of a valid block: its members by the same names, and `others`.

        A field that is absent takes the domain's default.
        """
        given = {name: getattr(self, name) for name in type(self).model_fields}
        same = {
            name: frozenset(value) if name in self.sets else _domain_value(value)
            for name, value in given.items()
            if name not in others and value is not None
        }
        return type(self).makes(**same | others)

    @classmethod
    def of_value(cls, value: object, **others: Any) -> Self:
        """Return the block of a domain value: its members by the same names, and `others`."""
        given = {
            name: _document_value(getattr(value, name), field.annotation)
            for name, field in cls.model_fields.items()
            if name not in others
        }
        return cast("Self", cls.model_construct(**given | others))

    @property
    def spot(self) -> Spot:
        """Return the block's own place in the document."""
        return self._spot

    def has(self, name: str) -> bool:
        """Return True if the document has this field, valid or not."""
        return name in self._spots

    @property
    def is_empty(self) -> bool:
        """Return True if the document has no field of this block."""
        return not self._spots

    def is_readable(self, name: str) -> bool:
        """Return True if a field of the block is valid or absent."""
        return getattr(self, self.names()[name]) is not INVALID

    def of(self, name: str) -> Any:
        """Return a field's value, None if it is absent or invalid."""
        value = getattr(self, self.names()[name])
        return None if value is INVALID else value

    def spot_of(self, name: str) -> Spot:
        """Return a field's place in the document, the block's own if the field is absent."""
        return self._spots.get(name) or self._spot.member(name, self._spot.node)

    def error(self, name: str, message: str) -> None:
        """Report an error in a field of the block, with its line."""
        self.spot_of(name).error(message)

    def items_of(self, name: str) -> Iterator[tuple[Spot, Any]]:
        """Yield the valid items of the list in field `name`, each with its place; none if the
        field is absent.
        """
        return placed(self.spot_of(name), self.of(name) or ())

    def blocks_of(self, name: str) -> Iterator[Any]:
        """Yield the valid blocks of the list in field `name`; none if the field is absent."""
        return (block for block in self.of(name) or () if block is not INVALID)

    def entries_of(self, name: str) -> dict[str, tuple[Spot, Any]]:
        """Return the entries of a mapping with their places in the document; an invalid value is
        None.
        """
        spot, values = self.spot_of(name), self.of(name) or {}
        nodes = fields_of(spot.node) if values else {}
        return {
            key: (spot.member(key, nodes[key]), None if value is INVALID else value)
            for key, value in values.items()
        }


def placed(spot: Spot, values: Sequence[Any]) -> Iterator[tuple[Spot, Any]]:
    """Yield the valid items of the list at `spot`, each with its place."""
    return ((spot.item(at), value) for at, value in enumerate(values) if value is not INVALID)


def _domain_value(value: Any) -> Any:
    """Return a block's value as the domain has it: blocks become their values, lists become
    tuples.
    """
    if isinstance(value, Block):
        return value.value()
    if isinstance(value, list):
        return tuple(_domain_value(item) for item in value)
    if isinstance(value, dict):
        return {name: _domain_value(item) for name, item in value.items()}
    return value


def _document_value(value: Any, annotation: Any) -> Any:
    """Return a domain value in the form that a document's field of that type has."""
    if isinstance(value, tuple | frozenset):
        items = [_document_value(item, annotation) for item in value]
        return sorted(items) if isinstance(value, frozenset) else items
    if isinstance(value, Mapping):
        return {name: _document_value(item, annotation) for name, item in value.items()}
    block, word = _block_in(annotation), _word_in(annotation)
    if (
        value is None
        or block is None
        or isinstance(value, str)
        or (word is not None and word.stands_for(value))
    ):
        return value
    return block.of_value(value)


@cache
def _word_in(annotation: Any) -> OrWord | None:
    """Return the words that a field takes instead of a block; None if it takes none."""
    if isinstance(annotation, OrWord):
        return annotation
    return next((found for part in get_args(annotation) if (found := _word_in(part))), None)


@cache
def _block_in(annotation: Any) -> type[Block] | None:
    """Return the block that a field holds, alone or in a list or mapping."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation
    return next((found for part in get_args(annotation) if (found := _block_in(part))), None)


def _is_mapping(spot: Spot) -> bool:
    """Return True if a node is a mapping; report an error if it is not."""
    is_mapping = isinstance(spot.node, yaml.MappingNode)
    if not is_mapping:
        spot.error(f"must be a mapping of names to values, not {kind_of(spot.node)}")
    return is_mapping


def members_of(spot: Spot) -> dict[str, Spot]:
    """Return the fields of a YAML mapping with their places, each once."""
    found: dict[str, Spot] = {}
    for key, value in spot.node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != TAG + "str":
            message = f"a field name must be text, not {kind_of(key)}; put it in quotes"
            Spot(key, spot.path, spot.findings).error(message)
        elif key.value in found:
            first = found[key.value].place
            spot.member(key.value, key).error(f"is there twice (first in {first})")
        else:
            found[key.value] = spot.member(key.value, value)
    return found
