"""The JSON Schema of the policy document: an editor must not mark what `validate` accepts."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator

from gateway.wire.parsed_policy import parse
from gateway.wire.policy import effective, json_schema, to_yaml
from gateway.wire.policy.document import BLOCKS
from tests.policy.documents import ALLOWED, EXAMPLE, changed, findings
from tests.policy.test_policy_documents import WRONG_VALUES
from tests.policy.test_policy_reference import example

DOCUMENTS = (EXAMPLE, ALLOWED, example())
FIELDS = sorted({name for block in BLOCKS.values() for name in block.names()})
VALUES: list[Any] = [
    *(True, False, 0, 1, 3, 50, 0.5, 800, 9_000_000, "1", "0.80", "true", "x", "eu", "us", "any"),
    *("global", "month", "once", "soft", "shadow", "weighted", "balanced", "cheapest", "high"),
    *("env:NAME", "file:/run/key", "https://h.example/v1", "http://vllm:8000", "Europe/Berlin"),
    *("0A1b2C3d4E", "*", "vllm", "both", "always", "keep", "2026-11-20", [], ["eu"], ["eu", "us"]),
    *(["tools"], ["chat"], ["embeddings"], ["assistant"], {}, {"regions": ["any"]}),
    *({"concurrent": 4, "mode": "shadow"}, {"ttft_p95_ms": 800}, {"total_s": 5.5}),
    *({"source": "contract 7", "as_of": "2026-11-20"}, {"cost": 0.7, "latency": 0.3}),
    *(
        {"input_usd_per_mtok": 1, "output_usd_per_mtok": "2.50"},
        [{"period": "day", "limit_usd": 9}],
    ),
]


class EditorLoader(yaml.CSafeLoader):
    """A loader that leaves days as text, as editors do."""


EditorLoader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: node.value)


def in_an_editor(text: str) -> Any:
    """The values that an editor sees in a document."""
    return yaml.load(text, Loader=EditorLoader)


@pytest.fixture(scope="module")
def schema() -> Validator:
    """The schema as `tollgate policy schema` prints it."""
    printed = json.loads(json.dumps(json_schema()))
    Draft202012Validator.check_schema(printed)
    # The validator looks each reference up anew, which takes most of its time.
    return Draft202012Validator(without_references(printed, printed["$defs"]))


def without_references(schema: Any, blocks: dict[str, Any]) -> Any:
    """The schema with each referenced block in its place."""
    if isinstance(schema, list):
        return [without_references(one, blocks) for one in schema]
    if not isinstance(schema, dict):
        return schema
    named = schema.get("$ref", "").rpartition("/")[2]
    rest = {name: one for name, one in schema.items() if name not in ("$ref", "$defs")}
    whole = rest | blocks[named] if named else rest
    return {name: without_references(one, blocks) for name, one in whole.items()}


def mutated(rng: Random) -> str:
    """One of the documents with up to two changes anywhere in it; many are still valid."""
    document = in_an_editor(rng.choice(DOCUMENTS))
    for _ in range(rng.choice((0, 1, 1, 2))):
        node = document
        while True:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            if not isinstance(node[key], dict | list) or not node[key] or rng.random() < 0.2:
                break
            node = node[key]
        match rng.choice(("drop", "set", "add")):
            case "drop":
                del node[key]
            case "set":
                node[key] = rng.choice(VALUES)
            case _ if isinstance(node, dict):
                node[rng.choice(FIELDS)] = rng.choice(VALUES)
    return yaml.dump(document, Dumper=yaml.CSafeDumper, sort_keys=False)


def test_the_schema_never_rejects_an_accepted_document(schema: Validator) -> None:
    """A false mark in the editor teaches people to ignore the marks."""
    rng, accepted, rejected = Random(7), 0, 0
    while accepted < 500:
        text = mutated(rng)
        if findings(text) is not None:
            rejected += 1
            continue
        accepted += 1
        assert list(schema.iter_errors(in_an_editor(text))) == [], text
        if accepted % 10 == 0:
            effective_text = to_yaml(parse(text).policy)
            assert list(schema.iter_errors(in_an_editor(effective_text))) == [], effective_text
    assert rejected > 500, "the changes reach the limits of the format"


@pytest.mark.parametrize("text", DOCUMENTS)
def test_the_schema_accepts_the_examples_and_their_effective_form(
    schema: Validator, text: str
) -> None:
    """These are the documents that people start from."""
    assert list(schema.iter_errors(in_an_editor(text))) == []
    assert effective(parse(text).policy)["version"] == 1


def test_the_schema_finds_most_of_the_wrong_values(schema: Validator) -> None:
    """An editor that marks nothing is of no use: wrong types, names and bounds are marked."""
    found = 0
    for old, new, *_ in WRONG_VALUES:
        try:
            document = in_an_editor(changed(old, new))
        except yaml.YAMLError:
            continue
        found += any(schema.iter_errors(document))
    assert found >= 50


@pytest.mark.parametrize("heading", BLOCKS)
def test_every_field_of_the_schema_explains_itself(heading: str) -> None:
    """The editor shows the description beside the field."""
    printed = json_schema()
    name = BLOCKS[heading].__name__
    block = printed if heading == "Document" else printed["$defs"][name]
    assert block["additionalProperties"] is False
    assert all(field["description"] for field in block["properties"].values())
    assert not any("x-default" in field for field in block["properties"].values())
