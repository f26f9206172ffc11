"""The seam between dialects carries what OpenAI's does not need: another dialect on each side,
frames instead of events, a signature, a token that expires, a path that names the model.

From the caller's socket protocol to a real upstream socket, with the code of the request path.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest

from gateway.api.edge import Edge
from gateway.api.http import connection
from gateway.domain.ledger.usage_event import Outcome
from gateway.domain.policy.policy import Priority
from gateway.domain.pricing.tokens import UsageSource
from tests import factories
from tests.fakes import FakeJournal
from tests.foreign import Memo, Telex, frame, signature
from tests.memory_transport import answer_to
from tests.providers.scripted import Peer, Script, Server, calling, serving
from tests.unit.edge.test_forward_shedding import KEYS, Door
from tests.waiting import soon

CHAT = "/v1/chat/completions"
FRAMES = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-frames\r\nconnection: close\r\n\r\n"
END = {"end": {"asked": 1000, "said": 2}}
ANSWER = b"".join(frame(one) for one in ({"word": "good"}, {"word": "day"}, END))
COST = 0.001008  # 1,000 tokens at 1 USD a million and 2 at 4


@dataclass
class Tokens:
    """A token service: each token serves once, so each call waits for its own."""

    given: list[str] = field(default_factory=list)

    async def __call__(self) -> str:
        self.given.append(f"token-{len(self.given)}")
        return self.given[-1]


@dataclass
class Gateway:
    """A gateway whose callers write memos and whose upstream is a Telex server."""

    edge: Edge
    journal: FakeJournal
    upstream: Server
    tokens: Tokens

    async def ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer, decoded from its chunks."""
        key = {"x-api-key": KEYS[Priority.NORMAL]}
        status, headers, content = await answer_to(self.edge, body, path=CHAT, headers=key)
        if headers.get("transfer-encoding") == "chunked":
            content = b"".join(content.split(b"\r\n")[1::2])
        return status, headers, content


@asynccontextmanager
async def gateway(script: Script, patch: pytest.MonkeyPatch) -> AsyncIterator[Gateway]:
    """Run one in front of a scripted upstream."""
    known = connection._ENDPOINTS[CHAT.encode()]
    patch.setitem(connection._ENDPOINTS, CHAT.encode(), replace(known, dialect=Memo()))
    async with serving(script) as upstream, calling() as client:
        target = factories.deployment(
            base_url=f"http://127.0.0.1:{upstream.port}", model="m/1", provider="openai"
        )
        team = factories.team("normal")
        record = factories.key_record(KEYS[Priority.NORMAL], team="normal")
        document = factories.policy(target, teams={"normal": team})
        door, tokens = Door(), Tokens()
        service = replace(
            door.stage.service(),
            transport=client.transport,
            providers={"openai": Telex(tokens)},
            max_attempts=1,
        )
        holder = factories.holder(factories.snapshot(record, document=document))
        edge = replace(door.edge, forward=replace(door.forward, requests=service, holder=holder))
        yield Gateway(edge, door.stage.journal, upstream, tokens)


def sending(*pieces: bytes) -> Script:
    """Return a script that answers one request with these pieces and closes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in pieces:
            await peer.send(piece)

    return script


@pytest.mark.parametrize("size", [1, 3, len(ANSWER)])
async def test_frames_become_lines_with_their_cost(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """However the frames are cut; the usage is final and the cost stands in the last line."""
    pieces = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    async with gateway(sending(FRAMES, *pieces), monkeypatch) as on:
        status, headers, body = await on.ask(b"assistant\nstream\nhow are you?")
        await soon(lambda: on.journal.events, "the event")
    lines = [json.loads(line) for line in body.splitlines()]
    assert (status, headers["content-type"]) == (200, "application/x-memo-lines")
    assert lines == [{"memo": "good"}, {"memo": "day"}, {"units": 1002, "cost": COST}]
    (event,) = on.journal.events
    assert (event.outcome, event.usage_source) == (Outcome.OK, UsageSource.PROVIDER)
    assert event.cost_nusd == round(COST * 10**9)


async def test_each_call_is_signed_with_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the body that is sent; the path names the deployment's model."""
    whole = json.dumps({"word": "good day", **END}).encode()
    plain = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(whole)
    async with gateway(sending(plain + whole), monkeypatch) as on:
        for _ in range(2):
            status, headers, body = await on.ask(b"assistant\nwhole\nhow are you?")
            assert (status, headers["content-type"]) == (200, "application/x-memo")
            assert json.loads(body) == {"memo": "good day", "units": 1002, "cost": COST}
    for request, token in zip(on.upstream.requests, ["token-0", "token-1"], strict=True):
        head, _, sent = request.partition(b"\r\n\r\n")
        assert head.startswith(b"POST /m%2F1/whole HTTP/1.1\r\n")
        assert f"x-token: {token}\r\n".encode() in head + b"\r\n"
        assert f"x-signature: {signature(token, sent)}".encode() in head
        assert json.loads(sent) == {"ask": "how are you?"}


async def test_an_error_is_written_in_the_dialect_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of the request, and one of the upstream before its answer."""
    hung_up = (
        b"HTTP/1.1 500 No\r\nx-reason: tired\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    )
    async with gateway(sending(hung_up), monkeypatch) as on:
        status, _, body = await on.ask(b"no memo")
        assert (status, json.loads(body)["at"], on.tokens.given) == (400, "line", [])
        status, _, body = await on.ask(b"assistant\nstream\nhow are you?")
    refusal = json.loads(body)
    assert (status, refusal["refused"]) == (502, "upstream_error")
    assert "hung up (tired)" in refusal["because"]


@pytest.mark.parametrize("broken", [b"", b"\xff\xff\xff\xff"])
async def test_a_stream_that_breaks_ends_with_an_event_of_the_caller(
    monkeypatch: pytest.MonkeyPatch, broken: bytes
) -> None:
    """Cut, or with a frame too large to be held: the generated part is charged."""
    async with gateway(sending(FRAMES, frame({"word": "good"}), broken), monkeypatch) as on:
        _, _, body = await on.ask(b"assistant\nstream\nhow are you?")
        await soon(lambda: on.journal.events, "the event")
    assert json.loads(body.splitlines()[-1]) == {"broken": "upstream_error"}
    (event,) = on.journal.events
    assert event.outcome is not Outcome.OK
    assert event.cost_nusd
