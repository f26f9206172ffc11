"""Builds the JSON Schema of a document from its blocks, for editors; checks no document."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.wire.yaml_blocks.blocks import Block

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_IS_VALUE = re.compile(r"`[\w.]+`|`\[\]`|`{}`|[0-9.]+")


def json_schema(document: type[Block], title: str) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of a document, for editors.

    It accepts every document that the reader accepts. Rules between fields are not in it.
    """
    schema = document.model_json_schema(schema_generator=_Schema)
    for block in (schema, *schema["$defs"].values()):
        for field in block["properties"].values():
            _complete(field)
    return {"$schema": SCHEMA_DIALECT, **schema, "title": title}


class _Schema(GenerateJsonSchema):
    """pydantic's schema without null: an absent field is left out of a document, never empty."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """Return a nullable field's schema without null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return a field's schema without pydantic's own default."""
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return False: fields get no generated titles."""
        return False


def _complete(field: dict[str, Any]) -> None:
    """Turn the example and default of a field's schema, which are YAML, into values."""
    examples = [text for text in field.pop("examples", ()) if "..." not in text]
    if examples:
        field["examples"] = [_value(examples[0])]
    default = field.pop("x-default", "none")
    if _IS_VALUE.fullmatch(default):
        field["default"] = _value(default.strip("`"))
    elif default != "none":
        field["description"] = f"{field['description']} Default: {default}."


def _value(text: str) -> Any:
    """Return the value that a text means in YAML; a day stays text, because JSON has no days."""
    value = yaml.safe_load(text)
    return text if isinstance(value, date) else value
