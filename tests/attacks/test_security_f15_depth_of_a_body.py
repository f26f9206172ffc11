"""Security F15 and 1h: bodies with up to 980 levels of nesting passed, which other parsers may not
read.

The audit also asks about `1e999` and numbers of a million digits in unknown fields. They are
harmless: the gateway neither reads nor changes them, and they take no time. The members that it
reads refuse them, as on commit e47127a.
"""

from __future__ import annotations

import pytest

from gateway.domain.operation import Operation
from gateway.errors import InvalidRequest
from gateway.wire.anthropic.dialect import AnthropicDialect
from gateway.wire.openai.request.read import prepare, read_request


def nested(levels: int, member: str, *, filling: str = "") -> bytes:
    """Return a body with this depth, including the body itself."""
    inner = "[" * (levels - 1) + filling + "]" * (levels - 1)
    return b'{"model":"m","%b":%b}' % (member.encode(), inner.encode())


@pytest.mark.parametrize(
    "member", ["tomorrow", "metadata", "tools", "messages", "stop", "response_format", "input"]
)
def test_a_body_nests_at_most_64_levels(member: str) -> None:
    """The limit holds in any member, because another parser may read it."""
    with pytest.raises(InvalidRequest, match="deeper than 64 levels"):
        read_request(Operation.CHAT, nested(65, member))


@pytest.mark.parametrize("member", ["tomorrow", "metadata", "stop", "input"])
def test_sixty_four_levels_pass(member: str) -> None:
    """The limit itself is allowed."""
    body = nested(64, member, filling='"[[[[[[[[[[[[[[[[[["')
    assert prepare(read_request(Operation.CHAT, body), {}) == body


def test_many_brackets_beside_each_other_are_not_deep() -> None:
    """The count of brackets only starts the check."""
    body = b'{"model":"m","stop":[%b]}' % b",".join([b"[[]]"] * 200)
    assert read_request(Operation.CHAT, body).body == body


def test_deep_ones_are_found_among_many() -> None:
    """Removing innermost pairs may leave the deep ones for last; they must be found."""
    body = b'{"model":"m","stop":[%b,%b]}' % (b",".join([b"[[]]"] * 200), b"[" * 63 + b"]" * 63)
    with pytest.raises(InvalidRequest, match="deeper than 64 levels"):
        read_request(Operation.CHAT, body)
    teeth = b"[" * 40 + b"],[" * 200 + b"]" * 40  # removing innermost pairs leaves forty levels
    assert read_request(Operation.CHAT, b'{"model":"m","stop":[%b]}' % teeth).facts.model == "m"
    shallow = b'{"model":"m","stop":[%b]}' % (b"[" * 60 + b"1,{}" + b"]" * 60)
    assert read_request(Operation.CHAT, shallow).body == shallow


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 10**6, b"1." + b"0" * 10**6])
def test_unread_numbers_pass_unchanged(number: bytes) -> None:
    """The upstream judges fields that the gateway does not read."""
    body = b'{"model":"m","messages":[],"tomorrow":%b}' % number
    assert prepare(read_request(Operation.CHAT, body), {}) == body


@pytest.mark.parametrize("member", [b"max_tokens", b"n", b"best_of"])
@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000])
def test_numbers_that_decide_are_refused(member: bytes, number: bytes) -> None:
    """The hold depends on a number that every parser must read in the same way."""
    with pytest.raises(InvalidRequest):
        read_request(Operation.CHAT, b'{"model":"m","messages":[],"%b":%b}' % (member, number))


read_messages = AnthropicDialect().read_request


@pytest.mark.parametrize(
    "member", ["tomorrow", "metadata", "tools", "messages", "system", "output_config", "thinking"]
)
def test_a_body_of_messages_nests_at_most_64_levels(member: str) -> None:
    """The same limit holds in Anthropic's dialect."""
    others = b"" if member == "messages" else b'"messages":[],'
    body = nested(65, member).replace(b"{", b"{" + others, 1)
    with pytest.raises(InvalidRequest, match="deeper than 64 levels"):
        read_messages(Operation.MESSAGES, body)


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 10**6, b"1." + b"0" * 10**6])
def test_unread_numbers_of_messages_pass_unchanged(number: bytes) -> None:
    """The upstream judges fields that the gateway does not read."""
    body = b'{"model":"m","messages":[],"max_tokens":1,"tomorrow":%b}' % number
    assert prepare(read_messages(Operation.MESSAGES, body), {}) == body


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000, b"1.5", b"-1", b'"9"', b"true", b"[]"])
def test_a_maximum_of_messages_that_decides_is_refused(number: bytes) -> None:
    """The hold depends on it in the same way."""
    body = b'{"model":"m","messages":[],"max_tokens":%b}' % number
    with pytest.raises(InvalidRequest) as refused:
        read_messages(Operation.MESSAGES, body)
    assert refused.value.param in ("max_tokens", None)
