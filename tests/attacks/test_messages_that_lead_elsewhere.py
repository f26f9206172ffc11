"""The twin of security F6 for Anthropic's dialect: hosted tools, other places, other models and
remote media of a messages request under class `restricted`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.residency.cases import TODAY, Ask
from tests.residency.corpus import URL, policy
from tests.residency.lane import Lane, Reply

ASK = Ask(data_class=None, data_tags=(), gateway_region="de", day=TODAY)
PLAIN: dict[str, Any] = {
    "model": policy(is_ruled=True)["routes"][0]["name"],
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hi"}],
}
REMOTE = {"type": "url", "url": URL}
ROWS: tuple[dict[str, Any], ...] = (
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
    {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "other"}]},
    {"tools": [{"type": "tomorrow_20270101", "name": "t"}]},
    {"mcp_servers": [{"type": "url", "url": URL, "name": "m"}]},
    {"container": "c"},
    {"inference_geo": "us"},
    {"fallbacks": ["other"]},
    {"tomorrow": {"a": 1}},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": REMOTE}]}]},
    {"messages": [{"role": "user", "content": [{"type": "document", "source": REMOTE}]}]},
    {"messages": [{"role": "user", "content": [{"type": "container_upload", "file_id": "f"}]}]},
)


def answers(provider: str, *bodies: dict[str, Any]) -> list[tuple[Reply, int]]:
    """Return the answer to each body under a rule, and how often it reached the endpoint."""

    async def ask() -> list[tuple[Reply, int]]:
        lane = Lane()
        await lane.open()
        lane.clock.day = TODAY
        document = policy(is_ruled=True)
        document["deployments"][0] |= {"provider": provider, "operations": ["messages"]}
        found = []
        try:
            lane.apply(lane.at(document))
            for members in bodies:
                lane.endpoints[0].touched = 0
                body = json.dumps({**PLAIN, **members}).encode()
                reply = await lane.ask(ASK, path="/v1/messages", body=body)
                found.append((reply, lane.endpoints[0].touched))
        finally:
            await lane.close()
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize("provider", ["vllm", "openai_compatible"])
def test_nothing_that_leads_elsewhere_reaches_an_upstream(provider: str) -> None:
    """Neither byte by byte nor through the translation."""
    for members, (reply, touched) in zip(ROWS, answers(provider, *ROWS), strict=True):
        assert touched == 0, members
        assert (reply.status, reply.code) == (403, "residency_denied"), members
        assert json.loads(reply.body)["error"]["type"] == "permission_error", members


@pytest.mark.parametrize("provider", ["vllm", "openai_compatible"])
def test_what_stays_arrives(provider: str) -> None:
    """The same rule lets a tool of the caller's own and a picture inside the body through, and an
    address among the stop sequences, which was refused.
    """
    picture = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    rows: tuple[dict[str, Any], ...] = (
        {},
        {"stop_sequences": [URL]},
        {"tools": [{"name": "f", "input_schema": {"type": "object"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": picture}]}]},
    )
    for members, (_, touched) in zip(rows, answers(provider, *rows), strict=True):
        assert touched > 0, members
