"""Validates Kubernetes documents against the schemas in `schemas/`, each with source and commit, as
strictly as an API server does: a member that a schema does not name is refused.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

SCHEMAS = Path(__file__).with_name("schemas")
OBJECT_META = {"type": "object", "required": ["name"]}


def closed(schema: Any) -> Any:
    """Return a schema that refuses members which it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items()}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not keeps:
        found.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
        found.pop("anyOf", None)
    return found


def crd_schema(file: str, version: str) -> dict[str, Any]:
    """Return the schema of one version of a custom resource, closed."""
    text = (SCHEMAS / file).read_text(encoding="utf-8")
    crd = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    (served,) = (one for one in crd["spec"]["versions"] if one["name"] == version)
    found: dict[str, Any] = closed(served["schema"]["openAPIV3Schema"])
    kind, group = crd["spec"]["names"]["kind"], crd["spec"]["group"]
    found["properties"]["metadata"] = OBJECT_META
    found["properties"]["kind"] = {"const": kind}
    found["properties"]["apiVersion"] = {"const": f"{group}/{version}"}
    return found


@cache
def validator(kind: str) -> Draft202012Validator:
    """Return the validator of a kind. Raises `KeyError` if no schema of it is kept."""
    if kind in CUSTOM:
        return Draft202012Validator(crd_schema(*CUSTOM[kind]))
    kept = json.loads((SCHEMAS / "kubernetes.json").read_text(encoding="utf-8"))
    return Draft202012Validator({"$ref": f"#/$defs/{kept['kinds'][kind]}", "$defs": kept["$defs"]})


CUSTOM = {
    "InferencePool": ("inferencepools.json", "v1"),
    "InferenceObjective": ("inferenceobjectives.json", "v1alpha2"),
    "HTTPRoute": ("httproutes.json", "v1"),
    "LeaderWorkerSet": ("leaderworkersets.json", "v1"),
}


def errors(document: dict[str, Any]) -> list[str]:
    """Return the faults of a document by the schema of its kind."""
    return [error.message for error in validator(document["kind"]).iter_errors(document)]
