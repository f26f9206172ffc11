"""The manifests of llm-d's router and of LeaderWorkerSet are valid by the projects' own schemas.
They fit together and with the gateway: schema-valid, not deployed.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.vllm_command import metering_flags
from gateway.domain.operation import Operation
from gateway.domain.policy.policy import Priority
from gateway.providers.registry import build_providers
from gateway.providers.vllm import FAIRNESS_HEADER, OBJECTIVE_HEADER
from tests import factories
from tests.answers import at_once
from tests.deploy.manifest_schemas import SCHEMAS, errors

FOLDER = Path(__file__).parents[2] / "deploy" / "llm-d"
# Kinds of plugins at v0.9.0, each a constant in pkg/epp/framework/plugins of llm-d/llm-d-router.
PLUGINS = {
    "queue-scorer",
    "kv-cache-utilization-scorer",
    "prefix-cache-scorer",
    "metrics-data-source",
    "core-metrics-extractor",
    "round-robin-fairness-policy",
}
# docs/metrics.md and pkg/epp/metrics/metrics.go there.
COUNTERS = {"request_input_tokens", "request_output_tokens", "request_cached_tokens"}


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every document with a name for the test."""
    for file in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            yield f"{file.stem}-{document['kind']}-{document['metadata']['name']}", document


DOCUMENTS = dict(documents())


def one(kind: str) -> dict[str, Any]:
    """Return the only document of a kind."""
    (found,) = (document for document in DOCUMENTS.values() if document["kind"] == kind)
    return found


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_valid_by_the_projects_own_schema(name: str) -> None:
    """An API server would refuse it at the worst time."""
    assert errors(DOCUMENTS[name]) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_schema_finds_a_misspelt_member_and_a_wrong_version(name: str) -> None:
    """Or the test above would prove nothing."""
    misspelt = copy.deepcopy(DOCUMENTS[name])
    misspelt.setdefault("spec", misspelt)["replicass"] = 3
    assert errors(misspelt) != []
    assert errors(DOCUMENTS[name] | {"apiVersion": "v0"}) != []


def test_the_schemas_look_into_pods_and_pools() -> None:
    """A schema that ends at `spec` would pass anything below it."""
    large, pool = copy.deepcopy(one("LeaderWorkerSet")), copy.deepcopy(one("InferencePool"))
    containers = large["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"]
    containers[0]["imagee"] = "x"
    assert errors(large) != []
    pool["spec"]["targetPorts"] = [{"number": 70000}]
    assert errors(pool) != []


def test_each_schema_names_its_source() -> None:
    """A copy without a commit cannot be compared with its original."""
    for file in ("inferencepools", "inferenceobjectives", "httproutes", "leaderworkersets"):
        kept = json.loads((SCHEMAS / f"{file}.json").read_text(encoding="utf-8"))
        assert re.search(r"From \S+/\S+, \S+ at commit [0-9a-f]{40} of \d{4}", kept["$comment"])


def test_the_parts_find_each_other() -> None:
    """Names, labels and ports are only words to a schema."""
    pool, objectives = one("InferencePool"), ("high", "low")
    picker, service = one("Deployment"), one("Service")
    labels = one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    selected = pool["spec"]["selector"]["matchLabels"]
    assert labels["leaderTemplate"]["metadata"]["labels"] == selected
    assert labels["workerTemplate"]["metadata"]["labels"] != selected, "a worker takes no requests"
    assert pool["spec"]["endpointPickerRef"]["name"] == service["metadata"]["name"]
    assert pool["spec"]["endpointPickerRef"]["port"]["number"] in {
        port["port"] for port in service["spec"]["ports"]
    }
    assert service["spec"]["selector"] == picker["spec"]["selector"]["matchLabels"]
    container = picker["spec"]["template"]["spec"]["containers"][0]
    assert f"--pool-name={pool['metadata']['name']}" in container["args"]
    (rule,) = one("HTTPRoute")["spec"]["rules"]
    assert [ref["name"] for ref in rule["backendRefs"]] == [pool["metadata"]["name"]]
    found = [doc for doc in DOCUMENTS.values() if doc["kind"] == "InferenceObjective"]
    assert tuple(doc["metadata"]["name"] for doc in found) == objectives
    assert {doc["spec"]["poolRef"]["name"] for doc in found} == {pool["metadata"]["name"]}


def test_the_picker_queues_by_team_and_objective() -> None:
    """Without the feature gate the headers would change nothing, and no error would say so."""
    config = yaml.safe_load(one("ConfigMap")["data"]["picker.yaml"])
    assert config["featureGates"] == ["flowControl"]
    assert {plugin["type"] for plugin in config["plugins"]} == PLUGINS
    bands = config["flowControl"]["priorityBands"]
    assert {band["fairnessPolicyRef"] for band in bands} == {"round-robin-fairness-policy"}
    priorities = {
        doc["spec"]["priority"] for doc in DOCUMENTS.values() if doc["kind"] == "InferenceObjective"
    }
    assert {band["priority"] for band in bands} == priorities | {0}


def test_the_leader_meters_as_engine_serve_does() -> None:
    """Without these flags cached tokens are billed in full."""
    template = one("LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    args = template["spec"]["containers"][0]["args"]
    assert set(metering_flags()) <= set(args)
    assert {"--max-num-queued-reqs=256", "--shutdown-timeout=20"} <= set(args)


@pytest.mark.parametrize("priority", Priority)
def test_a_request_names_its_team_and_its_objective(priority: Priority) -> None:
    """The picker's fairness and its counters are by these headers, and the objectives are those of
    the manifest.
    """
    headers = sent(priority=priority)
    assert headers[FAIRNESS_HEADER] == "payments"
    objective = headers.get(OBJECTIVE_HEADER)
    declared = {
        doc["metadata"]["name"] for doc in DOCUMENTS.values() if doc["kind"] == "InferenceObjective"
    }
    assert objective in declared if priority is not Priority.NORMAL else objective is None


def test_an_engine_of_another_company_does_not_learn_the_team() -> None:
    """A team's name may tell a stranger about the organisation."""
    assert FAIRNESS_HEADER not in sent(is_self_hosted=False)


def test_the_readme_names_real_counters() -> None:
    """A misspelt counter compares the ledger with nothing."""
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"llm_d_epp_(\w+)_sum", text)) == COUNTERS
    assert {FAIRNESS_HEADER, OBJECTIVE_HEADER} <= set(re.findall(r"`(x-llm-d-[a-z-]+)`", text))


def sent(*, priority: Priority = Priority.NORMAL, is_self_hosted: bool = True) -> dict[str, str]:
    """Return the headers of a request that is sent to a vLLM deployment."""
    read = factories.read(b'{"model":"assistant","messages":[]}', Operation.CHAT)
    deployment = factories.deployment("one", provider="vllm", is_self_hosted=is_self_hosted)
    request = factories.request(read, priority=priority)
    call = at_once(build_providers(salt_key=b"s")["vllm"].call(deployment, request))
    return dict(call.headers)
