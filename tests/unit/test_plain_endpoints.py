"""The endpoints that are not hot answer in the caller's dialect too, also when they fail."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from gateway.api.app import PlainEndpoints, build_app
from gateway.errors import DatabaseUnavailable
from tests import factories
from tests.fakes import FakeClock

KEY = factories.key()


class BrokenReports:
    """Reports that fail in a way of the test's choosing."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def receipt(self, request_id: object, **_: object) -> None:
        raise self.failure

    def usage_me(self, **_: object) -> None:
        raise self.failure


async def get(path: str, failure: Exception) -> tuple[int, dict[str, Any]]:
    """Status and body of a GET, from the application itself."""
    endpoints = PlainEndpoints(
        holder=factories.holder(factories.snapshot(factories.key_record(KEY))),
        reports=BrokenReports(failure),  # type: ignore[arg-type]
        clock=FakeClock(), allows_demo_keys=False, not_ready=list,
    )  # fmt: skip
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "http_version": "1.1", "server": ("x", 80), "client": ("x", 1),
        "headers": [(b"authorization", b"Bearer " + KEY.encode()), (b"host", b"x")],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    with suppress(ZeroDivisionError):  # it is raised again after the answer, so that the server logs it
        await build_app(endpoints)(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent))


@pytest.mark.parametrize("path", [f"/v1/requests/{factories.REQUEST_ID}", "/v1/usage/me"])
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (DatabaseUnavailable("host db.internal is away"), 503, "unavailable"),
        (ZeroDivisionError("x"), 502, "upstream_error"),
    ],
)
async def test_a_failing_report_is_said_in_the_dialect(path: str, failure: Exception, status: int, code: str) -> None:
    """Never `{"detail"}`, never plain text, never what went wrong inside."""
    found, body = await get(path, failure)
    assert (found, body["error"]["code"]) == (status, code)
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "db.internal" not in body["error"]["message"]
