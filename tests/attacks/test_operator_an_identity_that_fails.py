"""AWS's identity for the gateway is missing, refused or hangs: the route goes on, and says why."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import plain_http
from tests.gateway_process import FakeUpstreamProcess, Gateway, StartGateway
from tests.integration.policy import PRICE
from tests.running_server import address_of, running

DENIED = (
    b'<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>'
    b"<Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
)


def policy(upstream: str) -> str:
    """Return a policy whose first deployment needs the identity of the platform."""
    return f"""\
version: 1
regions: {{eu: [eu-central-1, eu-de]}}
classes: {{internal: {{regions: [any]}}}}
deployments:
  - {{name: converse, provider: bedrock, model: m, region: eu-central-1, credentials: ambient,
     base_url: "{upstream}", price: {PRICE}}}
  - {{name: other, provider: openai_compatible, model: m, region: eu-de, base_url: "{upstream}/v1",
     price: {PRICE}}}
routes:
  - {{name: alone, deployments: [converse]}}
  - {{name: pair, deployments: [converse, other]}}
teams: [{{name: payments, cost_centre: CC-1, data_class: internal, routes: [alone, pair]}}]
"""


@contextmanager
def denying() -> Iterator[str]:
    """Yield the address of a token service that refuses each role, as AWS's does."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(403)
            self.send_header("content-type", "text/xml")
            self.send_header("content-length", str(len(DENIED)))
            self.end_headers()
            self.wfile.write(DENIED)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield address_of(server)


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the address of a token service that accepts connections and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def environment(file: Path, token_service: str) -> dict[str, str]:
    """Return the variables that a platform sets for a web identity."""
    return {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(file),
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/gateway",
        "AWS_ENDPOINT_URL_STS": token_service,
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def asked(gateway: Gateway, route: str) -> httpx2.Response:
    return plain_http.post(
        f"{gateway.base_url}/chat/completions",
        json={"model": route, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5},
        headers={"authorization": f"Bearer {gateway.key}"},
        timeout=60,
    )


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return the path of a platform's statement about the gateway."""
    path = tmp_path / "token"
    path.write_text("a-statement")
    return path


def is_settled_at_zero(gateway: Gateway, answer: httpx2.Response, *, attempts: int) -> bool:
    """Return True if the first attempt cost nothing and says that the upstream was at fault."""
    first = gateway.events(answer.headers["x-request-id"], count=attempts)[0]
    return (first["outcome"], first["cost_usd"]) == ("upstream_error", 0)


def test_a_missing_statement_is_no_fault_of_the_gateway(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, tmp_path: Path
) -> None:
    """The error of botocore's reader reached the caller as 500, and no failover followed."""
    with denying() as service:
        variables = environment(tmp_path / "gone", service)
        gateway = start_gateway(policy(fake_upstream.url), environment=variables)
        answer = asked(gateway, "pair")
        assert (answer.status_code, answer.headers["x-tollgate-deployment"]) == (200, "other")
        assert is_settled_at_zero(gateway, answer, attempts=2)
        alone = asked(gateway, "alone")
        assert (alone.status_code, alone.json()["error"]["code"]) == (502, "upstream_auth")
        assert "cannot be read: No such file or directory" in alone.json()["error"]["message"]


def test_a_refused_role_names_the_refusal(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, token_file: Path
) -> None:
    """The log and the error name AWS's code, and the route goes on with the next deployment."""
    with denying() as service:
        variables = environment(token_file, service)
        gateway = start_gateway(policy(fake_upstream.url), environment=variables)
        answer = asked(gateway, "pair")
        assert (answer.status_code, answer.headers["x-tollgate-deployment"]) == (200, "other")
        assert is_settled_at_zero(gateway, answer, attempts=2)
        message = asked(gateway, "alone").json()["error"]["message"]
        assert "AWS refused it: AccessDenied" in message
        lines = gateway.log_lines()
        assert [line["reason"] for line in lines if line["event"] == "aws_identity_not_found"]


def test_a_token_service_that_hangs_holds_nothing_else(
    start_gateway: StartGateway, fake_upstream: FakeUpstreamProcess, token_file: Path
) -> None:
    """Its waiting threads were those of the ledger's jobs, and a stop waited for them."""
    with hanging() as service:
        variables = environment(token_file, service)
        gateway = start_gateway(policy(fake_upstream.url), environment=variables)
        assert asked(gateway, "pair").headers["x-tollgate-deployment"] == "other"
        assert "ReadTimeoutError" in asked(gateway, "alone").json()["error"]["message"]
        assert gateway.stop(signal.SIGTERM) == 0  # waits a minute at most, as botocore does
