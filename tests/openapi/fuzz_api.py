"""No case that a fuzzer makes of our OpenAPI description is a server error.

`make fuzz-api` names the fuzzer's command in `SCHEMATHESIS`; `CASES` and `SEED` change a run.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, StartGateway
from tests.integration.edge.response_server import ResponseServer

COMMAND = os.environ["SCHEMATHESIS"]
CASES, SEED = int(os.environ.get("CASES", "20000")), os.environ.get("SEED", "1")
FUZZED = 10  # endpoints with a body or a parameter; the others have one case each
HERE = Path(__file__).parent
ALL = "chat, completions, responses, embeddings"


def policy(fake: str, keeps: str) -> str:
    """Return a policy with a route for each kind of upstream."""
    price = "price: {input_usd_per_mtok: 1, output_usd_per_mtok: 10}"
    allows = (
        "allows: [store, stored_state, unknown_fields, hosted_tools, remote_media, "
        "engine_control, other_maximum, audio]"
    )
    return f"""\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: plain, provider: openai_compatible, model: m, region: unknown, base_url: "{fake}/v1",
     {price}, operations: [{ALL}], {allows}}}
  - {{name: vllm, provider: vllm, model: "fake/style:vllm", region: unknown, base_url: "{fake}/v1",
     {price}}}
  - {{name: keeps, provider: openai, model: m, region: unknown, base_url: "{keeps}",
     api_key: "env:FAKE_KEY", {price}, operations: [responses], {allows}}}
routes:
  - {{name: chat, deployments: [plain]}}
  - {{name: strict, deployments: [vllm]}}
  - {{name: keeps, deployments: [keeps]}}
teams:
  - {{name: payments, cost_centre: A, data_class: internal, routes: [chat, strict, keeps]}}
"""


@pytest.fixture
def keeper() -> Iterator[ResponseServer]:
    """Yield an upstream that keeps responses."""
    with closing(ResponseServer("kept")) as server:
        yield server


def test_no_case_is_a_server_error(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, keeper: ResponseServer
) -> None:
    """Every status of 500 and above is a finding."""
    gateway = start_gateway(policy(fake_upstream.url, keeper.url))
    headers = {"authorization": f"Bearer {gateway.key}"}
    first = plain_http.post(
        f"{gateway.base_url}/responses", json={"model": "keeps", "input": "x"}, headers=headers
    )
    assert first.status_code == 200, first.text
    variables = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "hooks",
        "PYTHONPATH": str(HERE),
        "FUZZ_ROUTES": "chat,strict,keeps",
        "FUZZ_RESPONSE": first.json()["id"],
        "FUZZ_REQUEST": first.headers["x-request-id"],
    }
    arguments = [
        *("run", f"http://127.0.0.1:{gateway.port}/openapi.json"),
        *("--header", f"authorization:Bearer {gateway.key}"),
        *("--checks", "not_a_server_error", "--phases", "coverage,fuzzing"),
        *("--max-examples", str(-(-CASES // FUZZED)), "--seed", SEED, "--workers", "1"),
        *("--continue-on-failure", "--suppress-health-check", "all", "--request-timeout", "30"),
    ]
    done = subprocess.run(
        [COMMAND, *arguments],
        env=variables,
        cwd=HERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    print(done.stdout)
    made = re.findall(r"([\d,]+) generated", done.stdout)
    assert done.returncode == 0, "the fuzzer's output above has the findings"
    assert made, "the fuzzer states how many cases it made"
    assert int(made[-1].replace(",", "")) >= CASES
