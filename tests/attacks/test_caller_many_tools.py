"""A body of 126 KiB with 42,900 empty tools blocked the event loop for 170 ms, and other teams
got 503.
"""

from __future__ import annotations

import pytest

from gateway.api.large_bodies import is_large
from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.request.read import read_request as read_messages
from gateway.wire.openai.request.read import read_request
from gateway.wire.openai.request.tools import MAX_TOOLS


def with_tools(*tools: bytes) -> bytes:
    """Return a chat with these tools."""
    return b'{"model":"m","messages":[],"tools":[' + b",".join(tools) + b"]}"


def namespace(count: int) -> bytes:
    """Return a namespace with this many tools."""
    return b'{"type":"namespace","name":"n","tools":[' + b",".join([b"{}"] * count) + b"]}"


@pytest.mark.parametrize(
    "body",
    [
        with_tools(*[b"{}"] * (MAX_TOOLS + 1)),
        with_tools(*[b"{}"] * 42_900),
        with_tools(namespace(MAX_TOOLS + 1)),
        with_tools(*[namespace(36)] * 900),
    ],
    ids=["one more", "42,900", "a namespace", "900 namespaces"],
)
def test_more_tools_than_anybody_sends_are_refused(body: bytes) -> None:
    """Tools are counted before they are read, and those in a namespace count too."""
    with pytest.raises(InvalidRequest, match="more than 1,024 tools") as refused:
        read_request(Operation.CHAT, body)
    assert refused.value.param == "tools"


@pytest.mark.parametrize("count", [MAX_TOOLS + 1, 42_900])
def test_more_tools_of_messages_are_refused(count: int) -> None:
    """Anthropic's tools are counted in the same way."""
    with pytest.raises(InvalidRequest, match="more than 1,024 tools") as refused:
        read_messages(with_tools(*[b"{}"] * count))
    assert refused.value.param == "tools"
    allowed = with_tools(*[b'{"name":"f"}'] * MAX_TOOLS)
    assert read_messages(allowed).facts.capabilities == {"tools"}


def test_as_many_as_are_allowed_are_read() -> None:
    """OpenAI accepts 128 tools."""
    body = with_tools(
        *[b'{"type":"function","function":{"name":"f"}}'] * (MAX_TOOLS - 2), namespace(1)
    )
    assert read_request(Operation.CHAT, body).facts.capabilities == {"tools"}


def test_a_small_body_of_many_objects_is_read_in_the_thread() -> None:
    """The size of a body does not show how long its decoding takes."""
    assert is_large(with_tools(*[b"{}"] * 6_000))
