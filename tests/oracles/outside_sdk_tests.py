"""The official Anthropic SDK's own tests of messages and models call a running gateway, whose upstream
answers from Anthropic's published description.

The tests come from the SDK's source distribution, the description from llm-comply.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.policy.request_fields import FEATURES
from tests.gateway_process import Gateway
from tests.integration.recording_upstream import Answer, Received, RecordingUpstream

PYTHON = os.environ["ORACLES_PYTHON"]  # of an environment with the SDK and llm-comply
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
SUITES = (
    "test_messages.py",
    "test_models.py",
    "beta/test_messages.py",
    "beta/test_models.py",
)
EVENTS = (
    "MessageStartEvent",
    "ContentBlockStartEvent",
    "ContentBlockDeltaEvent",
    "ContentBlockStopEvent",
    "MessageDeltaEvent",
    "MessageStopEvent",
)
MOST_OF_THEM = 200  # there are 215
SDK_KEY = '"my-anthropic-api-key"'  # in the suite's own settings


class DescribedUpstream(RecordingUpstream):
    """A server of messages whose answers are the examples of a description."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.schemas = description["components"]["schemas"]
        super().__init__()

    def answer_to(self, request: Received) -> Answer:
        """Return the example of the answer to a request."""
        if "count_tokens" in request.path:
            return self._json(self.example("CountMessageTokensResponse"))
        if not json.loads(request.body).get("stream"):
            return self._json(self.example("Message"))
        events = [self.example(name) for name in EVENTS]
        body = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
        return Answer(200, "text/event-stream", body.encode())

    def example(self, name: str) -> Any:
        """Return the example of a schema."""
        return self._example({"$ref": f"#/{name}"})

    def _example(self, schema: dict[str, Any]) -> Any:
        """Return a value of a schema: its own example, else one with each member."""
        if "$ref" in schema:
            return self._example(self.schemas[schema["$ref"].rpartition("/")[2]])
        for name in ("examples", "enum"):
            if schema.get(name):
                return schema[name][0]
        for name in ("const", "example", "default"):
            if name in schema:
                return schema[name]
        for name in ("anyOf", "oneOf", "allOf"):
            if schema.get(name):
                return self._example(schema[name][0])
        kind = schema.get("type")
        if kind == "object":
            return {name: self._example(one) for name, one in schema.get("properties", {}).items()}
        if kind == "array":
            return [self._example(schema["items"])]
        return {"integer": 1, "number": 1.0, "boolean": True, "null": None}.get(str(kind), "text")

    def _json(self, value: Any) -> Answer:
        return Answer(200, "application/json", json.dumps(value).encode())


def policy(upstream: str) -> str:
    """Return a policy that serves each model that the tests name, with every permission."""
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: one, provider: anthropic, model: claude-opus-5-5, api_key: "env:FAKE_KEY", region: unknown,
     base_url: "{upstream}/v1", price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 5}},
     allows: [{", ".join(FEATURES)}]}}
routes:
  - {{name: model_id, aliases: ["claude-*"], deployments: [one]}}
teams:
  - {{name: t, cost_centre: C, data_class: internal, routes: [model_id]}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the SDK's source distribution, of the version that is installed."""
    folder = tmp_path_factory.mktemp("sdk")
    pinned = folder / "pinned.txt"
    found = re.search(r"^anthropic==(?:.+\\\n)+.+\n", REQUIREMENTS.read_text(), re.M)
    assert found is not None
    pinned.write_text(found[0])
    flags = ("--no-deps", "--require-hashes", "--no-binary", ":all:", "--quiet")
    subprocess.run(
        [PYTHON, "-m", "pip", "download", *flags, "--dest", folder, "--requirement", pinned],
        check=True,
    )
    (source,) = folder.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return folder / source.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def upstream() -> Iterator[DescribedUpstream]:
    """Yield the upstream, with the description that llm-comply has."""
    where = "import llm_comply; print(llm_comply.__path__[0])"
    done = subprocess.run([PYTHON, "-c", where], capture_output=True, text=True, check=True)
    described = Path(done.stdout.strip()) / "specs" / "anthropic.json"
    server = DescribedUpstream(json.loads(described.read_text()))
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(
    launch_gateway: Callable[..., Iterator[Gateway]],
    module_database_url: str,
    upstream: DescribedUpstream,
) -> Iterator[Gateway]:
    """Yield a gateway before the upstream."""
    yield from launch_gateway(policy(upstream.url), module_database_url)


def test_the_sdks_own_tests_pass(gateway: Gateway, suite: Path) -> None:
    """They check each answer strictly by the SDK's types."""
    settings = suite / "tests" / "conftest.py"
    text = settings.read_text()
    assert SDK_KEY in text
    settings.write_text(text.replace(SDK_KEY, f'"{gateway.key}"'))
    done = subprocess.run(
        [
            *(PYTHON, "-m", "pytest", "-q", "-o", "addopts=", "-p", "tests._alias_httpx"),
            *("--tb=line", "-p", "no:cacheprovider", "-W", "ignore"),
            *(f"tests/api_resources/{one}" for one in SUITES),
        ],
        cwd=suite,
        env={**os.environ, "TEST_API_BASE_URL": f"http://127.0.0.1:{gateway.port}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    passed = re.findall(r"^(\d+) passed", done.stdout, re.M)
    assert int(passed[0]) >= MOST_OF_THEM
