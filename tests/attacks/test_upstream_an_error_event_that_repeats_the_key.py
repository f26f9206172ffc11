"""A server that repeats the headers of a request in an error event of its stream: the message, with
the gateway's own credential, was the caller's. A whole error answer was clean already.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.domain.operation import Operation
from gateway.domain.providers.table import PROVIDERS
from gateway.errors import UpstreamError
from gateway.wire.sent_credentials import REMOVED, without_credentials
from tests import factories
from tests.fakes import FakeUpstreamAnswer
from tests.unit.request.test_request_service import DONE, piece, rest_of, stage

SECRET = "sk-live/0123456789"
MESSAGE = f"bad header: Bearer {SECRET}"


def event(payload: object, *, slash: str = "/") -> bytes:
    """Return a server-sent event; PHP writes a slash in JSON as `\\/`."""
    return b"data: " + json.dumps(payload).replace("/", slash).encode() + b"\n\n"


ERROR = {"error": {"message": MESSAGE, "type": "x"}}
START = event({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 1}}})
TEXT = event(
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
)
GEMINI = event({"candidates": [{"content": {"parts": [{"text": "a"}]}}]})
DELTA = event({"type": "response.output_text.delta", "delta": "a", "output_index": 0})
FLAT = {"type": "error", "code": "x", "message": MESSAGE, "param": None}
STREAMS = {
    "chat": ("openai_compatible", Operation.CHAT, [piece("a"), event(ERROR)]),
    "messages": ("anthropic", Operation.MESSAGES, [START, TEXT, event({"type": "error", **ERROR})]),
    "translated": ("gemini", Operation.CHAT, [GEMINI, event(ERROR)]),
    "response": ("openai_compatible", Operation.RESPONSES, [DELTA, event(FLAT)]),
    "a slash": ("openai_compatible", Operation.RESPONSES, [DELTA, event(FLAT, slash="\\/")]),
}
PROMPTS: dict[Operation, dict[str, Any]] = {
    Operation.CHAT: {"messages": [{"role": "user", "content": "x"}]},
    Operation.MESSAGES: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    Operation.RESPONSES: {"input": "x"},
}


@pytest.mark.parametrize(("provider", "operation", "sent"), STREAMS.values(), ids=STREAMS)
async def test_an_error_event_has_no_credential(
    provider: str, operation: Operation, sent: list[bytes], tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text(f"{SECRET}\n")
    native = PROVIDERS[provider].native
    at = factories.deployment(provider=provider, native=native, api_key=f"file:{key}")
    on = stage(FakeUpstreamAnswer(sent))
    asked = json.dumps({"model": "assistant", "stream": True, **PROMPTS[operation]}).encode()
    answer = await rest_of(await on.answer(asked, at, operation=operation))
    assert b"0123456789" not in answer
    assert REMOVED.encode() in answer


async def test_an_error_in_an_assembled_answer_has_no_credential(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    at = factories.deployment(provider="vllm", capabilities=frozenset(), api_key=f"file:{key}")
    on = stage(*(FakeUpstreamAnswer([piece("a"), event(ERROR), DONE]) for _ in range(3)))
    with pytest.raises(UpstreamError) as failed:
        await on.answer(b'{"model":"assistant","messages":[]}', at)
    assert on.transport.sent[0][1].is_assembled
    assert SECRET not in failed.value.message, "the message is what the caller gets"
    assert REMOVED in failed.value.message


def test_a_token_and_a_session_are_credentials_and_a_short_word_is_none() -> None:
    """Access tokens have no reference in the policy: only the request shows them."""
    headers = {"authorization": "Bearer token-of-an-hour", "x-amz-security-token": "session-1234"}
    said = b"token-of-an-hour and session-1234"
    assert without_credentials(said, headers) == b" and ".join([REMOVED.encode()] * 2)
    assert without_credentials(b"a key", {"x-api-key": "key"}) == b"a key"
