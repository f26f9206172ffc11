"""The manifests of autoscalers are valid by the projects' own schemas, and read a metric that the
gateway has: schema-valid, not deployed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.domain.deployments.engine_signals import EngineSignals
from gateway.telemetry.engine_gauges import EngineGauges
from tests.deploy.manifest_schemas import SCHEMAS, closed

FOLDER = Path(__file__).parents[2] / "deploy" / "autoscaling"
METRIC = "tollgate_engine_pressure"


def keda_schema() -> dict[str, Any]:
    """Return KEDA's schema of a ScaledObject; as the API server does, unknown members are refused
    wherever the schema lists the known ones.
    """
    crd = yaml.safe_load((SCHEMAS / "keda.sh_scaledobjects.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = closed(schema)
    found["properties"]["metadata"] = {"type": "object"}
    return found


def hpa_schema() -> dict[str, Any]:
    """Return the schema of an HPA, autoscaling/v2."""
    file = SCHEMAS / "horizontalpodautoscaler.v2.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


KINDS = {
    "keda.yaml": ("ScaledObject", keda_schema()),
    "hpa.yaml": ("HorizontalPodAutoscaler", hpa_schema()),
}


def errors(file: str, document: Any) -> list[str]:
    """Return the faults of a document by its kind's schema."""
    return [error.message for error in Draft202012Validator(KINDS[file][1]).iter_errors(document)]


def read(file: str) -> Any:
    return yaml.safe_load((FOLDER / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", KINDS)
def test_a_manifest_is_valid_by_the_projects_own_schema(file: str) -> None:
    """An API server would refuse it at the worst time."""
    document = read(file)
    assert document["kind"] == KINDS[file][0]
    assert errors(file, document) == []


@pytest.mark.parametrize("file", KINDS)
def test_the_schema_finds_a_fault(file: str) -> None:
    """A misspelt member and a wrong type: or the test above would prove nothing."""
    for name, value in (("maxReplicass", 3), ("scaleTargetRef", "qwen")):
        document = read(file)
        document["spec"][name] = value
        assert errors(file, document) != []
    document = read(file)
    del document["spec"]["scaleTargetRef"]
    assert errors(file, document) != []


def test_every_manifest_is_tested() -> None:
    """A new file without a schema would go unchecked."""
    assert {path.name for path in FOLDER.glob("*.yaml")} == set(KINDS)


@pytest.mark.parametrize("file", KINDS)
def test_they_read_a_metric_of_the_gateway(file: str) -> None:
    """A renamed metric would leave the replicas as they are for ever."""
    declared = {family.name for family in EngineGauges(lambda: {"q": EngineSignals()}).collect()}
    named = set(re.findall(r"tollgate_\w+", (FOLDER / file).read_text(encoding="utf-8")))
    assert METRIC in named
    assert named <= declared


def test_keda_keeps_the_replicas_without_an_answer() -> None:
    """By default it takes no answer for 0, and would remove the engines in an outage."""
    (trigger,) = read("keda.yaml")["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold", "ignoreNullValues"}
    assert float(trigger["metadata"]["threshold"]) == 0.8
