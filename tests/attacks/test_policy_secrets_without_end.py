"""References to secrets that lead to a pipe, to a file without end, or to bytes no header carries.

Each request to the deployment reads its secret on the event loop.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from gateway.domain.alerts.delivery import NotDelivered
from gateway.errors import UpstreamAuth
from gateway.providers.alerts.webhook import signing_key
from gateway.providers.credentials import MOST_BYTES, resolve
from tests import factories, plain_http
from tests.attacks.odd_engine import odd_engine
from tests.attacks.raw_callers import CHAT, question
from tests.gateway_process import StartGateway
from tests.waiting import without_hanging

POLICY = """\
version: 1
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: piped, model: m, provider: openai, region: unknown, base_url: "{url}",
     api_key: "file:{path}", price: {{input_usd_per_mtok: 1, output_usd_per_mtok: 4}}}}
routes: [{{name: vllm, deployments: [piped]}}]
teams: [{{name: red, cost_centre: CC-1, data_class: internal, routes: [vllm]}}]
"""
CONTENTS = {
    "not text": b"\xff\xfe secret",
    "two lines": b"sk-one\nsk-two",
    "a mark": b"\xef\xbb\xbfsk-one",
    "too large": b"x" * (MOST_BYTES + 1),
}


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Return a named pipe that nobody writes to."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_requests_to_a_pipe_stop_no_others(start_gateway: StartGateway, pipe: Path) -> None:
    """The first one stopped the whole gateway for good."""
    with odd_engine() as engine:
        gateway = start_gateway(POLICY.format(url=engine.url, path=pipe))
        headers = {"authorization": f"Bearer {gateway.key}", "content-type": "application/json"}
        site = f"http://127.0.0.1:{gateway.port}"
        answer = plain_http.post(site + CHAT, content=question(), headers=headers, timeout=5)
        assert (answer.status_code, engine.calls) == (502, 0)
        assert "is not a regular file" in answer.text
        assert plain_http.get(f"{site}/healthz", timeout=5).status_code == 200


def test_a_file_without_end_is_not_read(pipe: Path) -> None:
    """`/dev/zero` took all memory. Nothing waits for a pipe's writer, and no file stays open."""
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UpstreamAuth, match="directory"):
        resolve(factories.deployment("d", api_key=f"file:{pipe.parent}"))
    for path in ("/dev/zero", str(pipe)):
        deployment = factories.deployment("d", api_key=f"file:{path}")
        with pytest.raises(UpstreamAuth, match="is not a regular file"):
            without_hanging(partial(resolve, deployment))
        with pytest.raises(NotDelivered, match="is not a regular file"):
            without_hanging(partial(signing_key, f"file:{path}"))
    assert len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_an_unusable_secret_is_named_and_not_shown(tmp_path: Path, content: bytes) -> None:
    """It was 502 "the gateway failed" for each request, without the remedy."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(UpstreamAuth, match="Ask an admin") as refused:
        resolve(factories.deployment("d", api_key=f"file:{path}"))
    assert "sk-" not in str(refused.value)
    assert str(path) in str(refused.value)
